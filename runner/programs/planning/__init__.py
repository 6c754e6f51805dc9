"""Finds the layouts of a graph with the least cost on a mesh, and the reasons for them."""
