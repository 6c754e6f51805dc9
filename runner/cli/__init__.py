"""A command line in; an exit status, and output for the user, out."""
