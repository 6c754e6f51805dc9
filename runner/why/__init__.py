"""The collectives of a compiled program, its plan and its experiment in; the reason of each collective out."""
