"""Functions of Python as users have them: what experiments import."""
