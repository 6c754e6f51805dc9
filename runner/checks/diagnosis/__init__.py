"""Finds the line of a section that is wrong, by trying edits of it."""
