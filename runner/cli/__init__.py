"""A command line in; an exit status, and what the user reads, out."""
