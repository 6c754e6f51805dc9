"""Random experiments of the whole language, judged by the runner itself; what fails is shrunk to a few lines."""
