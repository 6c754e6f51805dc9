"""Makes the sections with the mesh and every array of a record, with devices to highlight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from runner.base.words import bytes_text
from runner.reports.record.model import Pictures, Record
from runner.reports.show import logical, svg, trees
from runner.reports.show.page import drawing
from runner.reports.show.page.markup import Inside, Markup, Part, breakable, table, tag
from runner.reports.show.pictures import ArrayPicture, MeshPicture, Picture, alike, figure_colours, merge, read
from runner.reports.show.table import Table

_CHOSEN = 128
"""The most devices that get a button each."""

_ROOM = 560.0

_BOXES = 3
"""The most full copies that are drawn; more are listed."""

_NARROW = 400.0
"""A wider picture spans two columns of the grid."""


def parts(record: Record) -> Iterator[Part]:
    """Return the sections; none if the record has no pictures."""
    if record.pictures is None:
        return
    mesh, arrays = read(record.pictures)
    every = alike(arrays)
    paint = figure_colours(mesh, every)
    yield Part("mesh", "Mesh", [_mesh(mesh, paint), _chooser(mesh, paint)])
    lead = "A cell is a shard, labelled with every device that holds a copy, and striped in their colours."
    lead += " Arrays with the same layout share a picture." if len(every) < len(merge(arrays)) else ""
    whole = [picture for picture in every if picture.whole]
    whole = whole if len(whole) > _BOXES else []
    drawn = [_array(picture, paint, k) for k, picture in enumerate(every) if picture not in whole]
    if record.logical:
        rules = table("The specs that the rules give", logical.table(record.logical), kind="small")
        yield Part("logical", "Logical names", rules)
    if record.paths:
        yield Part(
            "trees",
            "Trees",
            table("The leaves of the trees, and their layouts", trees.table(record), kind="small trees"),
        )
    cards = tag("div", drawn, class_="cards") if drawn else None
    yield Part("arrays", "Arrays", [tag("p", lead, class_="lead"), cards, _copies(whole) if whole else None])


def _copies(whole: Sequence[ArrayPicture]) -> Markup:
    """List the arrays of which each device has a full copy: their pictures are one box each."""
    rows = [
        [breakable(picture.name), picture.lines()[0], picture.spec, bytes_text(picture.bytes_per_device)]
        for picture in whole
    ]
    head = ("array", "type", "layout", "per device")
    return table("A full copy on every device", Table(head, rows, frozenset({3})), kind="copies")


def names(drawn: Pictures) -> dict[str, str]:
    """Return each output's layout in words if all programs agree on it, otherwise `several layouts`."""
    _, arrays = read(drawn)
    spec_of: dict[str, str] = {}
    for picture in merge(arrays):
        if picture.role == "output":
            spec_of[picture.name] = picture.spec if picture.name not in spec_of else "in several layouts"
    return spec_of


def _mesh(mesh: MeshPicture, paint: Mapping[int, str]) -> Markup:
    return _figure(mesh, paint, "mesh-f", [tag("span", part, class_="type") for part in mesh.lines()])


def _array(picture: ArrayPicture, paint: Mapping[int, str], number: int) -> Markup:
    kind, spec, *rest = picture.lines()
    caption = [
        tag("h3", breakable(picture.name)),
        tag("code", kind, class_="type"),
        tag("code", spec, class_="spec"),
        [tag("span", line.replace("  ", " · "), class_="told") for line in rest],
    ]
    return _figure(picture, paint, f"array-{number}", caption)


def _figure(picture: Picture, paint: Mapping[int, str], id: str, caption: Inside) -> Markup:
    box = svg.figure(picture, dict(paint), marked=True, room=_ROOM)
    image = drawing.svg(box, id, picture.name, picture.lines())
    kind = "wide" if box.width > _NARROW else None
    return drawing.figure(image, picture.name, caption, data_name=picture.name, kind=kind)


def _chooser(mesh: MeshPicture, paint: Mapping[int, str]) -> Markup | None:
    """Return a button for each device, hidden until the page's script shows them."""
    ids = sorted(mesh.device_ids)
    if len(ids) > _CHOSEN:
        low, high = str(ids[0]), str(ids[-1])
        field = tag("input", type="number", id="device", min=low, max=high, inputmode="numeric")
        chosen: Inside = tag("label", f"Device ({low} to {high}) ", field)
    else:
        radios = [
            tag(
                "label",
                tag("input", type="radio", name="device", value=str(device)),
                tag("span", str(device), style=f"--c:{paint[device]}"),
            )
            for device in ids
        ]
        chosen = [tag("label", tag("input", type="radio", name="device", value="", checked=True), tag("span", "all"))]
        chosen += radios
    legend = tag("legend", "Highlight a device in every picture")
    status = tag("p", id="held", aria_live="polite")
    return tag("fieldset", legend, tag("div", chosen, class_="chips"), status, class_="devices", hidden=True)
