"""Python functions as users write them, which experiments import."""
