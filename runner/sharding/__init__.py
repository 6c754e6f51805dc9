"""Specs and shapes, and calls with their operands' layouts, in; results, repairs, and moves between layouts out."""
