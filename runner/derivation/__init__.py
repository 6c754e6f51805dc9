"""A graph, its specs and Shardy's plan in; the lines of each device, with explicit collectives, out."""
