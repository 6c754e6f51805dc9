"""A module that somebody compiled, in a process, a dump or a profile, in; what is known of it, as plain data, out."""
