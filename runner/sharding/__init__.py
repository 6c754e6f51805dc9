"""Specs, shapes, and a call with how its operands lie in; its result, repairs, moves between layouts out."""
