"""Runs a resolved configuration, and returns its record."""
