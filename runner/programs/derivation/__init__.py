"""Writes the lines of each device, with explicit collectives, from a graph, its specs and Shardy's plan."""
