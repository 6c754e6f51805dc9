"""Turns an error of Hydra's or OmegaConf's into one message: where, the mistake, and what to write instead.

Hydra names neither file nor line, and reports the last of several errors. So the files and overrides that it was to
compose are checked first, one by one.
"""

from __future__ import annotations

import difflib
import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from runner.base.faults import Fault, Key, key_text, nearest
from runner.base.invocation import invocation
from runner.base.untyped import is_dict, is_list
from runner.base.words import listed, shown
from runner.experiment.config import files, quoting, shape, specs
from runner.experiment.config.files import Layer
from runner.experiment.config.folders import is_there, options_of
from runner.experiment.config.shape import ShapeMisfit
from runner.experiment.config.sources import Sources, key_place, listing, one_by_one, text_at, text_place


def _choices(overrides: Sequence[str], folders: Sequence[Path]) -> dict[str, str]:
    """The options that the overrides choose of config groups, read from the overrides because composition failed."""
    chosen: dict[str, str] = {}
    for override in overrides:
        name, _, value = override.lstrip("+").partition("=")
        if any((folder / name).is_dir() for folder in folders):
            chosen[name] = value
    return chosen


def report(error: Exception, folders: Sequence[Path], overrides: Sequence[str]) -> str:
    """Return the message for an error that ended the composition; reraise an error that the user did not cause."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    from runner.experiment.config import trust

    if isinstance(error, OverrideParseException):
        return _of_json(error.override) or quoting.refused(error.override)
    if isinstance(error, trust.Untrusted):
        return str(error)
    sources = Sources((), tuple(overrides), tuple(folders), _choices(overrides, folders))
    message = _of_files(sources, folders) or _of_overrides(overrides, folders)
    if message is not None:
        return message
    yaml_error = _caused_by(error, yaml.YAMLError)
    if yaml_error is not None:
        return _of_yaml(yaml_error)
    missing = _caused_by(error, MissingConfigException)
    if missing is not None and missing.missing_cfg_file is not None:
        return _of_missing(str(missing.missing_cfg_file), sources, folders)
    for layer in sources.layers:
        if (unread := files.unread(layer.file)) is not None:
            # Hydra's loader raised something other than a YAMLError for this file.
            return _of_yaml(unread, layer.file)
    if _caused_by(error, HydraException, OmegaConfBaseException) is None:
        message = _of_hydra(error, sources)
        if message is None:
            raise error
        return message
    return _of_defaults(error, sources) or of_config(error, sources)


def _may_be_added(key: Key) -> bool:
    return key[1] != "collectives" and (key[0] == "functions" or str(key[1]).isidentifier())


def _of_json(override: str) -> str | None:
    """Return the message for an override in JSON or in Python's syntax, which Hydra does not parse; else None."""
    if (given := quoting.refused_json(override)) is None:
        return None
    key, value = given
    misfit = next(shape.misfits(value, key), None)
    if misfit is not None:
        # `Sources` finds a key in the overrides that Hydra parses, and this is none.
        message = of_misfit(misfit, Sources((), (override,)))
        return re.sub(r"\Aconfiguration\b", lambda _: f"command line: {override}", message) if misfit.name else None
    written = quoting.for_shell(f"{override.partition('=')[0]}={quoting.for_hydra(value)}")
    if re.search(r"""[{,]\s*("[^"]*"|'[^']*')\s*:""", override):
        return f"command line: {override}\n  Hydra's grammar has no quotes around keys: write {written}"
    return f"command line: {override}\n  Hydra reads an expression only in quotes: write {written}"


def _of_choices(content: dict[str, Any]) -> Fault | None:
    """Remove from a file's content what chooses other files, and check its form before Hydra looks these up."""
    twice = files.chosen_twice(content)
    for group in files.options(content):
        del content[group]
    fault = _of_entries(content.pop("defaults", []))
    if fault is None and twice is not None:
        return Fault((twice,), f"'{twice}' is chosen in 'defaults' too: keep one of them")
    return fault


def _of_entries(defaults: object) -> Fault | None:
    """Check the form of a defaults list."""
    like = "such as [override /mesh: x2_y2]"
    if not is_list(defaults):
        return Fault(("defaults",), f"'defaults' is a list, {like}, not {shape.described(defaults)}")
    for i, entry in enumerate(defaults):
        if not isinstance(entry, str | dict):
            message = f"an entry of 'defaults' is a name or a mapping, {like}, not {shape.described(entry)}"
            return Fault(("defaults", i), message)
    return None


def of_misfit(misfit: ShapeMisfit, sources: Sources) -> str:
    """Return the message for an invalid key or value, with the file or override that has it."""
    fault = misfit.fault
    if not misfit.name:
        return sources.report(fault)
    if (override := _below(fault.key, sources.overrides)) is not None:
        return f"command line: {override}  {key_text(fault.key)}\n  {fault.message}"
    places = (key_place(layer.file, fault.key[len(layer.package) :]) for layer in reversed(sources.layers))
    place = next((place for place in places if place is not None), "configuration")
    # A name that YAML read as another type is not spelled like that in the file.
    written = fault.key if isinstance(fault.key[-1], str) else fault.key[:-1]
    return f"{place}  {key_text(written)}".rstrip() + f"\n  {fault.message}"


def _of_files(sources: Sources, folders: Sequence[Path]) -> str | None:
    """Return the message for the first file that is unreadable or has an invalid key or value."""
    from runner.experiment.config import trust

    for layer in sources.layers:
        refused = files.refusal(layer.file, experiment=files.is_experiment(layer.group))
        if refused is not None:
            return refused
        content = files.content(layer.file)
        fault = _of_choices(content) if is_dict(content) and layer.package == () else None
        if fault is None and is_dict(content) and layer.file.parent not in folders:
            fault = trust.of_file(content)
        if fault is not None:
            return Sources((Layer(layer.file),)).report(fault)
        for misfit in shape.misfits(content, layer.package) if isinstance(content, dict) else ():
            return of_misfit(misfit, Sources((layer,)))
    return None


def _of_overrides(overrides: Sequence[str], folders: Sequence[Path]) -> str | None:
    """Return the message for the first override whose key or value is invalid."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    groups = config_groups(folders)
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        text, name = str(override.input_line), override.key_or_group
        if override.is_hydra_override() or override.is_delete() or override.is_sweep_override():
            continue
        if not name:
            return f"command line: {text}\n  this has no key; an override is KEY=VALUE, such as dims.B=8"
        value: Any = override.value()
        if name in groups and not isinstance(value, str):
            known = shape.at((name,))
            keys = ", ".join(f"{name}.{key}" for key in known.keys or ()) if known else ""
            message = f"'{name}' is the name of a file in {name}/, not {shape.described(value)}"
            if name == "mesh" and (sizes := shape.sizes_of_axes(value)):
                named, counts = ",".join(sizes), ",".join(map(str, sizes.values()))
                return f"command line: {text}\n  {message}; write mesh.axes=[{named}] mesh.shape=[{counts}]"
            if name == "mesh" and isinstance(value, int):
                written = f"mesh.shape=[{value}], or mesh.shape=[{value},1] for two"
                return f"command line: {text}\n  {message}; for the sizes of its axes write {written}"
            if name == "mesh" and is_list(value) and all(isinstance(size, int) for size in value):
                sizes = ",".join(map(str, value))
                return f"command line: {text}\n  {message}; for the sizes of its axes write mesh.shape=[{sizes}]"
            if options := options_of(folders, name):
                message += f"; to choose one write {name}={options[0]}"
            return f"command line: {text}\n  {message}{f'; its keys are {keys}' if keys else ''}"
        if name in groups:
            continue
        for misfit in shape.misfits(value, tuple(_parts(name))):
            return of_misfit(misfit, Sources((), (text,)))
    return None


def _of_defaults(error: Exception, sources: Sources) -> str | None:
    """Report a group chosen twice or overridden where none is chosen, or several values without `--multirun`."""
    text = str(error)
    if ambiguous := re.match(r"Ambiguous value for argument '(.*)'", text):
        return quoting.ambiguous(ambiguous.group(1), shape.GROUPS)
    if swept := re.match(r"Sweep parameters '(.*)' requires --multirun", text):
        return f"command line: {swept.group(1)}\n  these are several values: add -m to run them all"
    if twice := re.match(r"(\S+) appears more than once in the final defaults list|Multiple values for (\S+)\.", text):
        group = twice.group(1) or twice.group(2)
        chosen = [override for override in sources.overrides if quoting.name(override) == group]
        if len(chosen) > 1:
            return f"command line: {' '.join(chosen)}\n  '{group}' is chosen twice; name one"
        if chosen:
            written = chosen[0].lstrip("+")
            return f"command line: {chosen[0]}\n  there is a {group} already; to choose another write {written}"
        option = text.rpartition(": ")[2].rstrip("'")
        place = _where(option, group, sources)
        return f"{place}\n  there is a {group} already; to choose another write: override /{group}: {option}"
    if forced := re.match(r"force-add of config groups is not supported: '\++(.*)'", text):
        written = forced.group(1)
        return f"command line: ++{written}\n  '{quoting.name(written)}' chooses a file: write {written}"
    if deleted := re.match(r"Could not delete '([^']*)'\. No match in the defaults list", text):
        name = deleted.group(1)
        return f"command line: ~{name}\n  no option of '{name}' is chosen, so there is none to delete"
    if unmatched := re.match(r"In '(\S+)': Could not override '([^']*)'", text):
        config, named = unmatched.groups()
        group = named.partition("@")[0].rpartition("/")[2]
        made_of = [layer.file for layer in sources.layers]
        file = next((file for file in made_of if file.with_suffix("").as_posix().endswith(config)), None)
        place = text_place(file, group) if file else "configuration"
        return f"{place}\n  there is no config group '{named.partition('@')[0]}' to override here{_groups(group)}"
    return None


def _of_hydra(error: Exception, sources: Sources) -> str | None:
    """Report Hydra settings, such as those of logging, that made Hydra fail; None for any other error."""
    if isinstance(error, OSError):
        # An error of the operating system, not of a setting.
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    if "hydra" not in packages or {"runner", "hydra_plugins"} & {*packages[_last(packages, "hydra") :]}:
        return None
    called = {frame.f_code.co_name for frame in frames}
    key: Key = next((key for names, key in _READERS if names <= called), ("hydra",))
    causes = [str(each).strip() for each in (error, error.__cause__) if each is not None and str(each).strip()]
    message = f"Hydra cannot use this: {': '.join(causes) or type(error).__name__}"
    names = {override: quoting.name(override).replace("/", ".") for override in sources.overrides}
    settings = [override for override, name in names.items() if f"{name}.".startswith(f"{key_text(key)}.")]
    if settings:
        return f"command line: {' '.join(settings)}\n  {message}"
    place = next((place for layer in reversed(sources.layers) if (place := key_place(layer.file, key))), None)
    return None if place is None else f"{place}  {key_text(key)}\n  {message}"


_READERS: tuple[tuple[set[str], Key], ...] = (
    ({"configure_log", "getLogger"}, ("hydra", "verbose")),
    ({"run_job", "configure_log"}, ("hydra", "job_logging")),
    ({"configure_log"}, ("hydra", "hydra_logging")),
    ({"_load_configuration_impl"}, ("hydra", "job")),
)
"""Names of Hydra functions on the traceback, and the key of the settings that these read."""


def _last(texts: Sequence[str], text: str) -> int:
    return len(texts) - 1 - texts[::-1].index(text)


def config_groups(folders: Sequence[Path]) -> set[str]:
    """The names of the config groups: the subfolders with YAML files, so not `functions`."""
    # Two levels only: a config folder may be a home folder, and walking that would take too long.
    return {
        entry.name
        for folder in folders
        for entry in folder.iterdir()
        if any(entry.glob("*.yaml")) or any(entry.glob("*/*.yaml"))
    }


def _groups(group: str) -> str:
    """Return the end of a message: how to choose an option of `group`, or which groups exist."""
    there = shape.GROUPS
    return f"; write: override /{group}: …" if group in there else nearest(group, there) or shape.listed(there)


def _caused_by(error: BaseException | None, *kinds: type[Any]) -> Any:
    while error is not None:
        if isinstance(error, kinds):
            return error
        error = error.__cause__ or error.__context__
    return None


def _of_yaml(error: yaml.YAMLError, file: Path | None = None) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = "configuration"
    if mark is not None:
        where = f"{shown(file or Path(mark.name))}:{mark.line + 1}:{mark.column + 1}"
    duplicate = re.match(r"found duplicate key (.*)", problem)
    message = f"the key '{duplicate.group(1)}' appears twice" if duplicate else f"not YAML: {problem}"
    context = getattr(error, "context", None)
    opened = getattr(error, "context_mark", None)
    if problem.startswith("found character '\\t'"):
        message = "not YAML: a tab; YAML is indented with spaces"
    elif context in _BRACKETS and opened is not None:
        bracket, where_opened = _BRACKETS[context], f"{opened.line + 1}:{opened.column + 1}"
        message = (
            f"not YAML: {problem.partition(', but got')[0]}, to go on in the '{bracket}' at {where_opened} or close it"
        )
    elif problem == "mapping values are not allowed here":
        message = (
            "not YAML: no key can begin here; keys of one mapping begin in one column, a text with ': ' is in quotes"
        )
    elif (
        problem == "expected <block end>, but found '<block mapping start>'" and mark is not None and opened is not None
    ):
        columns = f"{mark.column} spaces, and the keys above by {opened.column}"
        message = f"not YAML: this key is indented by {columns}; a mapping's keys begin in one column"
    elif problem == "expected <block end>, but found '<scalar>'":
        message = "not YAML: the text in quotes ends before this; inside of double quotes write single ones"
    elif context == "while scanning an alias":
        message = "not YAML: '*' begins the name of an alias; a dimension that no axis shards is null"
    elif context and not duplicate:
        message += f", {context}"
    if mark is not None and not duplicate and (spec := _spec_in(file or Path(mark.name), mark.line)):
        message += f"; between {{ and }} a PartitionSpec is in quotes: {spec}"
    return f"{where}\n  {message}"


_BRACKETS = {"while parsing a flow sequence": "[", "while parsing a flow mapping": "{"}
"""What the parser was reading when it met something else, and the bracket with which that began."""


def _spec_in(file: Path, number: int) -> str | None:
    """The first `P(...)` without quotes in line `number` (from 0) of a file, in quotes."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if is_there(file) else []
    return specs.quoted_in(lines[number]) if number < len(lines) else None


def _of_missing(missing: str, sources: Sources, folders: Sequence[Path]) -> str:
    """Return the message for a config group, or an option of one, that does not exist."""
    group, _, option = missing.removesuffix(".yaml").rpartition("/")
    named = [file for folder in folders if os.path.lexists(file := folder / group / f"{option}.yaml")]
    if named:
        # Hydra skips what is not a regular file.
        return files.refusal(named[0], experiment=False) or f"{shown(named[0])}\n  Hydra does not find it"
    there = options_of(folders, group) if group else []
    where = _where(option, group, sources)
    if not there and group.startswith("experiment/"):
        return f"{where}\n  there is no config group '{group}'{_groups(group.rpartition('/')[2])}"
    if not there:
        groups = sorted(config_groups(folders) - {"hydra"})
        name = group or option
        return f"{where}\n  there is no config group '{name}'{nearest(name, groups) or shape.listed(groups)}"
    if group == "mesh" and re.search(r"[\[(,]", option):
        return f"{where}\n  'mesh' is the name of a file in mesh/, or written {mesh_in(option)}, not '{option}'"
    if group == "mesh" and option == "all":
        return f"{where}\n  no mesh 'all'; mesh.shape=all is every shape of the experiment's mesh"
    sizes = [name for name in there if name.startswith(f"{option}_")] or _of_sizes(
        option, there if group == "mesh" else ()
    )
    if group == "experiment":
        return f"{where}\n  no experiment '{option}'{experiment_meant(option, folders) or elsewhere()}"
    if group == "mesh" and where.startswith("command line") and (shape_of_axes := quoting.sizes(option)):
        return f"{where}\n  no mesh '{option}'; for the sizes of its axes write mesh.shape={shape_of_axes}"
    if group == "mesh" and re.fullmatch(r"\d+(x\d+)+", option):
        written = mesh_in(option.replace("x", " "))
        return f"{where}\n  no mesh '{option}'; with the names of your axes write mesh: {written}"
    meant = "" if sizes else nearest(option, there)
    return f"{where}\n  no {group} '{option}'{meant or shape.listed(sizes or there)}"


def mesh_in(text: str) -> str:
    """Return a mesh in YAML with the sizes and the names in a text, such as `jax.make_mesh((2, 4), ('x', 'y'))`."""
    sizes, names = re.findall(r"\b\d+\b", text), re.findall(r"['\"](\w+)['\"]", text)
    sizes = sizes or ["2", "4"][: len(names) or 2]
    names = names if len(names) == len(sizes) else ["x", "y", "z"][: len(sizes)]
    return f"{{axes: [{', '.join(names)}], shape: [{', '.join(sizes)}]}}"


def _of_sizes(option: str, meshes: Sequence[str]) -> list[str]:
    """Return the meshes with the sizes in an option that is called by its sizes alone, such as `2x2`."""
    sizes = re.findall(r"\d+", option)
    return (
        [name for name in meshes if re.findall(r"\d+", name) == sizes]
        if re.fullmatch(r"\d+([x_,]\d+)*", option)
        else []
    )


_SECTIONS = ("graph", "per_device", "both")
"""The keys whose keys are names of lines."""

_NEAR, _SURE, _BEGINNING = 3, 0.85, 0.8
"""The most names that are suggested; from what similarity on only the nearest is; the least of a beginning alone."""


def experiment_meant(option: str, folders: Sequence[Path]) -> str:
    """Return `; did you mean 'NAME'?` for a file here, or experiments with a similar name or `source`."""
    if is_there(file := Path(f"{option}.yaml")):
        return f"; did you mean the file '{file}'?"
    called: dict[str, tuple[str, str]] = {}
    shared: set[str] = set()
    for name, _, file in listing(folders):
        source = text_at(file, "source")
        # `MinText, Tutorial 1, section 3.5, matmul_case4_allgather_B`; a part that several share names no experiment.
        for part in re.split(r", | and ", re.sub(r"\bsection [\d.]+", "", source)):
            own = part.strip(' "').lower()
            shared |= {own} & called.keys()
            called[own] = name, f" ({source})"
    called |= dict.fromkeys(shared, ("", ""))
    called |= {name.lower(): (name, "") for name, _, _ in listing(folders)}
    wanted = option.lower()
    close = [
        name
        for name in difflib.get_close_matches(wanted, called, n=_NEAR)
        # A source is not a name: it is suggested only if it is nearly the same.
        if called[name][1] == "" or difflib.SequenceMatcher(None, wanted, name).ratio() >= _SURE
    ]
    if close and difflib.SequenceMatcher(None, wanted, close[0]).ratio() >= _SURE:
        close = close[:1]
    else:
        names_alone = [name for name, (full, source) in called.items() if full and source == ""]
        beginnings = [name for name in names_alone if _alike(wanted, name[: len(wanted)])]
        close = [name for name in names_alone if wanted in name] or close or beginnings
    meant = dict(called[name] for name in close[:_NEAR] if called[name][0])
    names = [f"'{name}'{source}" for name, source in meant.items()]
    return f"; did you mean {listed(names, 'or')}?" if names else ""


def _alike(word: str, other: str) -> bool:
    return difflib.SequenceMatcher(None, word, other).ratio() >= _BEGINNING


def elsewhere() -> str:
    """Return the end of a message about an experiment that does not exist: where the names are."""
    return f"; {invocation()} list names those there are"


def _where(option: str, group: str, sources: Sources) -> str:
    group = group.removeprefix("experiment/")
    for override in reversed(sources.overrides):
        name, _, value = override.lstrip("+").partition("=")
        if name == group and option in value:
            return f"command line: {override}"
    for layer in reversed(sources.layers):
        key = (group,)
        value = Sources((layer,)).place(key) if layer.package == () else None
        if value is not None and value != key_place(layer.file, key):
            return f"{value}  {group}"
        choice = rf"\b{re.escape(group)}\s*:\s*['\"]?"
        if re.search(rf"{choice}{re.escape(option)}(?![\w-])", layer.file.read_text("utf-8", "replace")):
            return str(text_place(layer.file, option, choice))
    return "configuration"


def of_config(error: Exception, sources: Sources) -> str:
    """Return the message for an unknown key, a value of the wrong type, or an interpolation of a missing key."""
    from omegaconf.errors import OmegaConfBaseException

    inner = _caused_by(error, OmegaConfBaseException)
    text = str(inner or error)
    full_key = getattr(inner, "full_key", None) or ""
    key: Key = tuple(_parts(full_key))
    if assigned := re.search(r"(\w+) is not a subclass of (\w+)\. value: (.*)", text):
        return _of_type(assigned[1], assigned[2], assigned[3], key, sources)
    if key == ("_dummy_",) and (choice := next((each for each in sources.overrides if "${" in each), None)):
        # Hydra resolves the choices of config groups before there is a configuration.
        name = quoting.name(choice)
        return f"command line: {choice}\n  '{name}' chooses a file by its name, which cannot be an interpolation"
    unknown = re.search(r"Key '([^']*)' (?:not in|is not in struct)", text)
    if unknown:
        key = key or (unknown.group(1),)
        siblings = shape.siblings(key) or sources.names(key[:-1])
        message = shape.unknown(key, there=siblings)
        if key[:-1] == ("arrays",):
            message = f"there is no array '{key[-1]}'{nearest(str(key[-1]), siblings) or shape.listed(siblings)}"
        override = sources.override(key) or _below(key, sources.overrides)
        among = next((written for written in siblings if key[-1] in one_by_one(written)), None)
        if among and key[0] == "arrays":
            message = f"'{key[-1]}' is in '{among}'; to change it alone, give it a line of its own: {key[-1]}: {{}}"
        elif override and len(key) > 1 and key[0] in _SECTIONS and siblings and not str(key[1]).isidentifier():
            line, line_text = siblings[0], override.partition("=")[2]
            message = f"'{key[1]}' is no name of a line; write {key[0]}.{line}={line_text}"
        elif override and len(key) > 1 and _may_be_added(key) and not (shape.siblings(key) or shape.keyless(key)):
            whole = _ADDED.format(name=key[1]) if key[0] == "arrays" else f"a name, write ++{override.lstrip('+')}"
            message += f"{' To' if message.endswith('?') else '; to'} add {whole}"
        if override is not None:
            return f"command line: {override}  {key_text(key)}\n  {message}"
        for layer in reversed(sources.layers):
            below = key[len(layer.package) :] if key[: len(layer.package)] == layer.package else key
            place = key_place(layer.file, below)
            if place is not None:
                return f"{place}  {'.'.join(map(str, key))}\n  {message}"
        return sources.report(Fault(key, message))
    if "Could not override" in str(error) or "Could not override" in text:
        named = re.search(r"Could not override '([^']*)'", str(error) + text)
        name = named.group(1) if named else ""
        siblings = shape.siblings(tuple(_parts(name)))
        last = name.split(".")[-1]
        override = next((o for o in sources.overrides if o.lstrip("+~").startswith(name)), name)
        return f"command line: {override}\n  there is no key or config group '{name}'{nearest(last, siblings)}"
    if key and "does not support deletion" in text:
        change = f"'{key[-1]}' is a key that always has a value: change it, {full_key}=…"
        return sources.report(Fault(key, change))
    if key and text.startswith("Cannot merge "):
        # OmegaConf has the same words for both.
        mapping = (sources.override(key) or "").partition("=")[2].lstrip().startswith("{")
        kinds = ("list", "mapping") if mapping else ("mapping", "list")
        layout = f"; a layout is {full_key}=[x,null]" if mapping and key[0] in ("outputs", "constraints") else ""
        return sources.report(Fault(key, f"'{key[-1]}' is a {kinds[0]}, not a {kinds[1]}{layout}"))
    return _of_override(str(error), sources.overrides) or sources.report(Fault(key, _sentence(text)))


def _of_override(text: str, overrides: Sequence[str]) -> str | None:
    """Report an override that adds a key with a value, or deletes one that is not there or has another value."""
    for pattern, message in _OVERRIDES.items():
        if matched := re.search(pattern, text):
            name = matched.group(1)
            override = next(written for written in overrides if quoting.name(written) == name)
            text = message.format(*matched.groups(), written=override[1:])
            return f"command line: {override}  {name}\n  {text}"
    return None


_OVERRIDES = {
    r"Could not append to config\. An item is already at '([^']*)'": (
        "'{0}' has a value already; to change it, write {written}"
    ),
    r"Could not delete from config\. '([^']*)' does not exist": "there is no '{0}' to delete",
    r"Could not delete from config\. The value of '([^']*)' is (.*) and not (.*)\.": (
        "the value of '{0}' is {1}, not {2}; to delete it whatever it is, write ~{0}"
    ),
}


_ADDED = "an array, write it whole: '++arrays={{{name}: {{shape: [4], spec: [x]}}}}'"
"""How to add an array on the command line: OmegaConf refuses the keys of an array that is not there."""


def _of_type(given: str, config: str, value: str, key: Key, sources: Sources) -> str:
    """Return the message for a value of type `given` where a mapping of the keys that `config` declares is expected."""
    key = (*shape.declared_by(config), *key[-1:]) if config == _OF_ARRAYS else shape.declared_by(config)
    override = _below(key, sources.overrides)
    if config == _OF_ARRAYS and given == "dict" and override is not None:
        names = sources.names(key[:-1])
        message = f"there is no array '{key[-1]}'{shape.listed(names)}; to add {_ADDED.format(name=key[-1])}"
        return f"command line: {override}  {key_text(key)}\n  {message}"
    kind = shape.at(key)
    assert kind is not None
    return of_misfit(ShapeMisfit(Fault(key, shape.refusal(value, key, kind)), name=False), sources)


_OF_ARRAYS = "ArrayConfig"


def _below(key: Key, overrides: Sequence[str]) -> str | None:
    """Return the last override of a key below `key`; None where there is none."""
    below = (override for override in reversed(overrides) if tuple(_parts(quoting.name(override)))[: len(key)] == key)
    return next(below, None)


def _parts(full_key: str) -> list[str | int]:
    parts: list[str | int] = []
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", full_key):
        parts.append(int(index) if index else name)
    return parts


def _sentence(text: str) -> str:
    """The first line of an OmegaConf message; the lines after it give its own location."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else text
