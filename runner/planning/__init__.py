"""A graph, the types of its values, a mesh and what is to be least in; the layouts that make it so, and why, out."""
