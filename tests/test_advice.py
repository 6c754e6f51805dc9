"""What a message tells one to write is tried: with it, what was refused is read, or runs."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
import yaml
from jax.sharding import PartitionSpec as P

import runner
from runner.app import api
from runner.app.cli.arguments import parsed
from runner.app.cli.experiment_names import with_experiment
from runner.base.faults import InvalidExperiment
from runner.experiment.config.folders import InvalidName
from runner.link.workers import Workers
from tests import faults, harness, here
from tests.faults import Fault
from tests.faults.__main__ import kind
from tests.test_followed_advice import CALLS as CALLS_THAT_FOLLOW
from tests.test_followed_advice import LINES

WORKERS = Workers()
CASE = "case3_allreduce"


@pytest.fixture(scope="module", autouse=True)
def _workers() -> Iterator[None]:
    yield
    WORKERS.close()


def refusal(experiment: str | Path, overrides: list[str]) -> str | None:
    """Return the message for an experiment and overrides; None where nothing but JAX could refuse them."""
    try:
        configuration = api.compose(experiment, overrides)
    except api.InvalidConfiguration as error:
        return str(error)
    try:
        api.validate(configuration)
    except InvalidExperiment as error:
        return configuration.sources.report(error.fault)
    return None


@pytest.mark.parametrize(
    ("given", "advised"),
    [
        ("mesh=4x2", ["mesh.shape=[4,2]"]),
        ("mesh=4,2", ["mesh.shape=[4,2]"]),
        ("mesh.shape=4x2", ["[4,2]"]),
        ("expect.all-reduce=1", ["expect.collectives.all-reduce=1"]),
        ("expect.all_reduce=1", ["expect.collectives.all-reduce=1"]),
        ('expect={"all-reduce": 1}', ["expect.collectives.all-reduce=1"]),
        ('expect={"collectives": {"all-reduce": 1}}', ["expect={collectives:{all-reduce:1}}"]),
    ],
)
def test_the_advised_override_is_read(given: str, advised: list[str]) -> None:
    message = refusal(CASE, [given]) or ""
    words = next(shlex.split(match) for match in re.findall(r"(?:write|key:) ((?:'[^']*'|[^ ,']|,(?! ))+)", message))
    assert words == advised
    key = given.partition("=")[0]
    assert refusal(CASE, [word if "=" in word else f"{key}={word}" for word in words]) is None


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("mesh: {x: 4, y: 2}", r"write (mesh: .*)"),
        ("arrays: {A: {shape: [I, J], spec: P(None, 'x')}}", r"in quotes: (.*)"),
        ('arrays: {A: {shape: [I, J], spec: P(("x", "y"), None)}}', r"in quotes: (.*)"),
        ("arrays: {A: [I, 8]}", r"write A: (.*)"),
        ("graph: {C = A * 2}", r"write (.*)"),
    ],
)
def test_the_advised_line_of_a_file_is_read(given: str, written: str, tmp_path: Path) -> None:
    lines = {
        "mesh": "mesh: {axes: [x, y], shape: [2, 2]}",
        "arrays": "arrays: {A: {shape: [I, J]}}",
        "graph": "graph: {C: A * 2}",
    }
    key, file = given.partition(":")[0], tmp_path / "mine.yaml"

    def read(line: str) -> str | None:
        file.write_text("\n".join([*(lines | {key: line}).values(), "dims: {I: 8, J: 8}", "outputs: {C: []}"]))
        return refusal(file, [])

    advised = re.search(written, read(given) or "")
    assert advised is not None
    wrong = {"mesh": given, "graph": "C = A * 2"}.get(key) or ("[I, 8]" if "P(" not in given else advised[1][1:-1])
    assert read(given.replace(wrong, advised[1])) is None


def test_a_kind_of_collective_that_is_misspelt_is_not_told_to_be_added() -> None:
    message = refusal(CASE, ["expect.collectives={all_reduce: 1}"]) or ""
    assert message.endswith("there is no key 'all_reduce'; did you mean 'all-reduce'?")


def test_a_name_whose_parts_are_exchanged_is_told_by_its_letters() -> None:
    message = refusal(CASE, ["target=v5e_4x2"]) or ""
    assert message.endswith("did you mean 'v5e_2x4'?")
    assert refusal(CASE, ["target=v5e_2x4", "mesh=x4_y2"]) is None


def test_a_mesh_that_is_written_as_in_python_is_told_as_overrides() -> None:
    message = refusal(CASE, ["mesh={x: 4, y: 2}"]) or ""
    assert refusal(CASE, message.partition("write ")[2].split()) is None


def test_advice_for_python_is_read_from_python() -> None:
    message = refusal(CASE, ["expect.all-reduce=1"]) or ""
    assert api.texts({}, eval(f"dict({message.partition('in Python ')[2]})")) == [
        "++expect={collectives:{all-reduce:1}}"
    ]
    assert refusal(CASE, api.texts({}, {"expect": {"collectives": {"all-reduce": 1}}})) is None


@pytest.mark.parametrize(
    "line",
    [
        "jnp.matmul(A,B)",
        "(A @ B) * (1 + 0)",
        "where(A > 0, A, A) @ B",
        "A @ B",
        "A[:, 0:2] @ B[0:2]",
        "(A @ B) == A",
        "A & B",
    ],
)
def test_a_line_needs_no_quotes_beside_those_of_the_shell(line: str) -> None:
    assert refusal(CASE, [f"graph.C={line}"]) is None


def test_the_calls_of_a_sweep_over_lines_are_its_values() -> None:
    from runner.experiment.config.specs import overrides

    assert overrides(["graph.C=matmul(A, B),A @ B"]) == ['graph.C="matmul(A, B)",A @ B']
    assert overrides(["graph.C=choice(A,B)", "graph.C='f(x)'"]) == ["graph.C=choice(A,B)", "graph.C='f(x)'"]


@pytest.mark.parametrize(("word", "call"), [("pvary", "pvary(b, 'x')"), ("pvary", "jax.lax.pvary(b, 'x')")])
def test_a_collective_is_written_by_its_name_of_today(word: str, call: str) -> None:
    text = """
    mesh: {axes: [x], shape: [2]}
    arrays: {A: {shape: [4], spec: [x]}, b: {shape: [2]}}
    per_device: {C: "A + LINE"}
    outputs: {C: [x]}
    """
    with pytest.raises(InvalidExperiment) as refused:
        harness.types(text.replace("LINE", call))
    says, _, advised = refused.value.fault.message.partition("; write ")
    assert (says, advised) == (f"{word} is pcast today", "pcast(b, 'x', to='varying')")
    harness.types(text.replace("LINE", advised))


@pytest.mark.in_turn
def test_an_output_that_is_to_be_scattered_names_the_line_that_scatters() -> None:
    scattered = {"outputs": {"C": ["x", None]}, "expect": None, "program": "shard_map"}
    message = api.run(CASE, scattered).error or ""
    line = message.partition("for a part on each write ")[2]
    assert line == "psum_scatter(partial, 'x', scatter_dimension=0, tiled=True)"
    record = api.run(CASE, {**scattered, "per_device.C": line})
    assert record.status == "passed", str(record)


def named(*words: str) -> list[str]:
    known, overrides = parsed(words)
    return with_experiment(words, known, overrides)[0]


@pytest.mark.parametrize(
    ("given", "advised"),
    [
        ("--config_dir conf mine", "--config-dir conf"),
        ("--config_dir=conf mine", "--config-dir conf"),
        ("--experiment mine --config-dir conf", "mine"),
        ("--experiment=mine --config-dir conf", "mine"),
    ],
)
def test_an_unknown_flag_is_answered_with_what_to_write(
    given: str, advised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(faults.GOOD, encoding="utf-8")
    with pytest.raises(SystemExit):
        named(*given.split())
    first = capsys.readouterr().err.splitlines()[0]
    assert first.endswith((f"; write {advised}", f"without a flag: python -m runner {advised}"))
    others = re.sub(r"--(config_dir|experiment)[ =]\w+ ?", "", given).split()
    assert "+experiment=mine" in named(*advised.split(), *others)


MODULE = """
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P

@jax.shard_map(in_specs=(P(None, "data"), P("data", None)), out_specs=P())
def product(w, x):
    return jax.lax.psum(w @ x, "data")
"""


@pytest.mark.parametrize("words", ["check my.py:product", "my.py:product", "my.py"])
def test_a_function_in_place_of_an_experiment_is_answered_with_its_check(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(MODULE, encoding="utf-8")
    with pytest.raises(InvalidName) as refused:
        named(*words.split())
    assert str(refused.value).endswith(CALL)


CALL = """write
    import runner
    from jax.sharding import PartitionSpec as P
    from my import product
    runner.check(product, (w, x), mesh={"data": 2}, in_specs=(P(), P()))"""


@pytest.mark.in_turn
def test_the_advised_check_of_a_function_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my.py").write_text(MODULE, encoding="utf-8")
    message = api.run("my.py:product").error or ""
    assert message.endswith(CALL)
    known: dict[str, Any] = {"w": jnp.ones((2, 4)), "x": jnp.ones((4, 2))}
    *lines, call = [line.strip() for line in message.splitlines()[2:]]
    exec("\n".join(lines), known)
    assert eval(call, known).status == "passed"


def double(w: Any, x: Any) -> Any:
    return 2 * w + x


def test_operands_one_by_one_are_answered_with_a_tuple() -> None:
    x = jnp.ones(4)
    with pytest.raises(TypeError) as refused:
        runner.check(double, x, x, mesh={"x": 2})  # type: ignore[call-arg]
    call = str(refused.value).partition("write ")[2]
    assert call == "runner.check(double, (w, x), …)"
    given = call.replace("runner.check", "api.checked").replace("…", 'None, WORKERS, mesh={"x": 2}, in_specs=P()')
    assert eval(given, {"api": api, "double": double, "w": x, "x": x, "P": P, "WORKERS": WORKERS}).status == "passed"


@pytest.mark.parametrize("given", ["in_shardings", "out_shardings", "in_axis_resources"])
def test_an_argument_of_jit_is_answered_with_ours(given: str) -> None:
    x = jnp.ones(4)
    more: dict[str, Any] = {"mesh": {"x": 2}}
    specs: dict[str, Any] = {} if given.startswith("in_") else {"in_specs": P("x")}
    message = api.checked(double, (x, x), None, WORKERS, **{**more, **specs, given: P("x")}).error or ""
    argument = re.search(r"write it as (\w+)=…", message)
    assert argument is not None, message
    assert api.checked(double, (x, x), None, WORKERS, **{**more, **specs, argument[1]: P("x")}).status == "passed"


def trained(x: Any, train: bool = True) -> Any:
    return x * 2 if train else x


def scaled(x: Any, by: Any) -> Any:
    return x * by


def joined(p: Any, x: Any) -> Any:
    return p["a"] + p["b"] * x


X, MESH = jnp.ones(4), {"x": 2}

CALLS: list[tuple[Any, tuple[Any, ...], str, dict[str, Any], dict[str, Any]]] = [
    (double, (X, X), "not the text 'x': write P('x')", {"in_specs": ("x", None)}, {"in_specs": (P("x"), None)}),
    (double, (X, X), "not ('x',): write P('x')", {"in_specs": (("x",), None)}, {"in_specs": (P("x"), None)}),
    (double, (X, X), "not ('x',): write P('x')", {"out_specs": ("x",)}, {"out_specs": P("x")}),
    (double, (X, X), '; give one: mesh={"data": 2, "model": 2}', {"mesh": None}, {"mesh": {"data": 2, "model": 2}}),
    (double, (X, X), 'sizes, such as {"data": 2, "model": 2}', {"mesh": [2, 2]}, {"mesh": {"data": 2, "model": 2}}),
    (double, (X, X), "; give one spec", {"in_specs": ({"a": P("x")}, None)}, {"in_specs": (P("x"), None)}),
    (double, (X, X), "; give one for each", {"in_specs": (P("x"),)}, {"in_specs": (P("x"), None)}),
    (double, (X, X), "jit with sharded inputs is program=auto", {"program": "jit"}, {"program": "auto"}),
    (double, (X, X), "; did you mean 'program'?", {"programs": "auto"}, {"program": "auto"}),
    (double, (X, X), "; did you mean 'h100'?", {"hardware": "h10"}, {"hardware": "h100"}),
    (double, (X, X), 'in Python expect={"collectives": {"all-reduce": 0}}', {"expect": {"all-reduce": 0}},
     {"expect": {"collectives": {"all-reduce": 0}}}),
    (trained, (X,), "; give a mapping of the names of keyword arguments, {'train': True}", {"kwargs": [True]},
     {"kwargs": {"train": True}}),
    (scaled, (X, 3), "; give None", {"in_specs": (P("x"), P("x"))}, {"in_specs": (P("x"), None)}),
    (joined, ({"a": X, "b": X}, X), "; give one, or one for all of in_specs[0]", {"in_specs": ({"a": P("x")}, P())},
     {"in_specs": ({"a": P("x"), "b": P()}, P())}),
]  # fmt: skip


@pytest.mark.whole
def test_a_call_that_follows_the_advice_passes() -> None:
    for function, operands, says, given, written in CALLS:
        default = {"mesh": MESH, "in_specs": P()}
        try:
            message = api.checked(function, operands, None, WORKERS, **{**default, **given}).error or ""
        except ValueError as refused:
            message = str(refused)
        assert says in message
        record = api.checked(function, operands, None, WORKERS, **{**default, **written})
        assert record.status == "passed", f"{written}: {record}"


def test_a_function_is_no_experiment() -> None:
    with pytest.raises(TypeError, match=r"write runner.check\(double, \(x, w\), …\)"):
        api.run(double)  # type: ignore[arg-type]


def advised(fault: Fault, message: str) -> tuple[str, list[str]] | None:
    """Return the file and the overrides with which a message's advice is followed; None where it has no exact one."""
    overrides = list(fault.overrides)
    if meant := re.search(r"'([^']+)'; did you mean '([^']+)'\?", message):
        wrong, right = meant.groups()
        words = [override.replace(wrong, right) for override in overrides]
        text = fault.file().decode()
        return (text, words) if words != overrides else (re.sub(rf"\b{re.escape(wrong)}\b", right, text), overrides)
    if override := re.search(r"write ([\w.~]+=\S+|~[\w.]+)$", message):
        key = override[1].partition("=")[0].lstrip("~")
        return fault.file().decode(), [
            *(each for each in overrides if each.lstrip("+~").partition("=")[0] != key),
            override[1],
        ]
    if (value := re.search(r"write ([\[{].*[\]}])$", message)) and fault.key is not None:
        data = yaml.safe_load(fault.file())
        *parents, last = fault.key.split(".")
        at = data
        for parent in parents:
            at = at[parent]
        at[last] = yaml.safe_load(value[1])
        return f"# @package _global_\n{yaml.safe_dump(data, sort_keys=False)}", overrides
    return None


def is_composed(fault: Fault) -> bool:
    """Whether a mistake is one of a file and overrides alone."""
    plain = all("=" in word and not word.startswith("-") and "hydra" not in word for word in fault.overrides)
    return fault.module == "runner" and not fault.alone and not fault.environment and fault.text is None and plain


FAULTS = [(number, fault) for number, fault in enumerate(faults.read()) if is_composed(fault)]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            marks=[] if re.search("write|mean", fault.says) else [pytest.mark.whole],
            id=f"{number} {fault.name}",
        )
        for number, fault in FAULTS
        # Other sessions would make thousands of items to leave them out.
        if here.OPTIMIZED or re.search("write|mean", fault.says)
    ],
)
def test_advice_is_not_refused_in_the_same_words(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_bytes(fault.file())
    message = refusal(Path("conf/experiment/mine.yaml"), list(fault.overrides))
    if message is None or (followed := advised(fault, message)) is None:
        return
    text, overrides = followed
    file.write_text(text, encoding="utf-8")
    again = refusal(Path("conf/experiment/mine.yaml"), overrides)
    assert again is None or kind(again.partition("\n  ")[2]) != kind(message.partition("\n  ")[2]), again


ADVICE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "advice.yaml").read_text(encoding="utf-8"))


@pytest.mark.in_turn
@pytest.mark.parametrize(("given", "says", "written"), ADVICE["tried"], ids=[str(row[0]) for row in ADVICE["tried"]])
def test_what_a_message_tells_to_write_is_read(given: str | list[str], says: str, written: str | list[str]) -> None:
    assert f"\n  {says}" in (refusal(CASE, [given] if isinstance(given, str) else given) or "")
    assert refusal(CASE, [written] if isinstance(written, str) else written) is None


TELLS = re.compile(
    r"\bwrite\b|did you mean|; (?:give|use|leave|pass|name|choose|call|add|make|take|move|set|keep|start)\b"
)
"""The words with which a message tells its reader what to write."""


def messages() -> Iterator[str]:
    """Yield the texts in runner/ that tell one what to write, with … where values go in."""
    for file in sorted((faults.ROOT / "runner").rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        # Most modules tell nothing; a text may be written in parts.
        if not TELLS.search(re.sub(r'"\s+f?"', "", source)):
            continue
        tree = ast.parse(source)
        nodes = list(ast.walk(tree))
        documented = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        # The help of an option says what it does.
        documented |= {id(node.value) for node in nodes if isinstance(node, ast.keyword) and node.arg == "help"}
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if id(node) in documented | parts:
                continue
            text = _text(node)
            if text is not None and TELLS.search(text):
                yield re.sub(r"\{[^{}]*\}", "…", text)


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@pytest.mark.in_turn
def test_every_message_that_tells_what_to_write_is_tried_or_listed_with_a_reason() -> None:
    tried = [says for _, says, _ in ADVICE["tried"]]
    tried += [fault.says for _, fault in FAULTS if advised(fault, fault.says) is not None]
    tried += [*LINES, *CALLS_THAT_FOLLOW, *(says for _, _, says, _, _ in CALLS)]
    kinds = ADVICE["followed"], ADVICE["pinned"], ADVICE["untried"]
    listed = [part for parts_by_file in kinds for parts in parts_by_file.values() for part in parts]
    texts = list(messages())
    longest = {text: max(re.split("…|\n *", text), key=len) for text in texts}
    unknown = [
        text
        for text in texts
        if not any(part in text for part in listed)
        and not (len(longest[text]) > 5 and any(longest[text] in says for says in tried))
    ]
    assert unknown == [], "try their advice: a row in tests/advice.yaml"
    assert [part for part in listed if not any(part in text for text in texts)] == [], "no message has these parts"


@pytest.mark.parametrize(("kind", "file"), [(kind, file) for kind in ("followed", "pinned") for file in ADVICE[kind]])
def test_the_advice_that_another_test_has_is_there(kind: str, file: str) -> None:
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    assert file == Path(__file__).name or [part for part in ADVICE[kind][file] if part not in text] == []
