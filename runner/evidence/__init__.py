"""The texts that the worker writes in; what the compiler and the profiler did, as plain data, out. No JAX."""
