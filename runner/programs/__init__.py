"""An experiment and its types in; the source of one JAX script for each program out (`writers.py`)."""
