"""The record of a run in; its entries in MLflow, Weights & Biases or TensorBoard out.

A tracker's library is imported when it is used, and is not a dependency of Shardproof: each is an extra with its name.
"""
