"""The record of a run in; what trackers of experiments keep of it, and where they are told, out.

A tracker's library is imported where it is asked for, and is no dependency of shardproof: each is an extra of its name.
"""
