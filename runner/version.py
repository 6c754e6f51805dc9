"""The version of Shardproof, which records, programs and the processes of a cluster name."""

__version__ = "0.1.0"
