"""Kinds of parallelism: what the sentences of a plan say is what one who knows the field would say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_plan import planned

TEXT = Path(__file__).with_name("parallelism.yaml").read_text(encoding="utf-8")
PLANS: dict[str, Any] = yaml.safe_load(TEXT)


def config(written: dict[str, Any]) -> dict[str, Any]:
    """Return the experiment of a plan in the file."""
    mesh = written["mesh"]
    arrays = {
        name: {"shape": shape, "spec": spec} | ({"dtype": dtype[0], "init": "integers(0, 2)"} if dtype else {})
        for name, (shape, spec, *dtype) in written["arrays"].items()
    }
    grad = {"grad": {"of": "loss", "wrt": written["wrt"]}} if "wrt" in written else {}
    return {
        "name": "named",
        "mesh": {"axes": list(mesh), "shape": list(mesh.values())},
        "dims": written.get("dims", {}),
        "arrays": arrays,
        "graph": written["graph"] | written.get("then", {}),
        "constraints": written.get("constraints", {}),
        "outputs": written.get("outputs", {"loss": []}),
        **grad,
    }


def names(sentences: tuple[str, ...]) -> list[str]:
    """Return the sentences without bytes and remarks."""
    return [re.sub(r" \([0-9.]+ [kMG]?B\)", "", each).split("; their ")[0] for each in map(_bare, sentences)]


def _bare(sentence: str) -> str:
    return re.split(r"; (?=gradients|its|the edges|each device)", sentence)[0]


@pytest.mark.in_turn
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_has_the_name_of_what_it_is(name: str) -> None:
    plan = PLANS[name]
    sentences = names(planned(config(plan)).parallelism)
    if "names" in plan:
        assert sentences == plan["names"]
    assert set(plan.get("has", ())) <= set(sentences)
    assert not [word for word in plan.get("without", ()) for sentence in sentences if word in sentence]


def test_no_plan_in_the_file_hides_another_of_its_name() -> None:
    """YAML keeps the last of equal keys."""
    assert re.findall(r"^(\S.*):$", TEXT, re.MULTILINE) == list(PLANS)


def test_a_plan_gives_layouts_to_lines_in_loops_and_to_arrays_as_lines_read_them() -> None:
    """Without these layouts the compiler chooses others."""
    arrays = {"x": [[16, 8], ["a"]], "w": [[8, 8], ["a"]], "stack": [[3, 8, 8], []]}
    body = {"p": "h @ u", "h": "h + gelu(p)"}
    graph = {"y": "x @ w", "layers": {"repeat": 3, "over": {"u": "stack"}, "carry": {"h": "y"}, "body": body}}
    written = {"mesh": {"a": 4}, "arrays": arrays, "graph": graph, "outputs": {"layers.h": ["a"]}}
    constraints = planned(config(written)).best.constraints
    assert {name: constraints[name].json() for name in ("layers.p", "w")} == {
        "layers.p": ["a", None],
        "w": [None, None],
    }
