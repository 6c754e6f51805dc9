"""Keeps what a run gave, as records and goldens, and shows it: on terminals, on pages, in trackers."""
