"""The line of a user's file that an instruction comes from, and the callers that tell it from others of that line."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from runner.compiled.evidence import hlo
from runner.compiled.evidence.source_lines import (
    SourceLine,
    distinguishing,
    installed,
    source_line,
    source_lines,
    spelled,
)
from tests import twice

MODULE = """HloModule jit_step

FileNames
1 "/home/me/train.py"
2 "/home/me/shardops.py"
3 "/usr/lib/python3.12/site-packages/jax/_src/lax/parallel.py"

FunctionNames
1 "layer"
2 "gather"
3 "all_gather"

FileLocations
1 {file_name_id=1 function_name_id=1 line=88 end_line=88 column=4 end_column=4}
2 {file_name_id=1 function_name_id=1 line=89 end_line=89 column=4 end_column=4}
3 {file_name_id=2 function_name_id=2 line=44 end_line=44 column=4 end_column=4}
4 {file_name_id=3 function_name_id=3 line=900 end_line=900 column=4 end_column=4}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=3 parent_frame_id=2}
3 {file_location_id=4 parent_frame_id=3}
4 {file_location_id=2 parent_frame_id=1}
5 {file_location_id=3 parent_frame_id=5}
6 {file_location_id=4 parent_frame_id=1}


ENTRY %main (w: f32[4]) -> f32[4] {
  %w = f32[4]{0} parameter(0)
  %q = f32[4]{0} negate(%w), metadata={op_name="a/neg" stack_frame_id=3}
  %k = f32[4]{0} negate(%q), metadata={op_name="b/neg" stack_frame_id=5}
  %old = f32[4]{0} negate(%k), metadata={op_name="c/neg" source_file="/home/me/old.py" source_line=7}
  ROOT %lib = f32[4]{0} negate(%old), metadata={op_name="d/neg" stack_frame_id=6}
}
"""


@pytest.fixture(scope="module")
def lines() -> dict[str, SourceLine]:
    return source_lines(hlo.read(MODULE))


def test_the_line_is_the_innermost_outside_of_installed_packages(lines: dict[str, SourceLine]) -> None:
    assert lines["q"].at == lines["k"].at == ("/home/me/shardops.py", 44)


def test_a_call_that_shardproof_makes_has_no_line() -> None:
    assert source_line([("/runs/f/called.py", 252), ("/runs/f/program_auto.py", 30)], lambda _: False) is None


def test_a_line_of_a_library_is_named_where_there_is_no_other(lines: dict[str, SourceLine]) -> None:
    assert lines["lib"].library
    assert lines["lib"].at[1] == 900


def test_a_module_of_before_stack_frames_has_its_innermost_line(lines: dict[str, SourceLine]) -> None:
    assert lines["old"] == SourceLine(("/home/me/old.py", 7))


def test_an_instruction_without_a_source_has_no_line(lines: dict[str, SourceLine]) -> None:
    assert "w" not in lines


def test_callers_are_named_where_they_tell_calls_of_one_helper_apart(lines: dict[str, SourceLine]) -> None:
    paths = distinguishing(lines.values())
    assert paths[lines["q"]] == (("/home/me/train.py", 88),)
    assert paths[lines["k"]] == (("/home/me/train.py", 89),)
    assert paths[lines["old"]] == ()


def test_of_several_callers_those_that_differ_are_named() -> None:
    at, a, b, c, d, main = (("f.py", number) for number in (1, 2, 3, 4, 5, 6))
    called_from = [(a, c, main), (b, c, main), (a, d, main), (b, d, main)]
    paths = distinguishing(SourceLine(at, callers) for callers in called_from)
    assert [*paths.values()] == [(a, c), (a, d), (b, c), (b, d)]


def test_a_generator_is_no_caller_of_its_own_line() -> None:
    at = ("train.py", 9)
    inside = SourceLine(at, (at, ("train.py", 16)))
    assert distinguishing([inside, SourceLine(at, (("train.py", 16),))])[inside] == ()


def test_one_call_of_a_helper_needs_no_callers() -> None:
    once = SourceLine(("f.py", 1), (("f.py", 2),))
    assert distinguishing([once, once]) == {once: ()}


def test_a_stack_without_frames_is_no_line() -> None:
    assert source_line([]) is None


@pytest.mark.parametrize(
    "file",
    [
        "/a/.venv/lib/python3.12/site-packages/flax/nnx/module.py",
        "/usr/lib/python3/dist-packages/jax/core.py",
        "/usr/lib/python3.11/functools.py",
        "C:\\Users\\me\\venv\\Lib\\site-packages\\jax\\core.py",
        "<string>",
    ],
)
def test_files_of_packages_and_of_python_are_no_users(file: str) -> None:
    assert installed(file)


@pytest.mark.parametrize("file", ["/home/me/python3.12/train.py", "/home/me/lib/train.py", "<ipython-input-3-ab>"])
def test_files_outside_of_installed_packages_are_the_users(file: str) -> None:
    assert not installed(file)


def test_a_module_that_jax_compiled_has_the_calls_of_a_helper() -> None:
    compiled = jax.jit(twice.called_twice).lower(np.ones((4, 4), np.float32)).compile().as_text()
    module = hlo.read(compiled or "")
    of = source_lines(module, lambda file: file == twice.__file__)
    paths = {spelled(line, callers) for line, callers in distinguishing(of.values()).items()}
    file = Path(twice.__file__).name
    assert {f"{file}:14 q = halved(x @ x) → {file}:10", f"{file}:15 k = halved(q @ x) → {file}:10"} <= paths
