"""Each room imports only lower rooms, and only the worker's room imports JAX."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import ROOT

FLOORS = (
    ("untyped", "words", "printable", "version", "invocation"),
    ("faults", "dtypes", "layout", "codec", "executions"),
    ("graph",),
    ("language",),
    ("config",),
    ("experiment", "sharding"),
    ("programs", "link"),
    ("reference", "evidence"),
    ("estimate",),
    ("derivation",),
    ("why", "planning"),
    ("record",),
    ("show", "track"),
    ("checks", "worker"),
    ("flow",),
    ("cli", "testing"),
    ("called", "swept"),
    ("__main__", "api", "conf"),
    ("fixtures",),
)
"""The rooms from the ground up; rooms of one floor do not import each other. Commands are on the top floor."""

FILES = sorted((ROOT / "runner").rglob("*.py"))
COMMANDS = [file.stem for file in FILES if file.parent == ROOT / "runner" and "cli.command import" in file.read_text()]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FLOOR |= dict.fromkeys(COMMANDS, len(FLOORS) - 1)


def room(module: str) -> str:
    """Return the room of a module: `checks` for `runner.checks.kinds.value`."""
    return module.split(".")[1] if "." in module else module


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "runner":
            yield from (f"runner.{alias.name}" for alias in node.names if not alias.name.startswith("__"))
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_room_imports_downwards_only(file: Path) -> None:
    mine = file.relative_to(ROOT / "runner").parts[0].removesuffix(".py")
    # The modules of the command line start where every command does.
    mine = "__main__" if file.name == "__main__.py" else mine
    if mine == "__init__":
        return
    for module in imports(file):
        if module.startswith("runner.") and room(module) != mine:
            assert FLOOR[room(module)] < FLOOR[mine], f"{mine} imports {module}"


def modules() -> dict[str, set[str]]:
    """Return the modules of the tool, and their imports by name, including those only for type checkers."""
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in FILES}
    imported: dict[str, set[str]] = {}
    for name, file in names.items():
        imported[name] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                imported[name] |= {each if each in names else node.module for each in inside} & names.keys()
            elif isinstance(node, ast.Import):
                imported[name] |= {alias.name for alias in node.names} & names.keys()
    return imported


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


def test_no_modules_import_each_other() -> None:
    assert circles(modules()) == set()


def test_modules_that_import_each_other_are_noticed() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {frozenset({"b", "c"})}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_the_worker_imports_jax(file: Path) -> None:
    of_jax = {module.split(".")[0] for module in imports(file)} & {"jax", "jaxlib"}
    assert not of_jax or "worker" in file.relative_to(ROOT / "runner").parts


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_the_language_parses_python(file: Path) -> None:
    assert "ast" not in imports(file) or "language" in file.relative_to(ROOT / "runner").parts


def uses_of_id(table: symtable.SymbolTable, inside: str) -> Iterator[str]:
    """Yield, for each scope that reads the built-in function `id`, the outermost function or class around it."""
    if "id" in table.get_identifiers() and table.lookup("id").is_global():
        yield inside
    for scope in table.get_children():
        yield from uses_of_id(scope, scope.get_name() if table.get_type() == "module" else inside)


IDENTITIES = {"runner/layout.py": {"first_holders"}}
"""Where objects are told apart by `id`: arrays, which cannot be hashed, and of which devices share one for a copy."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_tells_things_apart_is_no_address_in_memory(file: Path) -> None:
    table = symtable.symtable(file.read_text(encoding="utf-8"), file.name, "exec")
    assert set(uses_of_id(table, "the module")) == IDENTITIES.get(str(file.relative_to(ROOT)), set())


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
KEYS = {"runner/checks/communication.py": {"found"}, "runner/record/verdicts.py": {"found"}}
"""Keys of `result.json`, which keep their names."""


def bound(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module gives to variables, parameters, fields, functions and classes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case _:
                pass


def test_names_are_nouns() -> None:
    for file in FILES:
        names = set(bound(ast.parse(file.read_text(encoding="utf-8"))))
        vague = {name for name in names if VAGUE & set(name.lower().strip("_").split("_"))}
        assert vague == KEYS.get(str(file.relative_to(ROOT)), set()), file


def test_every_room_says_what_goes_in_and_what_comes_out() -> None:
    for folder in {file.parent for file in FILES} - {ROOT / "runner"}:
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert docstring is not None, folder
        assert " in; " in docstring, folder


PRIVATE = {
    "runner/cli/composing.py": {"hydra._internal.callbacks"},
    "runner/config/options.py": {"hydra._internal.core_plugins", "hydra._internal.sources_registry"},
}
"""The private names of Hydra that are used; its sweeper and its source of files are base classes, too."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_private_names_of_hydra_are_used_only_as_listed(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    private = {module for module in imports(file) if module.startswith(("hydra._", "omegaconf._"))}
    assert private == PRIVATE.get(str(file.relative_to(ROOT)), set())
    theirs = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name or "").startswith("hydra")  # type: ignore[union-attr]
        for alias in node.names
    }
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            changed = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id
            assert changed not in theirs, f"line {target.lineno} changes {changed}"
