"""Runs a command line: prints for the user, and returns an exit status."""
