"""A call of a Python function in; the experiment that makes it, as its caller does, out.

Operands, mesh and axis types, mesh context, specs, donation: all that gives the call its meaning is read in the
caller's process, and crosses to the worker as data.
"""
