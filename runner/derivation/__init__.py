"""A graph, its specs and Shardy's plan in; each device's lines, with the collectives written out, out."""
