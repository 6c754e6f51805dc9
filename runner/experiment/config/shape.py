"""Checks a key and its value against the types of `schema.py`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal, TypeAlias

from runner.base import words
from runner.base.faults import Fault, Key, key_text, nearest
from runner.base.lazy import dataclass
from runner.base.untyped import is_list, is_mapping
from runner.experiment.config import specs
from runner.experiment.config.quoting import WORD, sizes
from runner.experiment.config.schema import ExperimentConfig, Explanation, Flag, Layout, MeshShape


@dataclass(frozen=True)
class Form:
    """The values that are valid at a key.

    - `kind`: `name` is a text that is an identifier; `any` accepts a value that fits one of `forms`; `anything` any.
    - `refusal`: the message for an invalid `value`, a format string; `{hint}` is replaced by what YAML makes of yes and
      no. If it is empty, the reader raises its own message, since it knows what is valid there.
    - `choices`: the only valid texts; a message lists them, or shows the `example`. `meant`: those for others that
      people write.
    - `least`, `above`: the inclusive and the exclusive lower bound of a number, which must then be finite.
    - `written`: the pattern of texts that `experiment/config/specs.py` converts to a list before the value is
      validated.
    - `of`: the form of each item of a list or mapping; `parts`: one form for each item of a list of that length.
    - `fewest`, `most`: the bounds on the length of a list or mapping; of a text, stripped, only `fewest`.
    - `keys`: the forms of a mapping's keys; other keys are only valid if there is `of`, which is their form, or if it
      is `open`. `unknown`: the message for another `key`; `there` begins its list of the valid ones.
    - `required`: the keys that must be present, and one of `either`; `missing`: the message for an absent `key` of the
      mapping called `name`.
    - `by_program`: the JSON Schema also allows a mapping from programs and platforms to values of this form.
    - `named`: of a key in `schema.py`, the name in `FORMS` of the form that restricts the value further; `choices` are
      then texts that are allowed as well.
    - `declared`: the class that declares the keys.

    A form inside another may be given by its name in `FORMS`; its reader then validates the value.
    """

    kind: Literal["text", "name", "integer", "number", "flag", "list", "mapping", "any", "anything"]
    refusal: str = ""
    choices: tuple[str, ...] = ()
    meant: Mapping[str, str] = field(default_factory=dict[str, str])
    example: str | None = None
    least: float | None = None
    above: float | None = None
    written: str = ""
    of: Inner | None = None
    parts: tuple[Form, ...] = ()
    fewest: int | None = None
    most: int | None = None
    keys: Mapping[str, Inner] = field(default_factory=dict[str, "Inner"])
    open: bool = False
    unknown: str = ""
    there: str | None = "; there are "
    required: tuple[str, ...] = ()
    either: tuple[str, ...] = ()
    missing: str = ""
    forms: tuple[Inner, ...] = ()
    optional: bool = False
    by_program: bool = False
    named: str = ""
    declared: type[Any] | None = None


Inner: TypeAlias = Form | str


_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_IN_WORDS = {"text": "a text", "integer": "an integer", "number": "a number"}
_FILES = ("defaults", "hydra")
"""The keys that a file may have besides those of an experiment."""


@functools.cache
def root() -> Form:
    """The form of an experiment's whole mapping, before Hydra converts and resolves its values."""
    return _form(ExperimentConfig)


@functools.cache
def _form(hint: Any) -> Form:
    if hint in _FORMS:
        return _FORMS[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return dataclasses.replace(_form(arguments[0]), named=arguments[1])
    if origin in (types.UnionType, typing.Union):
        (held,) = (argument for argument in arguments if argument is not type(None))
        return dataclasses.replace(_form(held), optional=True)
    if dataclasses.is_dataclass(hint):
        declared = typing.cast("type[Any]", hint)
        hints = typing.get_type_hints(declared, include_extras=True)
        return Form("mapping", keys={name: _form(inner) for name, inner in hints.items()}, declared=declared)
    if origin is dict:
        return Form("mapping", of=_form(arguments[1]))
    return Form("list" if origin is list else "anything")


_FORMS: Mapping[Any, Form] = {
    str: Form("text"),
    int: Form("integer"),
    float: Form("number"),
    **dict.fromkeys((Flag, bool), Form("flag")),
    Explanation: Form("flag", choices=("full",), named="explanation"),
    Layout: Form("list", choices=("auto",), named="spec"),
    MeshShape: Form("list", choices=("auto",), named="sizes-of-axes"),
}


def at(key: Key) -> Form | None:
    """The form of the value at `key`; None where there is no such key."""
    form: Inner | None = root()
    for part in key:
        if isinstance(form, Form) and form.kind != "anything":
            form = form.keys.get(str(part), form.of)
    assert not isinstance(form, str)
    return form


def declared_by(config: str) -> Key:
    """The key whose mapping has the keys that the class named `config` declares; for arrays that of all of them."""
    return next(
        (name,)
        for name, form in root().keys.items()
        for each in (form, getattr(form, "of", None))
        if isinstance(each, Form) and each.declared is not None and each.declared.__name__ == config
    )


def siblings(key: Key) -> list[str]:
    """The keys that are allowed beside `key`; none where the user chooses the keys."""
    above = at(key[:-1])
    return list(above.keys) if above else []


@dataclass(frozen=True)
class ShapeMisfit:
    """An invalid key, if `name` is true, or an invalid value."""

    fault: Fault
    name: bool


def misfits(value: Any, key: Key = ()) -> Iterator[ShapeMisfit]:
    """Yield the faults of a value at `key`, in the order of the file."""
    for length in range(1, len(key) + 1):
        if at(key[:length]) is None:
            given = value if length == len(key) else None
            yield ShapeMisfit(Fault(key[:length], unknown(key[:length], given)), name=True)
            return
    yield from _misfits(value, key, at(key))


def _misfits(value: Any, key: Key, form: Inner | None) -> Iterator[ShapeMisfit]:
    assert isinstance(form, Form)
    if not _fits(value, form):
        yield ShapeMisfit(Fault(key, refusal(value, key, form)), name=False)
        return
    if form.kind == "anything" or not is_mapping(value):
        return
    for name, inner in value.items():
        below = (*key, name)
        if not isinstance(name, str):
            yield ShapeMisfit(Fault(below, _not_a_name(name)), name=True)
        elif not form.keys or name in form.keys:
            yield from _misfits(inner, below, form.keys.get(name, form.of))
        elif key or name not in _FILES:
            mesh = sizes_of_axes(value) if key == ("mesh",) else {}
            yield ShapeMisfit(Fault(below, unknown(below, inner, mesh=mesh)), name=True)
            if mesh:
                return


def sizes_of_axes(value: Any) -> dict[str, int]:
    """A mesh as Python has it, `{x: 4, y: 2}`; empty for anything else."""
    sizes: dict[str, Any] = dict(value) if is_mapping(value) else {}
    known = {*siblings(("mesh", ""))} & {*sizes}
    return {} if known or not all(isinstance(size, int) for size in sizes.values()) else sizes


def _fits(value: Any, form: Form) -> bool:
    """Whether a value is of a form. A string that spells a number is a number; an interpolation fits every form."""
    if form.named == "names":
        return not isinstance(value, Mapping)
    if form.kind == "anything" or (isinstance(value, str) and ("${" in value or value == "???")):
        return True
    if value is None:
        return form.optional
    match form.kind:
        case "mapping":
            return isinstance(value, Mapping)
        case "list":
            return isinstance(value, list) or value in form.choices or (form.named == "spec" and _is_spec(value))
        case "text":
            return not isinstance(value, Mapping | list)
        case "flag":
            return isinstance(value, bool) or (isinstance(value, str) and value.lower() in {*_FLAGS, *form.choices})
        case _:
            return not isinstance(value, bool | Mapping | list) and _number(
                value, int if form.kind == "integer" else float
            )


def _is_spec(value: Any) -> bool:
    """Whether a value is a well-formed `P(...)`."""
    if not specs.begins(value):
        return False
    try:
        specs.read(value)
    except specs.NoSpec:
        return False
    return True


def flags(config: Mapping[str, Any]) -> dict[str, bool]:
    """Return the flags among the keys of a valid configuration, as booleans."""
    keys = [name for name, form in root().keys.items() if getattr(form, "kind", "") == "flag" and name in config]
    values = {name: str(config[name]).lower() for name in keys}
    return {name: _FLAGS[value] for name, value in values.items() if value in _FLAGS}


def _number(value: Any, read: type[int] | type[float]) -> bool:
    try:
        return read(value) == value or isinstance(value, str)
    except (ValueError, TypeError, OverflowError):
        return False


GROUPS = ("hardware", "mesh", "rules", "target")
"""The keys that are config groups; an experiment's file has a value, or the name of an option."""


def is_group(name: str) -> bool:
    """Whether a config group can have this name: that of any key of an experiment but `GROUPS` is taken."""
    return name in GROUPS or name not in root().keys


def refusal(value: Any, key: Key, form: Form) -> str:
    """Return the message for a value at `key` that is not of the form."""
    name = f"'{key[-1]}'" if key else "an experiment"
    if value is None:
        cure = "; write [] for a replicated array" if form.named == "spec" else ""
        return f"{name} cannot be null: it is {_in_words(form)}{cure}"
    if form.named == "spec" and specs.begins(value):
        try:
            specs.read(value)
        except specs.NoSpec as error:
            return str(error)
    if len(key) == 3 and key[0] == "arrays" and key[-1] == "specs":
        spec = _in_yaml(value) if is_list(value) else "[x, null]"
        return f"an array has one layout: write spec: {spec}; specs are those of the leaves of a tree"
    if len(key) == 2 and key[0] == "arrays" and is_list(value):
        return f"{name} is {_in_words(form)}, not a list; write {key[1]}: {{shape: {_in_yaml(value)}}}"
    cure = ""
    if form.kind == "list" and not isinstance(value, Mapping):
        cure = _as_list(value, key, form)
    elif form.kind == "mapping":
        assigned = ASSIGNED.match(value) if isinstance(value, str) else None
        example = (
            f"{assigned[1]}: {assigned[2]}" if assigned else _EXAMPLES.get(str(key[-1])) if len(key) == 1 else None
        )
        cure = f"; write {example}" if assigned else f"; for example {example}" if example else ""
    return f"{name} is {_in_words(form)}, not {described(value)}{cure}"


ASSIGNED = re.compile(r"(\w+)\s*=(?!=)\s*(.+)")
"""A line as Python has it, `C = A @ B`."""

_EXAMPLES = {
    "mesh": "{axes: [x, y], shape: [2, 4]}",
    "dims": "{B: 8, D: 16}",
    "grad": "{of: loss, wrt: [w]}",
    "graph": "{C: A @ B}",
    "outputs": "{C: [x, null]}",
}
"""How mappings are written that people write otherwise."""

_REPLICATED = ("None", "none", "replicated", "P", "PartitionSpec")


def _as_list(value: object, key: Key, form: Form) -> str:
    """Return the end of a message: how to write a list that was written otherwise."""
    text = str(value)
    if key == ("mesh", "shape") and text.isdecimal():
        return f"; write one size for each axis, [{text}] or [{text},1]"
    if key == ("mesh", "shape") and sizes(text) is None:
        return "; write one size for each axis, [4] or [4,1]"
    if WORD.match(f"{key_text(key)}={value}"):
        return "; to sweep over every layout, add -m"
    if form.named == "spec" and text in _REPLICATED:
        return "; write [] for a replicated array"
    if form.named == "spec" and (
        sharding := re.fullmatch(r"(?:\w+\.)*NamedSharding\(.*?\b(P(?:artitionSpec)?\(.*\))\)", text)
    ):
        return f'; a spec is the PartitionSpec alone: "{sharding[1]}"'
    if text.startswith("("):
        return (
            f"; a list is in square brackets: [{text.strip('()').rstrip(', ')}{']' if text.endswith(')') else ', …]'}"
        )
    if form.named == "spec" and text.isdecimal():
        return "; write a list such as [x, null]"
    if written := sizes(text) or (f"[{text}]" if _ENTRY.fullmatch(text) and not isinstance(value, bool) else None):
        return f"; write {written}"
    return "; write a list such as [x, null]" if form.named == "spec" else ""


_ENTRY = re.compile(r"(?!nan\b|inf\b)[A-Za-z_]\w*|[1-9]\d*")
"""What may stand alone in a list of axes, of sizes or of names."""


def _in_yaml(value: Any) -> str:
    """Format a value, such as a spec, as YAML has it: `[null,x]`."""
    if is_list(value):
        return f"[{','.join(map(_in_yaml, value))}]"
    return "null" if value is None else str(value)


def _in_words(form: Form) -> str:
    if form.named == "names":
        return "a name or a list of names"
    if form.kind != "mapping":
        flags = ["true", "false", *form.choices]
        return words.listed(flags, "or") if form.kind == "flag" else _IN_WORDS.get(form.kind, "a list")
    keys = [f"'{key}'" for key in form.keys or ()]
    return f"a mapping of {', '.join(keys[:4])}{', …' if len(keys) > 4 else ''}" if keys else "a mapping of names"


def described(value: Any) -> str:
    """Describe a value in a few words, for messages."""
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else "null" if value is None else f"{value!r}"


def listed(names: Sequence[str]) -> str:
    """Return the end of a message with as many alternatives as stand in a line: `; there are x, y`."""
    if not names:
        return "; there is none yet"
    widths = itertools.accumulate(len(name) + len(", ") for name in names)
    some = names[: max(2, sum(width <= _LISTED for width in widths))]
    return f"; there {'are' if len(names) > 1 else 'is'} {', '.join(some)}{', …' if len(some) < len(names) else ''}"


_LISTED = 72
"""The columns of a list of alternatives, which a message of about a hundred columns ends with."""


def keyless(key: Key) -> str | None:
    """Return the message for a `key` below a value that has no keys, such as `mesh.shape.x`; None for any other."""
    above = at(key[:-1])
    if above is None or above.kind in ("anything", "mapping"):
        return None
    whole = f"; write it whole, {key_text(key[:-1])}=[…]" if above.kind == "list" else ""
    return f"'{key[-2]}' is {_in_words(above)} and has no key '{key[-1]}'{whole}"


_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
"""The kinds of collectives that are often counted; `forms.py`, which imports this module, has them all."""


def unknown(key: Key, value: Any = None, there: Sequence[str] = (), mesh: Mapping[str, int] | None = None) -> str:
    """Return the message for a `key` that does not exist, beside those that are `there`.

    - `mesh`: the sizes of axes for which somebody wrote the key.
    """
    if (message := keyless(key)) is not None:
        return message
    if key[:-1] == ("expect",) and (kind := str(key[-1]).replace("_", "-")) in _COLLECTIVES:
        number = value if isinstance(value, int) else 1
        return (
            f"there is no key '{key[-1]}'; collectives are counted in one key: "
            f'expect.collectives.{kind}={number}, in Python expect={{"collectives": {{"{kind}": {number}}}}}'
        )
    instead = _ELSEWHERE.get(str(key[-1]), "")
    if instead and (len(key) == 1 or (key[:-1] == ("mesh",) and instead == _MESH)):
        return f"there is no key '{key[-1]}'{instead}"
    if len(key) == 3 and key[0] == "arrays" and key[-1] in _LAYOUTS:
        return f"there is no key '{key[-1]}'; the layout of an array is its 'spec'"
    if len(key) == 1 and str(key[0]).isupper():
        name = key[0]
        return f"there is no key '{name}'; a dimension's size is dims.{name}, an array's layout arrays.{name}.spec"
    if hint := cut(key[-1]):
        return f"there is no key '{key[-1]}'{hint}"
    there = siblings(key) or there
    if mesh:
        sizes = ", ".join(map(str, mesh.values()))
        return f"there is no key '{key[-1]}'; write mesh: {{axes: [{', '.join(mesh)}], shape: [{sizes}]}}"
    near = nearest(str(key[-1]), there)
    spelling = _MESH if key[:-1] == ("mesh",) and not near else ""
    return f"there is no key '{key[-1]}'{near or listed(there)}{spelling}"


def cut(text: object) -> str:
    """Return how a text is written of which YAML has made a part at a comma; empty if it is none."""
    part = isinstance(text, str) and re.search(r"['\"()\[\]]", text)
    return "; between { and } a text with a comma is in quotes" if part else ""


_AS_MESH = (
    "; there are as many devices as the mesh has: mesh.shape=[4,2], or a mesh by its name, mesh=x4_y2; "
    "target.devices=16 simulates more than these"
)
_MESH = f"; a mesh is written {_EXAMPLES['mesh']}"
_SPECS = "; the layout of an operand is in arrays: {A: {shape: [4, 8], spec: [x, null]}}"
_RESULTS = "; the layouts of results are in outputs: {C: [x, null]}"
_DONATED = "; nothing is donated: a program runs several times on the same operands"
_LOSS = "; a gradient is written grad: {of: loss, wrt: [w]}"
_LINES = "; what one device computes is in per_device, what all compute together in graph"
_EXPECTED = "; what must hold is in expect: {max_bytes_per_device: 4096}; all other checks are made without a key"
_EXPERIMENT = "; an experiment is chosen by +experiment=case3_allreduce, and its keys stand at the top of its file"
_TOLERANCE = (
    "; none is set: an element may differ by the measured effect of rounding, and verify=twin decides in float64"
)
_LAYOUTS = ("sharding", "layout", "partition", "partition_spec", "named_sharding")
"""What the spec of an array is called elsewhere."""

_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("devices", "device_count", "n_devices", "num_devices"), _AS_MESH),
    **dict.fromkeys(("axis_names", "axis_sizes", "axis_shapes", "axes"), _MESH),
    **dict.fromkeys(("in_specs", "in_shardings", "in_axis_resources"), _SPECS),
    **dict.fromkeys(("out_specs", "out_shardings", "out_axis_resources"), _RESULTS),
    **dict.fromkeys(("donate", "donate_argnums", "donate_argnames"), _DONATED),
    **dict.fromkeys(("loss", "wrt", "gradients"), _LOSS),
    **dict.fromkeys(("checks", "check", "assert", "assertions", "tests"), _EXPECTED),
    **dict.fromkeys(("shard_map", "pmap", "body", "forward"), _LINES),
    **dict.fromkeys(("tolerance", "tol", "atol", "rtol"), _TOLERANCE),
    **dict.fromkeys(("experiment", "experiments"), _EXPERIMENT),
    **dict.fromkeys(("filter", "filters"), "; 'where' chooses the rows of a sweep's table: where='bytes_sent<1e6'"),
    **{key: f"; each array has its own: arrays.A.{key}" for key in ("dtype", "shape", "spec", "init")},
    **dict.fromkeys(("params", "inputs", "operands"), "; operands are arrays: {A: {shape: [4, 8], spec: [x, null]}}"),
}
"""What JAX and other tools call something that an experiment has, and how an experiment has it."""


def _not_a_name(name: Any) -> str:
    if isinstance(name, bool):
        return f"{name!r} is not a name; YAML reads yes, no, on and off as true and false: put it in quotes"
    return f"{name!r} is not a name; use letters, digits and '_'"
