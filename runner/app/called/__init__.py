"""Makes an experiment of a call of a Python function, as its caller makes it.

Operands, mesh and axis types, mesh context, specs, donation: all that gives the call its meaning is read in the
caller's process, and crosses to the worker as data.
"""
