"""Writes the decorator that constrains the layouts of values inside a user's function.

The user's code stays unchanged: the function is traced, and constraints are added to its jaxpr after the equations
whose values the paths name. The worker reads functions with the same source, so a path names the same values there.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.base.layout import Spec
from runner.programs.spelling import sharding

MODULES, IMPORTS = ("collections", "itertools", "re"), ("import jax.extend.core as jex",)
"""The modules of the standard library and the imports of JAX that `SOURCE` needs besides `jax`."""

DECORATOR = "constraining"

SOURCE = '''def constraining(shardings):
    """A decorator that lays out values inside a function, by their paths: named scopes, then a checkpoint_name; or the
    number of a primitive's result, `dot_general.3`.
    """

    def put(path):
        return path in shardings and (lambda value: jax.lax.with_sharding_constraint(value, shardings[path]))

    def decorate(function):
        def constrained(*arguments):
            closed, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
            closed = closed.replace(jaxpr=within(closed.jaxpr, "", put))
            return jax.tree.unflatten(jax.tree.structure(result), jex.jaxpr_as_fun(closed)(*arguments))

        return constrained

    return decorate


def within(jaxpr, around, put, counts=None):
    """A jaxpr in the scope `around`, where the function put(path) is applied to values if there is one.

    What a scope gives has the scope's path; a value with a checkpoint_name has this name behind its scope's path. The
    third result of a primitive in the whole jaxpr is `dot_general.3`, also in a backward pass, whose scope is None.
    """
    counts = collections.Counter() if counts is None else counts

    def inner(part, scope):
        if isinstance(part, tuple) and any(isinstance(each, jex.ClosedJaxpr) for each in part):
            return tuple(inner(each, scope) for each in part)
        if isinstance(part, jex.ClosedJaxpr):
            return part.replace(jaxpr=within(part.jaxpr, scope, put, counts))
        return within(part, scope, put, counts) if isinstance(part, jex.Jaxpr) else part

    scopes = [None if around is None else scopes_of(equation, around) for equation in jaxpr.eqns]
    functions = {}
    for scope in dict.fromkeys(itertools.chain(*filter(None, scopes))):
        if function := put(scope):
            for value in given(jaxpr, scopes, scope):
                functions[value] = [function, *functions.get(value, [])]
    equations = []
    for equation, own in zip(jaxpr.eqns, scopes, strict=True):
        name, (value, *others) = equation.primitive.name, equation.outvars or [None]
        if name in ("shard_map", "pallas_call"):
            # What is one device's stays as it is.
            equations.append(equation)
            continue
        counts[name] += 1
        scope = None if own is None else (own or [around])[-1]
        if not others and (function := put(f"{name}.{counts[name]}")):
            functions[value] = [function, *functions.get(value, [])]
        if name == "name" and own is not None and (function := put(f"{scope}/{equation.params['name']}".lstrip("/"))):
            functions[value] = [function, *functions.get(value, [])]
        params = {name: inner(part, scope) for name, part in equation.params.items()}
        outputs, added = list(equation.outvars), []
        for i, value in enumerate(outputs):
            for function in reversed(functions.get(value, [])):
                (put_on,) = jax.make_jaxpr(function)(value.aval).eqns
                added.insert(0, put_on.replace(outvars=[outputs[i]], source_info=equation.source_info))
                (outputs[i],) = put_on.invars
        equations += [equation.replace(params=params, outvars=outputs), *added]
    return jaxpr.replace(eqns=equations)


def given(jaxpr, scopes, scope):
    """The values that a scope gives: those that are read outside of it, or else are among the jaxpr's outputs."""
    made, read = {}, set()
    for equation, own in zip(jaxpr.eqns, scopes, strict=True):
        if own is not None and scope in own:
            made |= dict.fromkeys(equation.outvars)
        elif own is not None:
            read |= {value for value in equation.invars if isinstance(value, jex.Var)}
    outputs = {value for value in jaxpr.outvars if isinstance(value, jex.Var)}
    return [value for value in made if value in read] or [value for value in made if value in outputs]


def scopes_of(equation, around):
    """The scopes in which an equation stands below `around`, the innermost last; None for one of a backward pass."""
    stack = str(equation.source_info.name_stack)
    if "transpose(" in stack:
        return None
    names = filter(None, re.sub(r"\\w+\\(|\\)", "", stack).split("/"))
    return list(itertools.accumulate(names, lambda path, name: f"{path}/{name}".lstrip("/"), initial=around))[1:]
'''
"""The functions, for programs and for the worker."""


def decorator(specs: Mapping[str, Spec]) -> str:
    """The source of the decorator of a function whose values at these paths are constrained."""
    entries = [f'"{path}": {sharding(spec)}' for path, spec in specs.items()]
    line = f"@{DECORATOR}({{{', '.join(entries)}}})\n"
    if len(line) <= 110:
        return line
    return "\n".join([f"@{DECORATOR}(", "    {", *(f"        {entry}," for entry in entries), "    }", ")", ""])
