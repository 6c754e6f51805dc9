"""Shows the programs of a record side by side: their cost and their source."""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from runner.base.words import bytes_text, flops_text, time_text
from runner.graph.language import python_source
from runner.graph.language.operations import OPERATIONS
from runner.reports.record.measures import bytes_figure
from runner.reports.record.model import CompiledProgram, Record
from runner.reports.show import modes, profile
from runner.reports.show.page.markup import Inside, Markup, Part, joined, scrolling, table, tag
from runner.reports.show.table import Table

_MOVING = frozenset(name for name, row in OPERATIONS.items() if row.communicates)
_ALIASED = "outputs aliased to an argument"
_PLACING = frozenset(("with_sharding_constraint", "reshard", "out_sharding", "NamedSharding", "shard_map", "pcast"))


def part(record: Record, folder: Path, way: str) -> Part | None:
    """Return the section; None if no program was compiled."""
    compiled = record.compiled
    if not compiled:
        return None
    head = ("", *compiled)
    rows = list(_rows(list(compiled.values())))
    right = frozenset(range(1, len(head)))
    inside: list[Inside] = [table("Each program, per device", Table(head, rows, right))]
    if listed := modes.rows(record):
        inside.append(table("What each program leaves to the compiler", Table(modes.HEAD, listed)))
    inside += list(_profiles(compiled))
    inside += list(_sources(compiled, folder, way))
    if record.derivation is not None:
        inside.append(_derivation(record))
    return Part("programs", "Programs", inside)


_FIGURES: tuple[tuple[str, Callable[[CompiledProgram], float | None], Callable[[float], str]], ...] = (
    ("memory", lambda p: p.memory and p.memory.needed_bytes, bytes_figure),
    ("peak, as the compiler reports it", lambda p: p.memory and p.memory.peak_bytes, bytes_figure),
    ("arguments", lambda p: p.memory and p.memory.argument_bytes, bytes_figure),
    ("outputs", lambda p: p.memory and p.memory.output_bytes, bytes_figure),
    ("temporary", lambda p: p.memory and p.memory.temp_bytes, bytes_figure),
    (_ALIASED, lambda p: p.memory and p.memory.alias_bytes, bytes_figure),
    ("computes", lambda p: p.cost and p.cost.flops, flops_text),
    ("bytes accessed", lambda p: p.cost and p.cost.bytes_accessed, bytes_figure),
    ("the compiler's own time", lambda p: p.cost and p.cost.optimal_seconds, time_text),
    ("compiled in", lambda p: p.timing.compile_s, time_text),
    ("placed in", lambda p: p.timing.place_s, time_text),
    ("ran in, median", lambda p: p.timing.run_s and p.timing.run_s.median, time_text),
    ("fastest run", lambda p: p.timing.run_s and p.timing.run_s.min, time_text),
    ("slowest run", lambda p: p.timing.run_s and p.timing.run_s.max, time_text),
    ("runs", lambda p: p.timing.run_s and p.timing.run_s.n, str),
)
"""The rows of the table of programs: a title, the figure of a program, and the text of that."""


def _rows(programs: Sequence[CompiledProgram]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of which some program has the figure; what is aliased only where it is not 0."""
    for title, figure, text in _FIGURES:
        values = [figure(program) for program in programs]
        if any(values) if title == _ALIASED else any(value is not None for value in values):
            yield title, *("–" if value is None else text(value) for value in values)


def _profiles(compiled: dict[str, CompiledProgram]) -> Iterator[Inside]:
    rows = [(name, *row) for name, p in compiled.items() if p.profile for row in profile.rows(p.profile)]
    if rows:
        caption = "The median time of a run on one device; a collective's includes waiting for other devices"
        # The program stands in front of the columns of a profile.
        share = 1 + profile.SHARE
        shown = [[*row[:share], _bar(row[share]), *row[share + 1 :]] for row in rows]
        yield tag("h3", "Profile")
        taken = {name: program.profile for name, program in compiled.items() if program.profile}
        yield from (tag("p", sentence) for sentence in profile.head(taken))
        yield table(caption, Table(("program", *profile.HEAD), shown))


def _bar(share: str) -> Markup:
    bar = tag("span", class_="bar", style=f"width:{float(share.rstrip('%')) * 0.09:.2f}rem", aria_hidden="true")
    return tag("span", bar, share, class_="bars")


def _sources(compiled: dict[str, CompiledProgram], folder: Path, way: str) -> Iterator[Inside]:
    """Return the function `program` of each file, in columns that the reader selects without a script."""
    # A record is untrusted data: its names and links may only lead to files beside it.
    named = [name for name in compiled if name.isidentifier()]
    sources = {name: text for name in named if (text := _source(folder / f"program_{name}.py")) is not None}
    if not sources:
        yield tag("p", "The programs' files are not beside the record, so their code is not shown.")
        return
    yield tag("h3", "What ran")
    first = [name for name in ("auto", "shard_map") if name in sources]
    first = first if len(first) == 2 else list(sources)[:2]
    boxes = [
        tag("label", tag("input", type="checkbox", id=f"s-{name}", checked=name in first), tag("span", name))
        for name in sources
    ]
    columns = [
        tag(
            "figure",
            tag("figcaption", tag("a", f"program_{name}.py", href=f"{way}program_{name}.py")),
            scrolling(tag("pre", tag("code", _painted(text))), f"program {name}"),
            class_=f"s-{name}",
        )
        for name, text in sources.items()
    ]
    rules = "".join(f".sources:has(#s-{name}:not(:checked)) .s-{name}{{display:none}}" for name in sources)
    chosen = tag("fieldset", tag("legend", "Programs to show"), tag("div", boxes, class_="chips"))
    style = Markup(f"<style>@media screen{{{rules}}}</style>")
    yield tag("div", style, chosen, tag("div", columns, class_="columns"), class_="sources")


def _source(file: Path) -> str | None:
    """Return the function `program` of a program's file, or the whole file; None if there is no such file."""
    if file.is_symlink() or not file.is_file():
        return None
    try:
        text = file.read_text(encoding="utf-8")
        return python_source.function(text, "program") or text
    except (OSError, ValueError, SyntaxError):
        return None


def _painted(text: str) -> Markup:
    """Highlight Python: keywords, strings, comments, and calls that move or place values."""
    parts: list[Inside] = []
    lines = text.splitlines(keepends=True)
    row, column = 1, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        style = _style(token)
        if style is None or token.start < (row, column):
            continue
        parts.append(_between(lines, (row, column), token.start))
        parts.append(tag("span", token.string, class_=style))
        row, column = token.end
    parts.append(_between(lines, (row, column), (len(lines) + 1, 0)))
    return joined(parts)


def _style(token: tokenize.TokenInfo) -> str | None:
    if token.type == tokenize.NAME:
        if keyword.iskeyword(token.string):
            return "k"
        return "mv" if token.string in _MOVING else "pl" if token.string in _PLACING else None
    return {tokenize.STRING: "st", tokenize.COMMENT: "cm", tokenize.NUMBER: "nu"}.get(token.type)


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    (row, column), (last, stop) = start, end
    if row == last:
        return lines[row - 1][column:stop] if row <= len(lines) else ""
    middle = lines[row : last - 1]
    tail = lines[last - 1][:stop] if last <= len(lines) else ""
    return (lines[row - 1][column:] if row <= len(lines) else "") + "".join(middle) + tail


def _derivation(record: Record) -> Markup:
    derivation = record.derivation
    assert derivation is not None
    lines = "\n".join(_yaml(derivation.per_device, 0))
    sentence = f"On a ring each device sends {bytes_text(derivation.sent_bytes)}, without a backward pass."
    notes = [tag("li", note) for note in derivation.notes]
    return tag(
        "details",
        tag("summary", "The lines that follow from graph and the specs"),
        tag("p", sentence),
        tag("ul", notes) if notes else None,
        scrolling(tag("pre", tag("code", lines)), "derived lines"),
    )


def _yaml(section: object, depth: int) -> Iterator[str]:
    for name, value in section.items() if isinstance(section, dict) else ():  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if isinstance(value, dict):
            yield f"{'  ' * depth}{name}:"
            yield from _yaml(value, depth + 1)  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield f"{'  ' * depth}{name}: {value}"
