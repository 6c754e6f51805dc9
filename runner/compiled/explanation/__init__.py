"""Says as plain data what is known of a module that somebody compiled: in a process, a dump or a profile."""
