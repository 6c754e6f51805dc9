"""A call and how its operands lie in; how its result lies, and which repairs may make their types agree, out."""
