"""A job in; the worker's events and outputs, whatever becomes of the worker, out."""
