"""What a reader makes of a section in; inputs, equations and outputs, which every other room walks, out."""
