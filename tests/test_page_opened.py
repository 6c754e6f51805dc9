"""The pages in a browser: no errors, no requests, usable without a script, by keyboard and with a screen reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.app.cli import report
from tests import browser, swept
from tests.browser import Browser
from tests.harness import run
from tests.test_plans_page import write_page

EXECUTABLE = browser.executable()

pytestmark = [
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on the path, nor in $CHROMIUM"),
    pytest.mark.xdist_group("browser"),
]

LOOP = """
name: looped
arrays:
  x: {shape: [8], init: "linspace(0, 1, 8)", spec: [x]}
  w: {shape: [4, 8], init: normal, spec: [null, x]}
graph:
  layers: {repeat: 4, carry: {h: x}, body: {s: "sum(w[i])", h: h * s}}
  y: layers.h + x
per_device:
  layers: {repeat: 4, carry: {h: x}, body: {s: "psum(sum(w[i]), 'x')", h: h * s}}
  y: layers.h + x
outputs: {y: [x]}
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    assert EXECUTABLE is not None
    with browser.browsing(EXECUTABLE) as opened:
        yield opened


@pytest.fixture(scope="module")
def of_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a run of every program, with its trace."""
    folder = tmp_path_factory.mktemp("run")
    run(LOOP, folder, trace=True)
    assert report.main([str(folder)]) == 0
    return folder / report.PAGE


@pytest.fixture(scope="module")
def of_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a sweep of 200 points: a browser lays out more of them in the same way."""
    folder = tmp_path_factory.mktemp("sweep")
    swept.write(folder, 200)
    assert report.main([str(folder), "--only"]) == 0
    return folder / report.PAGE


@pytest.fixture(scope="module")
def of_plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of the difference of two plans."""
    return write_page(tmp_path_factory.mktemp("plans"))


@pytest.mark.sample(6)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("kind", ["of_run", "of_sweep", "of_plans"])
def test_a_page_has_no_errors_and_makes_no_requests(
    request: pytest.FixtureRequest, chromium: Browser, kind: str, width: int, scheme: str
) -> None:
    page: Path = request.getfixturevalue(kind)
    chromium.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    chromium.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    chromium.open(page)
    assert chromium.complaints() == []
    assert chromium.requests() == [page.as_uri()]
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width, "it does not scroll sideways"
    ink = chromium.evaluate("getComputedStyle(document.body).color")
    assert (ink == "rgb(26, 31, 38)") == (scheme == "light")


@pytest.mark.in_turn
def test_the_verdicts_of_a_run_need_no_more_than_1000_pixels(chromium: Browser, of_run: Path) -> None:
    chromium.call("Emulation.setDeviceMetricsOverride", width=1000, height=900, deviceScaleFactor=1, mobile=False)
    chromium.open(of_run)
    sizes = "(box => [box.scrollWidth, box.clientWidth])(document.querySelector('table.verdicts').parentElement)"
    needed, room = chromium.evaluate(sizes)
    assert needed <= room
    # A graph is drawn as wide as there is room, not wider.
    wide = chromium.evaluate("[...document.querySelectorAll('#graph .scroll')].map(b => b.scrollWidth - b.clientWidth)")
    assert wide
    assert max(wide) <= 0


@pytest.mark.in_turn
def test_without_a_script_a_page_is_complete(chromium: Browser, of_run: Path, of_sweep: Path) -> None:
    texts = {}
    for scripted in (False, True):
        chromium.call("Emulation.setScriptExecutionDisabled", value=not scripted)
        for page in (of_run, of_sweep):
            chromium.open(page)
            texts[page, scripted] = chromium.evaluate(
                "[...document.querySelectorAll('main>section')].map(s => s.textContent.length)"
            )
            hidden = chromium.evaluate("[...document.querySelectorAll('[hidden]')].length")
            assert (hidden > 0) == (not scripted)
    assert texts[of_run, True] == texts[of_run, False]
    assert texts[of_sweep, True] == texts[of_sweep, False]


def test_a_device_is_highlighted_in_every_picture_by_keyboard(chromium: Browser, of_run: Path) -> None:
    chromium.open(of_run)
    chromium.evaluate("document.querySelector('.devices input').focus()")
    chromium.press("ArrowRight", 39)
    assert chromium.evaluate("document.querySelector('.devices input:checked').value") == "0"
    held = chromium.evaluate("document.getElementById('held').textContent")
    assert held == "Device 0: mesh x=0, y=0  x, y [0:4]  w[0:4, 0:4]"
    lit = chromium.evaluate("[...document.querySelectorAll('[data-d].on')].map(cell => cell.dataset.d)")
    assert lit, "some cell is lit"
    assert all("0" in devices.split() for devices in lit)
    dark = chromium.evaluate("[...document.querySelectorAll('[data-d]:not(.on)')].map(cell => cell.dataset.d)")
    assert not any("0" in devices.split() for devices in dark)


@pytest.mark.in_turn
def test_a_table_is_sorted_by_a_labelled_button(chromium: Browser, of_sweep: Path) -> None:
    chromium.open(of_sweep)
    heads = chromium.evaluate("[...document.querySelectorAll('#rows thead th')].map(th => th.textContent)")
    at = heads.index("bytes sent")
    column = f"[...document.querySelectorAll('#rows tbody tr')].map(row => row.cells[{at}].dataset.v)"
    for order in ("ascending", "descending"):
        chromium.evaluate(f"document.querySelectorAll('#rows thead button')[{at}].focus()")
        chromium.press("Enter", 13, "\r")
        assert chromium.evaluate("document.querySelector('#rows th[aria-sort]').getAttribute('aria-sort')") == order
        values = chromium.evaluate(column)
        known = [float(value) for value in values if value != ""]
        assert known == sorted(known, reverse=order == "descending")
        assert values[: len(known)] == [value for value in values if value != ""], "what is not known comes last"


def test_rows_are_narrowed_by_words(chromium: Browser, of_sweep: Path) -> None:
    chromium.open(of_sweep)
    chromium.evaluate(
        "const field = document.getElementById('rows-filter'); field.value = 'shard_map [x,y]';"
        "field.dispatchEvent(new Event('input'))"
    )
    shown = chromium.evaluate(
        "[...document.querySelectorAll('#rows tbody tr')].filter(row => !row.hidden).map(row => row.textContent)"
    )
    assert shown
    assert all("shard_map" in text and "[x,y]" in text for text in shown)
    assert chromium.evaluate("document.getElementById('rows-count').textContent") == f"{len(shown)} of 200 rows"


def test_a_row_and_its_mark_in_the_chart_light_up_together(chromium: Browser, of_sweep: Path) -> None:
    chromium.open(of_sweep)
    chromium.evaluate("document.querySelector('#rows tbody a').focus()")
    lit = chromium.evaluate("[...document.querySelectorAll('.lit')].map(e => [e.localName, e.dataset.p])")
    assert {name for name, _ in lit} >= {"a", "tr"}
    assert {id for _, id in lit} == {"0.auto"}


@pytest.mark.in_turn
def test_every_node_for_screen_readers_has_a_name(chromium: Browser, of_run: Path, of_sweep: Path) -> None:
    for page in (of_run, of_sweep):
        chromium.open(page)
        chromium.draw()
        spoken = heard(chromium)
        assert nameless(spoken) == []
        roles = {role for role, _ in spoken}
        assert {"main", "navigation", "table", "columnheader", "rowheader", "heading"} <= roles


def heard(chromium: Browser) -> list[tuple[str, str]]:
    """Return the role and the name of every node that a screen reader reads."""
    nodes = chromium.call("Accessibility.getFullAXTree")["nodes"]
    return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]


def nameless(spoken: list[tuple[str, str]]) -> list[str]:
    """Return the roles of nodes that need a name and have none."""
    named = {"region", "image", "table", "link", "button", "textbox", "searchbox", "radio", "checkbox"}
    return [role for role, name in spoken if role in named and not name.strip()]


def test_a_page_prints_completely(chromium: Browser, of_run: Path) -> None:
    chromium.open(of_run)
    printed = chromium.call("Page.printToPDF", printBackground=True)["data"]
    assert len(printed) > 20_000
    chromium.call("Emulation.setEmulatedMedia", media="print", features=[])
    try:
        assert chromium.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
        closed = "[...document.querySelectorAll('details:not([open]) > :not(summary)')]"
        heights = chromium.evaluate(f"{closed}.map(each => each.getBoundingClientRect().height)")
        assert heights
        assert min(heights) > 0, "what is folded on the screen is open on paper"
    finally:
        chromium.call("Emulation.setEmulatedMedia", media="", features=[])


def test_the_data_is_in_the_page(chromium: Browser, of_run: Path) -> None:
    chromium.open(of_run)
    embedded = chromium.evaluate("JSON.parse(document.getElementById('data').textContent)")
    assert embedded == json.loads((of_run.parent / "result.json").read_text("utf-8"))


@pytest.mark.in_turn
def test_the_bars_of_two_plans_need_no_more_than_800_pixels(chromium: Browser, of_plans: Path) -> None:
    chromium.call("Emulation.setDeviceMetricsOverride", width=800, height=900, deviceScaleFactor=1, mobile=False)
    chromium.open(of_plans)
    wide = chromium.evaluate("[...document.querySelectorAll('.scroll')].map(box => box.scrollWidth - box.clientWidth)")
    assert wide
    assert max(wide) <= 0
    lengths = chromium.evaluate("[...document.querySelectorAll('.bar')].map(bar => bar.getBoundingClientRect().width)")
    assert lengths[1] == max(lengths)
    assert lengths[0] == pytest.approx(lengths[1] / 5, abs=1)
