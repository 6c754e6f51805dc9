"""Functions as people write them, right and with small mistakes."""
