"""Declares the form of each key once, and says how a value violates it.

`experiment/config/schema.py` has the keys that Hydra knows, the type of each, and the name of its form if the type is
not precise enough. The readers in this package validate values by these forms, and `app/cli/editor.py` generates the
JSON Schema from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from runner.base import dtypes
from runner.base.chosen import EVERYTHING
from runner.base.faults import Fault, InvalidExperiment, Key, nearest
from runner.base.untyped import is_list, is_mapping
from runner.experiment.config import shape
from runner.experiment.config.shape import Form, Inner
from runner.experiment.config.specs import WRITTEN
from runner.experiment.program import Program
from runner.graph.source import SECTIONS

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

PLATFORMS = ("cpu", "gpu", "tpu")

LEAST = ("bytes", "time", "memory")
"""The objectives that a plan can minimise."""

COSTS = ("bytes", "time")
"""What `derived` may choose by."""

VERIFY = ("auto", "twin", "rounding")

PRECISIONS = ("default", "high", "highest", "bfloat16", "tensorfloat32", "float32")

AXIS_TYPES = ("explicit", "auto")
"""The types of a mesh axis in the program `explicit`: JAX's names in lower case."""

KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
    "collective-broadcast", "send", "recv",
)  # fmt: skip
"""The kinds of collectives, as XLA calls them."""

POLICIES = (
    "nothing_saveable", "everything_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable",
    "checkpoint_dots", "checkpoint_dots_with_no_batch_dims",
)  # fmt: skip
"""The members of `jax.checkpoint_policies` that are policies themselves, without those that offload to host memory."""

BY_NAMES = ("save_only_these_names", "save_anything_except_these_names", "save_any_names_but_these")
"""The members that make a policy from names, which `checkpoint_name` gives."""

RULES = "logical_axis_rules"
AXES = "mesh_axes"
ALLOWED = "allow_dropped"
"""The keys of rules that are written as a mapping. The first two are MaxText's."""


def _any(refusal: str, *forms: Inner, optional: bool = False, by_program: bool = False) -> Form:
    return Form("any", refusal, forms=forms, optional=optional, by_program=by_program)


def _one_or_more(what: Form, refusal: str = "") -> Form:
    return _any(refusal, what, Form("list", of=what))


_TEXT = Form("text")
NAME = Form("name", "{value!r} is not a name; use letters, digits and '_'{hint}{instead}")
EXPRESSION = _any("{value!r} is not an expression{hint}", _TEXT, Form("number"))
SIZE = _any("{value!r} is not a size; write an integer, a dim, or an expression of dims", Form("integer"), _TEXT)

DEVICE = Form("integer", "{value!r} is not the number of a device; the first is 0", least=0)
_MESH_AXIS = Form("name", "{value!r} is not an axis name{hint}")
_NO_AXIS = "{value!r} is not a mesh axis, null, or a list of axes{hint}"
_AXIS = Form("text", _NO_AXIS)
_ENTRY = replace(_one_or_more(_AXIS, _NO_AXIS), optional=True)
"""An entry of a PartitionSpec or of a rule: one axis, several, or none."""
SPEC = Form(
    "list",
    "{value!r} is not a PartitionSpec; write a list such as [x, null], or P('x', None)",
    of=_ENTRY,
    written=WRITTEN,
)
_SPECS = Form("mapping", of=replace(SPEC, optional=True))
AUTO = "auto"
"""The value of a spec that the planner chooses."""
_LAYOUT = _any(SPEC.refusal, SPEC, Form("text", choices=(AUTO,)))
_LEAST_OF = Form("text", "a plan cannot minimize '{value}'", choices=LEAST)
_RULE = Form(
    "list",
    "{value!r} is not a rule; write a logical name and mesh axes, such as [embed, x]",
    parts=(Form("name", "{value!r} is not a logical name{hint}"), _ENTRY),
)
OF_MAXTEXT = Form(
    "mapping",
    keys={
        RULES: Form("list", f"'{RULES}' is a list of rules such as [embed, x], not {{value!r}}", of=_RULE),
        AXES: Form("list", "{value!r} is not a list of mesh axes", of=_MESH_AXIS, optional=True),
        ALLOWED: _any(
            "{value!r} is not true, or a list of logical names", Form("flag"), Form("list", of=_TEXT), optional=True
        ),
    },
    open=True,
    required=(RULES,),
    missing="the rules have no '{key}': a list of rules such as [embed, x]",
)

_RATE = Form("number", "{value!r} is not a rate or a size; write a number above 0", above=0)
_THINGS = Form("integer", "{value!r} is not a count; write an integer of at least 1", least=1)
_AT_LEAST_1 = Form("integer", "{value!r} is not an integer of at least 1", least=1)

RANGE = Form(
    "mapping",
    keys={"min": SIZE, "max": SIZE},
    unknown="a range has a min and a max, such as {{min: 0, max: 1}}, and no '{key}'",
    there=None,
    required=("max",),
    missing="a range has a {key}, such as {{min: 0, max: 1}}; its min is 0 where it is left out",
)

_TO_EXPRESSIONS = Form("mapping", "the {last} of a repeat maps names to expressions", of=EXPRESSION, fewest=1)
_OF_A_REPEAT: Mapping[str, Inner] = {
    "repeat": SIZE,
    "index": NAME,
    "over": _TO_EXPRESSIONS,
    "carry": _TO_EXPRESSIONS,
    "body": replace(_TO_EXPRESSIONS, of="line"),
    "stack": Form(
        "mapping",
        "the stack of a repeat maps names of results to names of the body",
        of=Form("text", "{value!r} is not a name of the body"),
        fewest=1,
    ),
    "checkpoint": "checkpoint",
    "unroll": Form("flag", "unroll is true (a Python loop) or false (jax.lax.fori_loop)"),
}
_REPEAT = Form(
    "mapping",
    keys=_OF_A_REPEAT,
    unknown="a repeat has no key '{key}'",
    there="; a repeat has ",
    required=("repeat", "body"),
    either=("carry", "stack"),
    missing="the repeat '{name}' has no '{key}'",
)
_WHILE = Form(
    "mapping",
    keys={
        "while": Form("name", "{value!r} is not the name of a carried value, which says whether another step is taken"),
        "carry": _TO_EXPRESSIONS,
        "body": _OF_A_REPEAT["body"],
    },
    unknown="a while has no key '{key}'",
    there="; a while has ",
    required=("while", "carry", "body"),
    missing="the while '{name}' has no '{key}'",
)
_SHARED_BODY = {"body": replace(_TO_EXPRESSIONS, of="shared-line")}

FORMS: Mapping[str, Form] = {
    "axes": Form("list", "the mesh has no axes", of=_MESH_AXIS, fewest=1),
    "sizes-of-axes": _any(
        "{value!r} is not a shape; write a list of the sizes of axes, or auto",
        Form(
            "list", of=Form("integer", "{value!r} is not the size of an axis; write an integer of at least 1", least=1)
        ),
        Form("text", choices=(AUTO,)),
    ),
    "devices": Form("list", of=_any("", DEVICE, "devices")),
    "types-of-axes": Form("list", of=Form("text", choices=AXIS_TYPES)),
    "platform": Form("text", "no platform '{value}'", choices=PLATFORMS),
    "slices": Form("integer", "{value!r} is not a number of slices here; write an integer of at least 1", least=1),
    "processes": Form("integer", "{value!r} is not a number of processes; write an integer of at least 1", least=1),
    "rate": _RATE,
    "rates": Form("mapping", of=_RATE),
    "latency": Form("number", "{value!r} is not a latency; write a number of seconds", least=0),
    "things": _THINGS,
    "tori": Form("integer", "{value!r} is not a number of slices; write an integer of at least 1", least=1),
    "chips": Form(
        "list", of=Form("integer", "{value!r} is not a number of chips; write an integer of at least 1", least=1)
    ),
    "shape": Form("list", of=SIZE),
    "dtype": Form(
        "text",
        "no dtype {value!r}",
        choices=dtypes.NAMES,
        meant=dtypes.MEANT,
        example="; for example float32, float16, bfloat16, int32",
    ),
    "init": _any("", _TEXT, "numbers"),
    "numbers": _any("", Form("number"), Form("flag"), Form("list", of="numbers")),
    "spec": _LAYOUT,
    "specs": Form("mapping", of=replace(_LAYOUT, optional=True)),
    "least": replace(
        _any(
            f"a plan cannot minimize {{value!r}}; there are {', '.join(LEAST)}",
            _LEAST_OF,
            Form("list", of=_LEAST_OF, fewest=1),
        ),
        optional=True,
    ),
    "cost-of-derived": Form("text", "derived has no cost {value!r}", choices=COSTS),
    "hardware-by-name": _any(
        "{value!r} is not the name of hardware; write one, such as v5p",
        _TEXT,
        Form("mapping", open=True),
        optional=True,
    ),
    "number-of-plans": Form("integer", "{value!r} is not a number of plans; write an integer of at least 0", least=0),
    "seconds-of-a-plan": Form("number", "{value!r} is not a time; write a number of seconds above 0", above=0),
    "verify-of-a-plan": _any(
        "{value!r} does not say whether candidates are run; write true, false or auto",
        Form("flag"),
        Form("text", "{value!r} is not true, false or auto", choices=(AUTO,)),
    ),
    "amount": _any(
        "{value!r} is not an amount of memory; write a number of bytes, or one with a unit: 90 GiB",
        Form("number", above=0),
        _TEXT,
        optional=True,
    ),
    "remat": _any(
        f"{{value!r}} does not say what is saved; write {AUTO}, {EVERYTHING}, or names: [hidden]",
        Form("text", choices=(AUTO, EVERYTHING)),
        Form("list", of=_TEXT),
        optional=True,
    ),
    "specs-of-leaves": Form("mapping", of=_any(SPEC.refusal, _LAYOUT, "specs-of-leaves", optional=True)),
    "imports": Form(
        "mapping", of=Form("text", "{value!r} is neither a file, such as my_models/llama.py, nor a module{hint}")
    ),
    "names": _one_or_more(_TEXT),
    "texts": Form("list", of=_TEXT),
    "files": Form("list", of=Form("text", "{value!r} is not the path of a file{hint}")),
    "one-or-more": Form("list", of=_TEXT, fewest=1),
    "targets": Form(
        "list",
        "there is no target to test; the default is [cpu]",
        of=Form("text", "{value!r} is not the name of a target{hint}"),
        fewest=1,
    ),
    "rules": _any(
        "{value!r} is not a list of rules such as [embed, x]{hint}",
        Form("list", of=_RULE),
        OF_MAXTEXT,
        optional=True,
    ),
    "sizes": Form("mapping", of=SIZE),
    "counts": Form(
        "mapping",
        "{value!r} is not a mapping of kinds to numbers, such as {{all-reduce: 1}}",
        keys=dict.fromkeys(KINDS, _any(SIZE.refusal, *SIZE.forms, RANGE)),
        unknown="there is no collective '{key}'",
        optional=True,
        by_program=True,
    ),
    "state-layout": Form("text", "{value!r} is not 'kept'", choices=("kept",), optional=True, by_program=True),
    "accuracy": Form("number", "{value!r} is not a number above 0", above=0, optional=True, by_program=True),
    "promise": Form("flag", "{value!r} is neither true nor false", optional=True, by_program=True),
    "most": replace(SIZE, optional=True, by_program=True),
    "some-lines": Form(
        "list",
        "{value!r} is not a list of lines, such as [C, ring.lhs]",
        of=_TEXT,
        optional=True,
        by_program=True,
    ),
    "layouts": replace(
        _SPECS, refusal="{value!r} is not a mapping of names to PartitionSpecs", optional=True, by_program=True
    ),
    "shares": Form(
        "mapping",
        of=Form("number", "{value!r} is not a share of the output's root mean square, such as 1e-2", above=0),
    ),
    "values": Form("mapping", of="numbers"),
    "weak": replace(_one_or_more(_TEXT), optional=True),
    "wrong": _any("", _TEXT, Form("list", of=_TEXT), Form("mapping", of=_TEXT), optional=True, by_program=True),
    "message": Form(
        "text",
        "{value!r} is not text; write a part of the message that refuses the experiment",
        fewest=1,
        optional=True,
    ),
    "programs": _any(
        "",
        Form("text", choices=("all", *Program)),
        Form("list", of=Form("text", choices=tuple(Program))),
        optional=True,
    ),
    "seed": Form("integer", "the seed must not be negative", least=0),
    "precision": Form("text", "no precision '{value}'", choices=PRECISIONS),
    "verify": Form("text", "no way to verify '{value}'", choices=VERIFY),
    "seconds": Form("number", "the timeout is a number of seconds above 0, and not infinite", above=0),
    "search": Form("number", "the search for a mistake takes a number of seconds that is 0 or more", least=0),
    "boolean": Form("flag"),
    "explanation": _any("{value!r} is not true, false or 'full'", Form("flag"), Form("text", choices=("full",))),
    "at-least-1": _AT_LEAST_1,
    "functions": Form("mapping", of=_any("", EXPRESSION, "choice", "function")),
    "section": Form("mapping", of="line"),
    "shared-section": Form("mapping", of="shared-line"),
    "line": _any("", EXPRESSION, "repeat", "while"),
    "shared-line": _any("", EXPRESSION, "choice", "shared-repeat", "shared-while"),
    "choice": Form(
        "mapping",
        "",
        keys=dict.fromkeys(SECTIONS, _any("", EXPRESSION, "shared-repeat", "shared-while")),
        unknown="a line that differs between the sections is {{graph: …, per_device: …}}; it has no '{key}'",
        there=None,
        fewest=1,
    ),
    "repeat": _REPEAT,
    "shared-repeat": replace(_REPEAT, keys={**_REPEAT.keys, **_SHARED_BODY}),
    "while": _WHILE,
    "shared-while": replace(_WHILE, keys={**_WHILE.keys, **_SHARED_BODY}),
    "function": Form(
        "mapping",
        keys={"of": _one_or_more(_TEXT), "checkpoint": "checkpoint", "result": "shared-line"},
        of="shared-line",
        required=("result",),
    ),
    "checkpoint": _any(
        "",
        Form("flag"),
        Form("text", choices=(AUTO, *POLICIES)),
        Form("mapping", keys=dict.fromkeys(BY_NAMES, _one_or_more(_TEXT)), fewest=1, most=1),
        optional=True,
    ),
}
"""The forms by the names that `experiment/config/schema.py` and other forms use for them."""


def at(key: Key) -> Form:
    """Return the form of the value at a key of an experiment. Raises `KeyError` if there is none."""
    for length in range(1, len(key) + 1):
        declared = shape.at(key[:length])
        if declared is not None and declared.named:
            form = FORMS[declared.named]
            for part in key[length:]:
                inner = form.keys.get(str(part), form.of)
                assert inner is not None, key
                form = _named(inner)
            return form
    raise KeyError(key)


def _named(form: Inner) -> Form:
    return FORMS[form] if isinstance(form, str) else form


def check(value: object, key: Key, form: Form | None = None, name: str = "") -> None:
    """Raise `InvalidExperiment` for the first fault of a value, if it does not fit its form.

    `form` is by default that of the key; `name` is what the message about a missing key calls the mapping.
    """
    fault = _misfit(value, key, form or at(key), name)
    if fault is not None and fault.message:
        raise InvalidExperiment(fault)


AS_WRITTEN = {"as written": True}
"""The metadata of a field that is a key of the file by its name and has its value."""


def as_written(kind: type[Any], config: Mapping[str, Any], key: Key = ()) -> dict[str, Any]:
    """The fields of the dataclass `kind` that are `AS_WRITTEN`, from the mapping `config` at `key`.

    Raises `InvalidExperiment` for a value that does not fit its form.
    """
    values: dict[str, Any] = {}
    for each in fields(kind):
        if "as written" in each.metadata:
            values[each.name] = config[each.name]
            declared = shape.at((*key, each.name))
            if declared is not None and declared.named:
                check(config[each.name], (*key, each.name))
    return values


def yaml_hint(value: object) -> str:
    """Return `; YAML reads yes …` for a boolean, which was perhaps meant as a text; else an empty text."""
    return "; YAML reads yes, no, on and off as true and false: put it in quotes" if isinstance(value, bool) else ""


def _line_hint(value: object) -> str:
    """Return how the line is written of which a name seems to be a part; else an empty text."""
    assigned = shape.ASSIGNED.match(value) if isinstance(value, str) else None
    if assigned is not None:
        return f"; write {assigned[1]}: {assigned[2]}"
    return shape.cut(value)


def choices(candidates: Any) -> str:
    """Return `; there are x, y`."""
    return f"; there are {', '.join(candidates)}"


def _misfit(value: object, key: Key, form: Form, name: str = "") -> Fault | None:
    """Return the first fault of a value; its message is empty if the reader raises its own."""
    if value is None and form.optional:
        return None
    if form.forms:
        return _misfit_of_any(value, key, form)
    if not _fits(value, form):
        meant = form.meant.get(str(value), str(value))
        hint = (nearest(meant, form.choices) or form.example or choices(form.choices)) if form.choices else ""
        return Fault(key, _filled(form.refusal, value, key) + hint)
    if is_list(value):
        inner = form.parts or (form.of,) * len(value)
        return _first(
            (item, (*key, i), form_of_item) for i, (item, form_of_item) in enumerate(zip(value, inner, strict=True))
        )
    if is_mapping(value):
        return _misfit_of_keys(value, key, form, name) or _first(
            (item, (*key, part), form.keys.get(part, form.of)) for part, item in value.items()
        )
    return None


def _misfit_of_any(value: object, key: Key, form: Form) -> Fault | None:
    """Return the fault inside a list or mapping if an alternative is of that kind; else the form's own refusal."""
    faults = [
        (alternative, _misfit(value, key, alternative)) for alternative in form.forms if isinstance(alternative, Form)
    ]
    if len(faults) < len(form.forms) or any(fault is None for _, fault in faults):
        return None
    container = "list" if is_list(value) else "mapping" if is_mapping(value) else None
    inside = next((fault for alternative, fault in faults if alternative.kind == container), None)
    return inside if inside is not None and inside.message else Fault(key, _filled(form.refusal, value, key))


def _misfit_of_keys(value: Mapping[str, Any], key: Key, form: Form, name: str) -> Fault | None:
    if form.keys and not form.open and form.of is None:
        for part in value:
            if part not in form.keys:
                there = form.there and form.there + ", ".join(form.keys)
                hint = "" if there is None else nearest(str(part), form.keys) or there
                return Fault((*key, part), form.unknown.format(key=part) + hint)
    lacking = [part for part in form.required if part not in value]
    lacking += [] if not form.either or any(part in value for part in form.either) else [form.either[0]]
    return Fault(key, form.missing.format(key=lacking[0], name=name)) if lacking else None


def _first(parts: Any) -> Fault | None:
    misfits = [_misfit(value, key, form) for value, key, form in parts if isinstance(form, Form)]
    faults = [fault for fault in misfits if fault is not None]
    return next((fault for fault in faults if fault.message), faults[0] if faults else None)


def _filled(refusal: str, value: object, key: Key) -> str:
    return refusal.format(value=value, hint=yaml_hint(value), instead=_line_hint(value), last=key[-1] if key else "")


def _fits(value: object, form: Form) -> bool:
    """Whether a value has the kind, the choice, the bounds and the length of a form; its items are not examined."""
    match form.kind:
        case "text" | "name":
            if not isinstance(value, str) or (form.kind == "name" and not IDENTIFIER.match(value)):
                return False
            return (not form.choices or value in form.choices) and len(value.strip()) >= (form.fewest or 0)
        case "flag":
            return isinstance(value, bool)
        case "list" | "mapping":
            if not (is_list(value) if form.kind == "list" else is_mapping(value)):
                return False
            assert is_list(value) or is_mapping(value)
            fewest, most = (len(form.parts),) * 2 if form.parts else (form.fewest or 0, form.most or math.inf)
            return fewest <= len(value) <= most
        case _:
            return _is_number(value, form)


def _is_number(value: object, form: Form) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if form.kind == "integer" else int | float):
        return False
    if form.above is not None:
        return form.above < value < math.inf
    return form.least is None or form.least <= value < math.inf
