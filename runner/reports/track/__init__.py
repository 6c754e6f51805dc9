"""Sends the record of a run to MLflow, Weights & Biases or TensorBoard.

A tracker's library is imported when it is used, and is not a dependency of Shardproof: each is an extra with its name.
"""
