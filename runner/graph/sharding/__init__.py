"""Computes the layouts of results, repairs of calls, and moves between layouts."""
