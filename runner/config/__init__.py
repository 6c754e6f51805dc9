"""YAML files and overrides in; a resolved mapping, and where each of its values stands, out."""
