"""The text of an expression in; its checked term and operations, with their NumPy counterparts, out."""
