"""The text of an expression in; a checked tree and its operations, with their NumPy counterparts, out."""
