"""Composes YAML files and overrides to one mapping, and finds the place of each of its values."""
