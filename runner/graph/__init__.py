"""The lines of a section in; a graph of inputs, equations and outputs, which every other room walks, out."""
