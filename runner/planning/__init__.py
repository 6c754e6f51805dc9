"""A graph, its types, a mesh and an objective in; the layouts with the least cost, and the reasons for them, out."""
