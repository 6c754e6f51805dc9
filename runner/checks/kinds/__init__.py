"""Each file is a check, or several that are alike, and returns verdicts; `registry.py` reads all."""
