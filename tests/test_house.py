"""Each module imports only rooms before its own, and only the worker's room imports JAX."""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.command import ROOT

PACKAGES = {
    "base": ("base",),
    "graph": ("graph", "language", "sharding"),
    "experiment": ("config", "experiment"),
    "link": ("link",),
    "compiled": ("evidence", "estimate", "why", "explanation"),
    "programs": ("programs", "derivation", "planning"),
    "reports": ("record", "show", "track"),
    "checks": ("reference", "edits", "checks", "diagnosis"),
    "worker": ("worker", "jaxpr", "functions", "job", "__main__"),
    "app": ("flow", "testing", "cli", "called", "given", "swept", "explaining", "call_plan", "api", "fixtures"),
}
"""The packages from the ground up, with the rooms of each: a module imports its own room, and rooms before it."""

OUTSIDE = {"runner", *(f"runner.{package}" for package in PACKAGES)}
"""What modules are imported from by their names."""

FILES = sorted((ROOT / "runner").rglob("*.py"))
ORDER = [(package, room) for package, rooms in PACKAGES.items() for room in rooms]


def room(module: str) -> tuple[str, str]:
    """Return the package and the room of a module: `checks` and `reference` for `runner.checks.reference.rounding`.

    A module that lies in a package itself is in the room of its name.
    """
    package, *inside = module.split(".")[1:]
    return package, inside[0] if inside and inside[0] in PACKAGES[package] else package


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of every file."""
    return {file: tree_of(file) for file in FILES}


@cache
def tree_of(file: Path) -> ast.Module:
    """Return the syntax tree of a file: to parse all of the tool takes two seconds."""
    return ast.parse(file.read_text(encoding="utf-8"))


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes of a tree: to walk all trees takes a second, and every test asks for them."""
    return [*ast.walk(tree)]


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a file imports."""
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module in OUTSIDE:
            yield from (f"{node.module}.{alias.name}" for alias in node.names if not alias.name.startswith("__"))
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def is_package(file: Path) -> bool:
    """Whether a file is the `__init__.py` of one of the packages."""
    return file.name == "__init__.py" and file.parent.parent == ROOT / "runner"


def upward(own: str, modules: Iterable[str]) -> list[str]:
    """Return those of the modules that module `own` may not import, since they are in a later room."""
    ours = {module for module in modules if module.startswith("runner.") and module.split(".")[1] in PACKAGES}
    return sorted(module for module in ours if ORDER.index(room(module)) > ORDER.index(room(own)))


def test_a_room_imports_downwards_only(trees: dict[Path, ast.Module]) -> None:
    upwards: list[str] = []
    for file, tree in trees.items():
        # A module that is run by itself starts where every command does, and imports what every command does.
        if len(relative(file).split("/")) > 2 and file.name != "__main__.py" and not is_package(file):
            own = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            upwards += [f"{relative(file)} imports {module}" for module in upward(own, imports(tree))]
    assert upwards == []


def test_an_import_of_a_later_room_is_noticed() -> None:
    modules = ["runner.base.words", "runner.checks.reference.rounding", "runner.reports.record.model", "runner.version"]
    assert upward("runner.reports.show.table", modules) == ["runner.checks.reference.rounding"]
    assert upward("runner.checks.reference.rounding", ["runner.checks.blame"]) == ["runner.checks.blame"]
    assert upward("runner.checks.blame", modules) == []


def test_every_package_and_room_is_in_the_order() -> None:
    folders = {file.parent.relative_to(ROOT / "runner").parts for file in FILES}
    assert {parts[0] for parts in folders if parts} == PACKAGES.keys()
    modules = [file for file in FILES if len(relative(file).split("/")) > 2 and not is_package(file)]
    assert {room(".".join(file.relative_to(ROOT).with_suffix("").parts)) for file in modules} == set(ORDER)


def imported(trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Return the modules of the tool, and their imports by name, including those only for type checkers."""
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in FILES}
    modules: dict[str, set[str]] = {}
    for name, file in names.items():
        modules[name] = set()
        for node in nodes(trees[file]):
            if isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                modules[name] |= {each if each in names else node.module for each in inside} & names.keys()
            elif isinstance(node, ast.Import):
                modules[name] |= {alias.name for alias in node.names} & names.keys()
    return modules


def circles(imported: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the import circles, each once."""
    reached = {name: _reached(imported, name) for name in imported}
    together = (frozenset(other for other in others if name in reached[other]) for name, others in reached.items())
    return {group for group in together if group}


def _reached(imported: dict[str, set[str]], name: str) -> set[str]:
    reached: set[str] = set()
    left = [*imported[name]]
    while left:
        if (module := left.pop()) not in reached:
            reached.add(module)
            left += imported[module]
    return reached


def test_no_modules_import_each_other(trees: dict[Path, ast.Module]) -> None:
    assert circles(imported(trees)) == set()


def test_modules_that_import_each_other_are_noticed() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {frozenset({"b", "c"})}


def test_only_the_worker_imports_jax(trees: dict[Path, ast.Module]) -> None:
    files = [file for file, tree in trees.items() if {"jax", "jaxlib"} & {name.split(".")[0] for name in imports(tree)}]
    assert [relative(file) for file in files if "worker" not in file.relative_to(ROOT / "runner").parts] == []


def test_only_the_language_parses_python(trees: dict[Path, ast.Module]) -> None:
    files = [file for file, tree in trees.items() if "ast" in imports(tree)]
    assert [relative(file) for file in files if "language" not in file.relative_to(ROOT / "runner").parts] == []


def uses_of_id(table: symtable.SymbolTable, inside: str) -> Iterator[str]:
    """Yield, for each scope that reads the built-in function `id`, the outermost function or class around it."""
    if "id" in table.get_identifiers() and table.lookup("id").is_global():
        yield inside
    for scope in table.get_children():
        yield from uses_of_id(scope, scope.get_name() if table.get_type() == "module" else inside)


IDENTITIES = {
    "runner/base/layout.py": {"first_holders"},
    "runner/app/called/pickling.py": {"_OfObjects"},
    "runner/checks/reference/rerun.py": {"_Remembering"},
    "runner/compiled/why/matching.py": {"Matching"},
    "runner/worker/widening.py": {"Widening"},
}
"""Where objects are told apart by `id`: arrays, which cannot be hashed, and of which devices share one for a copy; what
a function refers to, which is kept meanwhile; values that are kept while an interpretation is repeated; equal
collectives, each of which a matching keeps; and equal literals of a function, which are kept while it is rewritten."""


def test_what_tells_things_apart_is_no_address_in_memory() -> None:
    uses: dict[str, set[str]] = {}
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        # A table of symbols takes as long as compiling the file.
        if re.search(r"\bid\b", text):
            uses[relative(file)] = set(uses_of_id(symtable.symtable(text, file.name, "exec"), "the module"))
    assert {file: scopes for file, scopes in uses.items() if scopes} == IDENTITIES


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("def f(x):\n    return [id(each) for each in x]", {"f"}),
        ("def f(x):\n    return map(id, x)", {"f"}),
        ("key = id(f)", {"the module"}),
        ("def f(id):\n    return id", set[str]()),
        ("class A:\n    id: int", set[str]()),
    ],
)
def test_uses_of_id_are_noticed(text: str, uses: set[str]) -> None:
    assert set(uses_of_id(symtable.symtable(text, "text", "exec"), "the module")) == uses


VAGUE = {"found", "told", "said", "begun", "having", "those"}
"""Words that say nothing of what a variable holds, also as a part of its name."""

ALONE = {"one", "seen"}
"""Words that say nothing where they are the whole name."""

KEYS = {"runner/checks/communication.py": {"found"}, "runner/reports/record/verdicts.py": {"found"}}
"""Keys of `result.json`, which keep their names."""

ROOMS = ("runner", "hydra_plugins", "tests", "benchmarks", "experiments")


def bound(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module gives to what it binds; the name of a test is a sentence."""
    for node in nodes(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if not name.startswith("test_"):
                yield name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name
            case _:
                pass


def vague(tree: ast.Module) -> set[str]:
    """Return the names that a module binds and that say nothing."""
    names = {name: name.lower().strip("_") for name in bound(tree)}
    return {name for name, words in names.items() if words in ALONE or VAGUE & set(words.split("_"))}


@pytest.mark.usefixtures("trees")
@pytest.mark.parametrize("folder", ROOMS)
def test_names_are_nouns(folder: str) -> None:
    files = {relative(file): file for file in sorted((ROOT / folder).rglob("*.py"))}
    assert len(files) > 1
    kept = {name: names for name, names in KEYS.items() if name in files}
    assert {name: names for name, file in files.items() if (names := vague(tree_of(file)))} == kept


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("found = 1", {"found"}),
        ("def f(told): pass", {"told"}),
        ("[one for one in lines]", {"one"}),
        ("def _said(): pass", {"_said"}),
        ("import os as seen", {"seen"}),
        ("match line:\n    case [*those]: pass", {"those"}),
        ("self.lines_found = 1", {"lines_found"}),
        ("def test_one_is_found(): pass", set[str]()),
        ("is_one_line = lines.found", set[str]()),
    ],
)
def test_vague_names_are_noticed(text: str, names: set[str]) -> None:
    assert vague(ast.parse(text)) == names


LISTS = re.compile(r"\bin; | in[,.] .*\bout[.:,]")
"""First lines that list what goes in and what comes out, without a verb."""


def test_the_first_line_of_a_module_is_a_sentence(trees: dict[Path, ast.Module]) -> None:
    for file, tree in trees.items():
        docstring = ast.get_docstring(tree)
        assert docstring is not None, file
        first = docstring.split("\n\n")[0].rstrip()
        assert first.endswith("."), (file, first)
        assert LISTS.search(first) is None, (file, first)


def test_a_first_line_without_a_verb_is_noticed() -> None:
    assert LISTS.search("The text of a module in; its collectives out.")
    assert LISTS.search("A module, as text, in, its collectives out.")
    assert LISTS.search("Reads a module's text into its collectives.") is None


PRIVATE = {
    "runner/app/cli/composing.py": {"hydra._internal.callbacks"},
    "runner/experiment/config/options.py": {"hydra._internal.core_plugins", "hydra._internal.sources_registry"},
}
"""The private names of Hydra that are used; its sweeper and its source of files are base classes, too."""


def test_private_names_of_hydra_are_used_only_as_listed(trees: dict[Path, ast.Module]) -> None:
    private = {
        relative(file): {module for module in imports(tree) if module.startswith(("hydra._", "omegaconf._"))}
        for file, tree in trees.items()
    }
    assert {file: modules for file, modules in private.items() if modules} == PRIVATE


INTERNALS = {
    "runner/link/jax_internals.py",  # in the caller's process
    "runner/worker/versions.py",
    "runner/worker/widening.py",  # its text goes into a file that runs alone
    "runner/worker/protos.py",  # without JAX
}
"""The modules that know private ones of JAX."""


def private_of_jax(tree: ast.Module) -> set[str]:
    """The private modules of JAX that a module imports, or names in a text for `importlib` or `__import__`."""
    texts = {node.value for node in nodes(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {name for name in {*imports(tree), *texts} if re.fullmatch(r"jax(lib)?\._[\w.]*", name)}


def test_private_modules_of_jax_are_known_only_as_listed(trees: dict[Path, ast.Module]) -> None:
    assert {relative(file) for file, tree in trees.items() if private_of_jax(tree)} == INTERNALS


@pytest.mark.parametrize(
    "line", ["from jax._src import core", "import jax._src.core", "x = importlib.import_module('jax._src.mesh')"]
)
def test_a_private_module_of_jax_is_noticed(line: str) -> None:
    assert private_of_jax(ast.parse(line))


def changed(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each module of Hydra's of which an attribute is set."""
    modules = {
        alias.asname or alias.name.split(".")[0]
        for node in nodes(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name or "").startswith("hydra")  # type: ignore[union-attr]
        for alias in node.names
    }
    for node in nodes(tree) if modules else ():
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in modules:
                yield target.lineno, target.value.id


def test_nothing_of_hydra_is_replaced(trees: dict[Path, ast.Module]) -> None:
    lines = [(relative(file), *line) for file, tree in trees.items() for line in changed(tree)]
    assert lines == []


def test_a_replaced_part_of_hydra_is_noticed() -> None:
    assert list(changed(ast.parse("from hydra import utils\nimport os\nos.a = 1\nutils.b = 2"))) == [(4, "utils")]


def test_the_text_of_sections_is_read_in_one_room(trees: dict[Path, ast.Module]) -> None:
    """Behind the readers in `experiment/` a section is a graph."""
    reading = {"runner.experiment.sections", "runner.experiment.repeats"}
    outside = {file for file in FILES if "experiment" not in file.relative_to(ROOT / "runner").parts}
    assert [relative(file) for file in sorted(outside) if reading.intersection(imports(trees[file]))] == []


KINDS = {"Apply", "Const", "Group", "Lambda", "Listed", "Name", "Slice"}
"""The kinds of terms, some of them operands of equations too."""

KNOWING = {
    "runner/checks/edits/section.py",
    "runner/checks/edits/missing.py",
    "runner/checks/edits/operands.py",
    "runner/checks/edits/changed_parts.py",
    "runner/experiment/graphs.py",
    "runner/experiment/sections.py",
    "runner/graph/language/check.py",
    "runner/graph/language/definitions.py",
    "runner/graph/language/lines.py",
    "runner/graph/language/printing.py",
    "runner/graph/language/static.py",
    "runner/graph/language/syntax.py",
    "runner/graph/model.py",
    "runner/graph/term.py",
    "runner/worker/jaxpr/jaxprs.py",
    "runner/worker/jaxpr/primitives/elementwise.py",
    "runner/worker/jaxpr/primitives/shaping.py",
}
"""The modules that take terms apart by their kinds: the list only becomes shorter."""


def taken_apart(tree: ast.Module) -> set[str]:
    """Return the kinds of terms by which a module decides; those of Python's own tree are attributes of `ast`."""
    tested = [node.cls for node in ast.walk(tree) if isinstance(node, ast.MatchClass)]
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                tested += [kind for kind in ast.walk(kinds) if isinstance(kind, ast.expr)]
            case _:
                pass
    return {kind.id for kind in tested if isinstance(kind, ast.Name)} & KINDS


def test_few_modules_take_terms_apart(trees: dict[Path, ast.Module]) -> None:
    assert {relative(file) for file, tree in trees.items() if taken_apart(tree)} == KNOWING


@pytest.mark.parametrize("text", ["isinstance(x, Name | Const)", "match x:\n    case Group(items=()):\n        pass"])
def test_a_module_that_takes_terms_apart_is_noticed(text: str) -> None:
    assert taken_apart(ast.parse(text))
