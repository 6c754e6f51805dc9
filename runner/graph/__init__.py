"""Represents a section as inputs, equations and outputs, which every other room walks."""
