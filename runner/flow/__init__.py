"""A resolved configuration in; the record of its run out."""
