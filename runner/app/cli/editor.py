"""`python -m runner editor CONF` writes a JSON Schema beside the experiments of a folder, which refer to it.

An editor with a YAML language server then completes the keys of an experiment and underlines invalid ones.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.app.cli import subcommands
from runner.app.cli.answers import answered
from runner.base.faults import BadInput
from runner.experiment.config import files, schema, shape
from runner.experiment.config.files import PACKAGE
from runner.experiment.config.folders import conf_folder, experiments, options_of
from runner.experiment.config.shape import Form, Inner
from runner.experiment.forms import FORMS, PLATFORMS
from runner.experiment.program import Program
from runner.graph.language import python_source

FILE = "experiment.schema.json"
"""The name of the schema's file in the config folder."""

_LINE = re.compile(r"^# yaml-language-server: .*\n", re.MULTILINE)

Schema = dict[str, Any]

_TYPES: dict[str, Schema] = {
    "text": {"type": "string"},
    "name": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "list": {"type": "array"},
    "mapping": {"type": "object"},
    "anything": {},
}
_LENGTHS = {"text": ("minLength", "maxLength"), "list": ("minItems", "maxItems")}
_INTERPOLATION: Schema = {"$ref": "#/$defs/interpolation"}


def json_schema(folder: Path | None = None) -> Schema:
    """Return the JSON Schema of an experiment's file, in the config folder `folder` or the runner's own."""
    own = _of_form(shape.root())
    folders = (conf_folder(), *([] if folder is None else [folder]))
    own["properties"] |= {group: _or_option(own["properties"][group], group, folders) for group in shape.GROUPS}
    own["properties"] |= {
        "defaults": {
            "type": "array",
            "description": "Files of the config folder that this one builds on: `override /mesh: x2_y2`.",
            "items": {"type": ["string", "object"]},
        },
        "hydra": {"type": "object", "description": "Hydra's own settings: a sweep's parameters, say."},
    }
    referred = {name: _of_form(form, name) for name, form in FORMS.items() if name in _REFERRED}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An experiment of shardproof",
        **own,
        "$defs": {**referred, "interpolation": {"type": "string", "pattern": r"\$\{"}},
    }


def _or_option(schema: Schema, group: str, folders: Sequence[Path]) -> Schema:
    """Extend the schema of a config group's key to allow the name of one of its options."""
    names = options_of(folders, group)
    described = {key: value for key, value in schema.items() if key == "description"}
    value = {key: value for key, value in schema.items() if key != "description"}
    return {**described, "anyOf": [*(value["anyOf"] if value.keys() == {"anyOf"} else [value]), {"enum": names}]}


def _inner_names(form: Form) -> Iterator[str]:
    """Yield the names of the forms inside a form."""
    for inner in (form.of, *form.parts, *form.keys.values(), *form.forms):
        if isinstance(inner, Form):
            yield from _inner_names(inner)
        elif inner is not None:
            yield inner


_REFERRED = {name for form in FORMS.values() for name in _inner_names(form)} | {
    name for name, form in FORMS.items() if form.by_program
}
"""The forms that are shared or recursive, which the schema defines once each."""


def _inside(form: Inner) -> Schema:
    """Return the schema of a form inside another form or a key; shared and recursive forms are references."""
    if not isinstance(form, str):
        return _of_form(form)
    return {"$ref": f"#/$defs/{form}"} if form in _REFERRED else _of_form(FORMS[form], form)


def _of_form(form: Form, name: str = "") -> Schema:
    if form.named:
        schema = _inside(form.named)
    else:
        schema = _merged([_inside(each) for each in form.forms]) if form.forms else _plain(form)
    if form.by_program:
        schema = _by_program(schema, {"$ref": f"#/$defs/{name}"})
    return _or_null(schema) if form.optional else schema


def _plain(form: Form) -> Schema:
    if form.written:
        return _merged([_plain(replace(form, written="")), {"type": "string", "pattern": form.written}])
    schema: Schema = {"enum": list(form.choices)} if form.choices else dict(_TYPES[form.kind])
    limits = {"minimum": form.least, "exclusiveMinimum": form.above}
    lengths = _LENGTHS.get(form.kind, ("minProperties", "maxProperties"))
    limits |= dict(zip(lengths, (len(form.parts),) * 2 if form.parts else (form.fewest, form.most), strict=True))
    schema |= {limit: number for limit, number in limits.items() if number is not None}
    inner = None if form.of is None else _or_interpolation(_inside(form.of))
    if form.parts:
        schema["items"] = [_or_interpolation(_inside(part)) for part in form.parts]
    elif form.kind == "list" and inner is not None:
        schema["items"] = inner
    if form.kind != "mapping":
        return schema
    if form.keys:
        documented = {} if form.declared is None else _documented()[form.declared.__name__]
        schema["properties"] = {
            key: documented.get(key, {}) | _or_interpolation(_inside(each)) for key, each in form.keys.items()
        }
    if inner is not None or (form.keys and not form.open):
        schema["additionalProperties"] = inner or False
    schema |= {"required": list(form.required)} if form.required else {}
    return schema | ({"anyOf": [{"required": [key]} for key in form.either]} if form.either else {})


def _by_program(schema: Schema, again: Schema) -> Schema:
    """Extend a schema with keys for programs and platforms, each with the schema `again`."""
    branches = dict.fromkeys((*Program, *PLATFORMS), again)
    if "object" not in schema.get("type", ()):
        return _merged([schema, {"type": "object", "properties": branches, "additionalProperties": False}])
    return {**schema, "properties": {**branches, **schema.get("properties", {})}}


def _merged(schemas: Sequence[Schema]) -> Schema:
    """Return a union of schemas: a single schema with several types if possible, since editors explain that better."""
    types = [kind for schema in schemas for kind in _types(schema)]
    if len(set(types)) == len(types) and all(_types(schema) and not schema.keys() & _OF_ALL for schema in schemas):
        return {**{key: value for schema in schemas for key, value in schema.items()}, "type": types}
    return {"anyOf": [*schemas]}


_OF_ALL = {"enum", "anyOf", "$ref"}
"""The keywords of a schema that constrain values of every type."""


def _types(schema: Schema) -> list[str]:
    kinds: str | list[str] = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def _or_null(schema: Schema) -> Schema:
    return schema if schema == {} else _merged([schema, {"type": "null"}])


def _or_interpolation(schema: Schema) -> Schema:
    """Extend a schema to allow an interpolation, which Hydra replaces by its value."""
    several: list[Schema] = schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]
    return schema if any(map(_is_any_text, several)) else {"anyOf": [*several, _INTERPOLATION]}


def _is_any_text(schema: Schema) -> bool:
    return schema == {} or ("string" in _types(schema) and not schema.keys() & {"enum", "pattern", "minLength"})


def _documented() -> dict[str, dict[str, Schema]]:
    """Map each class of `schema.py` to its keys, with the docstrings below them, read from the source."""
    return {
        name: {key: {"description": " ".join(text.split())} if text else {} for key, text in keys.items()}
        for name, keys in python_source.fields(inspect.getsource(schema)).items()
    }


def text(folder: Path | None = None) -> str:
    """Return the schema as the text of its file in the config folder `folder`, or the runner's own."""
    return json.dumps(json_schema(folder), indent=1, ensure_ascii=False) + "\n"


def named(file: Path, folder: Path) -> str:
    """Return an experiment's text with the line that names the schema, below Hydra's if it has one.

    Raises `UnreadableFile`.
    """
    up = "../" * len(file.relative_to(folder).parts[:-1])
    content = _LINE.sub("", files.text(file))
    first, newline, rest = content.partition("\n")
    line = f"# yaml-language-server: $schema={up}{FILE}\n"
    return f"{first}{newline}{line}{rest}" if first.strip() == PACKAGE else f"{line}{content}"


@answered
def main(arguments: Sequence[str]) -> int:
    """Write the schema into a config folder, and refer to it in its experiments. Returns the exit status."""
    parser = subcommands.parser("editor")
    parser.add_argument("folder", metavar="CONF", type=Path, nargs="?", help="by default the runner's own")
    folder: Path = parser.parse_args(list(arguments)).folder or conf_folder()
    if not (folder / "experiment").is_dir():
        what = "it has no folder 'experiment'" if folder.is_dir() else "there is no such folder"
        raise BadInput(f"{folder}\n  {what}")
    (folder / FILE).write_text(text(folder), encoding="utf-8")
    status = 0
    for file in experiments(folder):
        try:
            content = named(file, folder)
        except files.UnreadableFile as error:
            print(error, file=sys.stderr)
            status = 2
            continue
        if content != files.text(file):
            file.write_text(content, encoding="utf-8")
    print(folder / FILE)
    return status
