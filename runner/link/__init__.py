"""A job in; the worker's events and outputs out, even if the worker crashes or hangs."""
