"""`python -m runner.editor CONF`: a config folder in; the JSON Schema beside its experiments, which name it, out.

An editor with a YAML language server then completes the keys of an experiment and underlines what cannot stand there.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner import dtypes
from runner.config import files, schema, shape
from runner.config.files import PACKAGE
from runner.config.folders import conf_folder, experiments
from runner.config.shape import Kind
from runner.experiment.checkpoints import BY_NAMES, POLICIES
from runner.experiment.expect import KINDS
from runner.experiment.layouts import AXIS_TYPES
from runner.experiment.model import PLATFORMS, PRECISIONS
from runner.experiment.program import Program

FILE = "experiment.schema.json"
"""Where in the config folder the schema lies."""

_LINE = re.compile(r"^# yaml-language-server: .*\n", re.MULTILINE)

Schema = dict[str, Any]

_TYPES: dict[str, Schema] = {
    "text": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "list": {"type": "array"},
    "anything": {},
}
_TEXT: Schema = {"type": "string"}
_SIZE: Schema = {"type": ["integer", "string"]}
_COUNT: Schema = {
    "type": ["integer", "string", "object"],
    "properties": {"min": _SIZE, "max": _SIZE},
    "required": ["max"],
    "additionalProperties": False,
}
_SIZES: Schema = {"type": "array", "items": _SIZE}
_AXES: Schema = {"type": ["string", "null", "array"], "items": _TEXT}
_SPEC: Schema = {"type": ["array", "null"], "items": _AXES}
_RULE: Schema = {"type": "array", "items": _AXES, "minItems": 2, "maxItems": 2}
_RULES: Schema = {
    "type": ["array", "object", "null"],
    "items": _RULE,
    "properties": {
        "logical_axis_rules": {"type": "array", "items": _RULE},
        "mesh_axes": {"type": "array", "items": _TEXT},
        "allow_dropped": {"type": ["boolean", "array"], "items": _TEXT},
    },
}
_LINES: Schema = {"type": ["array", "object", "null"], "items": _TEXT}
_EXPRESSION: Schema = {"type": ["string", "number"]}
_CHECKPOINT: Schema = {
    "anyOf": [
        {"type": ["boolean", "null"]},
        {"enum": list(POLICIES)},
        {
            "type": "object",
            "properties": {key: {"type": ["array", "string"], "items": _TEXT} for key in BY_NAMES},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        },
    ]
}
_REPEAT: Schema = {
    "type": "object",
    "properties": {
        "repeat": _SIZE,
        "index": _TEXT,
        "over": {"type": "object", "additionalProperties": _EXPRESSION},
        "carry": {"type": "object", "additionalProperties": _EXPRESSION},
        "body": {"type": "object", "additionalProperties": {"$ref": "#/$defs/line"}},
        "stack": {"type": "object", "additionalProperties": _TEXT},
        "checkpoint": _CHECKPOINT,
        "unroll": {"type": "boolean"},
    },
    "required": ["repeat", "body"],
    "anyOf": [{"required": ["carry"]}, {"required": ["stack"]}],
    "additionalProperties": False,
}
_SECTION: Schema = {"additionalProperties": {"$ref": "#/$defs/line"}}
_SHARED: Schema = {"additionalProperties": {"$ref": "#/$defs/shared"}}
"""Lines of which each section may have its own, and functions."""

_COUNTS: Schema = {
    "type": ["object", "null"],
    "properties": {name: {"$ref": "#/$defs/counts"} for name in (*Program, *PLATFORMS)} | dict.fromkeys(KINDS, _COUNT),
    "additionalProperties": False,
}

_COMMUNICATION: dict[str, Schema] = {
    "collectives": _COUNTS,
    "no_collectives": {"type": ["boolean", "object", "null"]},
    "max_bytes_per_device": {"type": ["integer", "string", "object", "null"]},
}

_NARROWER: dict[tuple[str, ...], Schema] = {
    ("mesh", "axes"): {"items": _TEXT},
    ("mesh", "shape"): {"items": {"type": "integer", "minimum": 1}},
    ("mesh", "types"): {"items": {"enum": list(AXIS_TYPES)}},
    ("mesh", "devices"): {"items": {"type": ["integer", "array"]}},
    ("target", "platform"): {"enum": list(PLATFORMS)},
    ("target", "slices"): {"minimum": 1},
    ("hardware", "flops"): {"additionalProperties": {"type": "number", "exclusiveMinimum": 0}},
    ("hardware", "shape"): {"items": {"type": "integer", "minimum": 1}},
    ("rules",): _RULES,
    ("dims",): {"additionalProperties": _SIZE},
    ("verify_dims",): {"additionalProperties": _SIZE},
    ("require",): {"items": _TEXT},
    ("arrays", "*", "shape"): {"items": _SIZE},
    ("arrays", "*", "dtype"): {"enum": list(dtypes.NAMES)},
    ("arrays", "*", "init"): {"type": ["string", "number", "boolean", "array"]},
    ("arrays", "*", "spec"): {"items": _AXES},
    ("functions",): _SHARED,
    ("both",): _SHARED,
    ("graph",): _SECTION,
    ("per_device",): _SECTION,
    ("manual",): {"items": _TEXT, "minItems": 1},
    ("constraints",): {"additionalProperties": _SPEC},
    ("outputs",): {"additionalProperties": _SPEC},
    ("grad", "wrt"): {"type": ["string", "array"], "items": _TEXT},
    ("expect", "values"): {"additionalProperties": {"type": ["number", "boolean", "array", "string"]}},
    **{("expect", *of, name): form for of in ((), ("lowered",), ("planned",)) for name, form in _COMMUNICATION.items()},
    ("expect", "max_memory_bytes"): {"type": ["integer", "string", "object", "null"]},
    ("expect", "overlapped"): _LINES,
    ("expect", "not_overlapped"): _LINES,
    ("expect", "layouts"): {"type": ["object", "null"]},
    ("expect", "sections"): {"additionalProperties": {"type": "number", "exclusiveMinimum": 0}},
    ("expect", "weak"): {"type": ["string", "array", "null"], "items": _TEXT},
    ("expect", "wrong"): {"type": ["string", "array", "object", "null"]},
    ("test", "targets"): {"items": _TEXT, "minItems": 1},
    ("program",): {"anyOf": [{"enum": ["all", *Program]}, {"type": "array", "items": {"enum": [*Program]}}]},
    ("best",): {"minimum": 1},
    ("workers",): {"minimum": 1},
    ("seed",): {"minimum": 0},
    ("precision",): {"enum": list(PRECISIONS)},
    ("timeout",): {"exclusiveMinimum": 0},
}
"""What a type of `schema.py` cannot say of its key, and `experiment/reader.py` checks; `*` is a name of the user's."""


def json_schema() -> Schema:
    """The JSON Schema of an experiment's file."""
    own = _below(_of(shape.root(), (), "ExperimentConfig"))
    own["properties"] |= {
        "defaults": {
            "type": "array",
            "description": "Files of the config folder that this one builds on: `override /mesh: x2_y2`.",
            "items": {"type": ["string", "object"]},
        },
        "hydra": {"type": "object", "description": "Hydra's own settings: a sweep's parameters, say."},
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An experiment of shardproof",
        **own,
        "$defs": {
            "line": {"anyOf": [_EXPRESSION, _below(_REPEAT)]},
            "shared": {"type": ["string", "number", "object"]},
            "counts": _below(_COUNTS),
            "interpolation": {"type": "string", "pattern": r"\$\{"},
        },
    }


def _below(schema: Schema) -> Schema:
    """A schema whose inner values may also be interpolations, which become what they lead to."""
    schema = dict(schema)
    if "properties" in schema:
        schema["properties"] = {key: _or_interpolation(_below(inner)) for key, inner in schema["properties"].items()}
    for part in ("additionalProperties", "items"):
        if isinstance(schema.get(part), dict):
            schema[part] = _or_interpolation(_below(schema[part]))
    return schema


def _or_interpolation(schema: Schema) -> Schema:
    kinds = schema.get("type", "string")
    if ("string" in kinds or "$ref" in schema) and "enum" not in schema:
        return schema
    description = {key: schema.pop(key) for key in ("description",) if key in schema}
    return {**description, "anyOf": [schema, {"$ref": "#/$defs/interpolation"}]}


def _of(kind: Kind, path: tuple[str, ...], config: str | None = None) -> Schema:
    schema: Schema
    if kind.name != "mapping":
        schema = dict(_TYPES[kind.name])
    elif kind.keys is None:
        assert kind.items is not None
        schema = {"type": "object", "additionalProperties": _of(kind.items, (*path, "*"))}
    else:
        said = _documented()
        config = config or next(name for name, keys in said.items() if list(keys) == list(kind.keys))
        properties = {key: said[config][key] | _of(inner, (*path, key)) for key, inner in kind.keys.items()}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
    schema |= _NARROWER.get(path, {})
    if kind.optional and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    return schema


def _documented() -> dict[str, dict[str, Schema]]:
    """Per class of `schema.py` its keys, each with the text below it as its description: only its source has that."""
    properties: dict[str, dict[str, Schema]] = {}
    for node in ast.parse(inspect.getsource(schema)).body:
        if isinstance(node, ast.ClassDef):
            keys = properties.setdefault(node.name, {})
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    keys[line.target.id] = {}
                elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and keys:
                    keys[list(keys)[-1]] = {"description": " ".join(inspect.cleandoc(str(line.value.value)).split())}
    return properties


def text() -> str:
    """The schema as its file has it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def named(file: Path, folder: Path) -> str:
    """The text of an experiment of `folder` with the line that names the schema, below Hydra's. Raises `Unread`."""
    up = "../" * len(file.relative_to(folder).parts[:-1])
    content = _LINE.sub("", files.text(file))
    first, newline, rest = content.partition("\n")
    if first.strip() != PACKAGE:
        return content
    return f"{first}{newline}# yaml-language-server: $schema={up}{FILE}\n{rest}"


def main(arguments: Sequence[str]) -> int:
    """Write the schema into a config folder, and its name into its experiments. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m runner.editor",
        description="Write the JSON Schema of experiments into a config folder, and its name into its experiments.",
        epilog="Exit status: 0 done, 2 bad input; an experiment that cannot be read is left as it is.",
    )
    parser.add_argument("folder", metavar="CONF", type=Path, nargs="?", help="by default the runner's own")
    folder: Path = parser.parse_args(list(arguments)).folder or conf_folder()
    if not (folder / "experiment").is_dir():
        print(f"{folder}\n  it has no folder 'experiment'", file=sys.stderr)
        return 2
    (folder / FILE).write_text(text(), encoding="utf-8")
    status = 0
    for file in experiments(folder):
        try:
            content = named(file, folder)
        except files.Unread as error:
            print(error, file=sys.stderr)
            status = 2
            continue
        if content != files.text(file):
            file.write_text(content, encoding="utf-8")
    print(folder / FILE)
    return status
