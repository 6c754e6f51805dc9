"""The work of a program and hardware in; a lower bound on the time of one run, line by line, out. Imports no JAX."""
