"""YAML files and overrides in; a resolved mapping, and the place of each of its values, out."""
