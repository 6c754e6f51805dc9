"""Collects the folders of a pytest session into items that run experiments and compare goldens."""
