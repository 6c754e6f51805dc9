"""What a program does, and hardware, in; the least time that one run takes there, line by line, out. No JAX."""
