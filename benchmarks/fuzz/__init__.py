"""Random experiments in the whole language, judged by the runner itself; failures are shrunk to a few lines."""
