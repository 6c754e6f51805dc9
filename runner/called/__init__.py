"""Makes an experiment of a call of a Python function: its operands, mesh and axis types, mesh context, specs, donation.

All that gives the call its meaning is read here, in the caller's process; it crosses to the worker as data.
"""
