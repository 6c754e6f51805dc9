"""Sends a job to the worker and receives its events and outputs, even if the worker crashes or hangs."""
