"""The graph of a network: times by layer, folding, places, and the drawing itself."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from edgeloop.graph.outline import INPUT, OUTPUT, Outline, OutlineLayer
from edgeloop.view.network import (
    BOX_HEIGHT,
    MOST_BOXES,
    NARROW,
    STEPS,
    WIDE,
    Box,
    arrange,
    fold,
    match_times,
    picture_of,
    step_of,
)
from tests.networks import chain, public_outline, some_times

PUBLIC = ("unet_segmentation", "googlenet", "densenet121", "nasnet", "bert_base_uncased_hf")
SVG = "{http://www.w3.org/2000/svg}"


def net(*names: str) -> Outline:
    """A chain of layers, each with a tensor named after it."""
    layers = [
        OutlineLayer(
            name=name,
            operator=OUTPUT if name == "y" else "Conv",
            inputs=(place - 1,) if place else (),
            tensors=(f"{name}_output_0",),
        )
        for place, name in enumerate(names)
    ]
    return Outline(count=len(layers), layers=tuple(layers))


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ("/up.0/Conv", 0),
        ("/up.0/Conv_token_12", 0),
        ("/up.0/Conv +3", 0),
        ("fused /up.0/Conv", 0),
        ("/up.0/Conv_output_0_nchwc", 0),
        ("/up.0/Conv_output_0_QuantizeLinear", 0),
        ("/up.0/Conv_output_0_DequantizeLinear", 0),
        ("_up_0_Conv", 0),
        ("up_0_conv", 0),
        ("/up.1/Conv_output_0", 1),
        ("(output)", 2),
        ("Transpose_token_4", None),
        ("layer 3", None),
        ("", None),
    ],
)
def test_a_time_finds_its_layer_by_name(told: str, place: int | None) -> None:
    times = match_times(net("/up.0/Conv", "/up.1/Conv", "y"), [(told, "", 5.0)])
    assert times.times_us == ({} if place is None else {place: 5.0})
    assert times.unmatched == (place is None) and times.total_us == 5.0


def test_what_was_added_is_not_taken_for_a_layer_that_has_its_own_time() -> None:
    layers = [("Transpose", "Transpose", 3.0), ("Transpose_token_9", "Transpose", 4.0)]
    times = match_times(net("Transpose", "y"), layers)
    assert (times.times_us, times.unmatched, times.unmatched_us) == ({0: 3.0}, 1, 4.0)


@pytest.mark.parametrize("told", [-5.0, math.inf, -math.inf, math.nan, 1e308])
def test_impossible_times_spoil_no_drawing(told: float) -> None:
    layers = [("/1/Conv", "Conv", told), ("/2/Conv", "Conv", told), ("?", "", told)]
    picture = picture_of(chain(5), layers, "x-")
    assert all(math.isfinite(layer.share) for layer in picture.named)
    assert math.isfinite(picture.unmatched_share) and picture.wide


def test_names_that_differ_in_letters_only_are_not_guessed() -> None:
    times = match_times(net("/a/b", "/a.b"), [("a_b", "", 1.0), ("/a/b", "", 2.0)])
    assert (times.times_us, times.unmatched_us) == ({0: 2.0}, 1.0)


@pytest.mark.parametrize("name", PUBLIC)
def test_boxes_have_every_layer_once_and_come_after_what_they_read(name: str) -> None:
    outline = public_outline(name)
    times = match_times(outline, some_times(outline))
    boxes = fold(outline, times.times_us)
    assert boxes is not None and len(boxes) <= max(MOST_BOXES, 0)
    homes = {layer: number for number, box in enumerate(boxes) for layer in box.layers}
    assert len(homes) == len(outline.layers) == sum(len(box.layers) for box in boxes)
    for number, box in enumerate(boxes):
        assert all(source < number for source in box.inputs)
        read = {homes[one] for layer in box.layers for one in outline.layers[layer].inputs}
        assert read - {number} == set(box.inputs)
    costliest = sorted(times.times_us, key=lambda place: -times.times_us[place])[:8]
    assert all(len(boxes[homes[place]].layers) == 1 for place in costliest)
    ends = [p for p, layer in enumerate(outline.layers) if layer.operator in (INPUT, OUTPUT)]
    assert all(len(boxes[homes[place]].layers) == 1 for place in ends)


def test_a_chain_of_equal_layers_folds_into_equal_groups() -> None:
    outline = chain(662)
    boxes = fold(outline, dict.fromkeys(range(1, 661), 1.0))
    assert boxes is not None and len(boxes) == MOST_BOXES
    sizes = sorted(len(box.layers) for box in boxes[1:-1])
    assert sum(sizes) == 660 and sizes[-1] <= 4 * 660 / MOST_BOXES
    assert fold(chain(5), {}) == tuple(
        Box((place,), (place - 1,) if place else (), None) for place in range(5)
    )


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", PUBLIC)
def test_boxes_stand_in_rows_inside_the_drawing(name: str, width: float) -> None:
    outline = public_outline(name)
    boxes = fold(outline, match_times(outline, some_times(outline)).times_us)
    assert boxes is not None
    drawing = arrange(boxes, width)
    rows: dict[float, list[tuple[float, float]]] = {}
    for placed in drawing.boxes:
        sides = (placed.x - placed.width / 2, placed.x + placed.width / 2)
        assert sides[0] >= -0.01 and sides[1] <= width + 0.01
        rows.setdefault(placed.y, []).append(sides)
    for row in rows.values():
        assert all(one[1] <= other[0] + 0.01 for one, other in pairwise(sorted(row)))
    for connection in drawing.connections:
        source, target = drawing.boxes[connection.source], drawing.boxes[connection.target]
        assert source.y + BOX_HEIGHT < target.y
        for x, y in connection.lanes:  # passes no box
            beside = [sides for sides in rows[y] if sides[0] < x < sides[1]]
            assert not beside and -0.01 <= x <= width + 0.01
    assert drawing.height < MOST_BOXES * 60


def test_a_chain_goes_straight_down() -> None:
    boxes = fold(chain(5), {})
    assert boxes is not None
    assert len({round(placed.x, 3) for placed in arrange(boxes, WIDE).boxes}) == 1


def test_the_skip_connections_of_a_u_net_are_straight_lanes() -> None:
    boxes = fold(public_outline("unet_segmentation"), {})
    assert boxes is not None
    long = [c.lanes for c in arrange(boxes, WIDE).connections if len(c.lanes) > 2]
    assert len(long) == 4
    assert all(max(x for x, _ in lane) - min(x for x, _ in lane) < 2 for lane in long)


def test_colours_are_equal_steps_up_to_the_costliest() -> None:
    assert [step_of(time, 70) for time in (0, 9, 11, 35, 69, 70)] == [1, 1, 2, 4, STEPS, STEPS]
    assert step_of(None, 70) == step_of(0.0, 0.0) == 0


def test_the_drawing_says_what_each_layer_is_and_costs() -> None:
    layers = [("/1/Conv", "Conv", 30.0), ("/2/Conv", "Conv", 50.0), ("Transpose", "", 20.0)]
    picture = picture_of(chain(5), layers, "net-")
    root = ElementTree.fromstring(picture.wide)
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert titles[1] == "/1/Conv; Conv, output 1×8×8×8; 30 µs, 30.0 % of the time"
    assert titles[3].endswith("; no time of its own")
    assert [link.get("href") for link in root.iter(f"{SVG}a")] == [
        "#net-0",
        "#layer-1",
        "#layer-2",
        "#net-3",
        "#net-4",
    ]
    assert [(layer.name, layer.share) for layer in picture.named] == [
        ("/2/Conv", 0.5),
        ("/1/Conv", 0.3),
    ]
    assert (picture.layers, picture.unmatched, picture.unmatched_share) == (3, 1, 0.2)
    assert (picture.most_us, picture.most_share, picture.folded) == (50.0, 0.5, 0)
    ids = re.findall(r' id="([^"]+)"', picture.wide + picture.narrow)
    assert len(ids) == len(set(ids)) == 10


def test_names_are_text_and_never_markup() -> None:
    hostile = "</title><script>alert(1)</script>\x00\x1b\ud800"[:-1]
    layer = OutlineLayer(name=hostile, operator="<b>\x07", shape=(1, 2))
    picture = picture_of(Outline(count=1, layers=(layer,)), [(hostile, "", 1.0)], "x-")
    for svg in (picture.wide, picture.narrow):
        ElementTree.fromstring(svg)
        assert "<script" not in svg and "<b>" not in svg and "\x00" not in svg


def test_without_times_it_is_drawn_without_colours() -> None:
    picture = picture_of(public_outline("quicksrnetsmall"), (), "x-")
    assert picture.named == () and picture.most_us == 0
    assert set(re.findall(r"step-\d", picture.wide)) == {"step-0"}


def test_too_large_a_network_says_so() -> None:
    picture = picture_of(public_outline("swin_base"), (), "x-")
    assert picture.wide == "" and "at most 5,000 are drawn" in picture.trouble


def test_a_graph_that_cannot_be_folded_ends_soon_and_says_so() -> None:
    """Every layer of one side reads every layer of the other: no two can be joined."""
    first = [OutlineLayer(name=f"a{n}", operator=INPUT) for n in range(140)]
    second = [
        OutlineLayer(name=f"b{n}", operator="Add", inputs=tuple(range(140))) for n in range(140)
    ]
    outline = Outline(count=280, layers=(*first, *second))
    assert "It cannot be folded" in picture_of(outline, (), "x-").trouble
