"""Says what was compiled: the collectives of a module with their lines and reasons, and what they cost."""
