"""The record of a run in; its entries in MLflow, Weights & Biases or TensorBoard out.

A tracker's library is imported where it is asked for, and is no dependency of shardproof: each is an extra of its name.
"""
