"""What the compiler did, read off what it wrote. Imports no JAX: the texts are the worker's."""
