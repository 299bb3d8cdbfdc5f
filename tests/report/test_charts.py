"""Every chart with data, with very little and with none; files that are what they say."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from edgeloop.errors import BadInput, LocalFileError
from edgeloop.view.charts import (
    Evidence,
    Layers,
    classes_chart,
    evidence_charts,
    f1_chart,
    front_frames,
    interval_of,
    layers_chart,
    pareto_chart,
    pr_chart,
    quantization_chart,
    read_curves,
    read_layers,
    read_scores,
    training_chart,
    utilisation_chart,
)
from edgeloop.view.drawing import (
    FONTS,
    NARROW,
    show,
    spec_of,
    to_gif,
    to_html,
    to_page_part,
    to_page_parts,
    to_png,
    to_svg,
    write_chart,
)
from edgeloop.view.measures import objective
from tests.report.pages import references
from tests.report.tables import table

PERF = """what,name,operator,time_us,kind
total,,,120.5,estimate
sample,0,,120.5,estimate
layer,/enc/Conv,Conv,80.5,estimate
layer,/enc/Conv,Conv,30,estimate
layer,/enc/"Relu",Relu,,estimate
condition,threads,,4,estimate
"""
SCORES = "metric,skin,nose,overall\niou,0.8,0.4,0.6\nf1,0.9,0.5,0.7\nAP,0.95,nan,0.8\n"
POINTS = "class,recall,precision\nskin,0,1\nskin,0.5,0.9\nnose,1,0.4\nnose,,0.4\nskin,1,n/a\n"
ONE = Layers((("/Conv", "Conv", 3.0),), "measured", {})
USE = {"device": "host", "day": "2026-11-01", "seconds": 43_200.0, "uses": 3}
CURVES = {"skin": ([0.0, 0.5, 1.0], [1.0, 0.9, 0.4])}
WHOLE: dict[str, Callable[[], Any]] = {
    "pareto": lambda: pareto_chart(table(40)),
    "training": lambda: training_chart(table(40)),
    "quantization": lambda: quantization_chart(table(80)),
    "layers": lambda: layers_chart(read_layers(PERF)),
    "classes": lambda: classes_chart(read_scores(SCORES)),
    "pr": lambda: pr_chart(CURVES),
    "f1": lambda: f1_chart(table(80), intervals={"calm-heron-3": (0.5, 0.7)}),
    "utilisation": lambda: utilisation_chart([USE, {**USE, "device": "htp", "seconds": 8640}]),
}
TINY: dict[str, Callable[[], Any]] = {
    "pareto": lambda: pareto_chart([{"name": "a", "mean": 0.01, "f1_1k": 0.5}]),
    "training": lambda: training_chart(table(1)),
    "quantization": lambda: quantization_chart(table(1)),
    "layers": lambda: layers_chart(ONE),
    "classes": lambda: classes_chart({"f1": {"skin": 0.5}}),
    "pr": lambda: pr_chart({"skin": ([0.5], [0.5])}),
    "f1": lambda: f1_chart(table(1)),
    "utilisation": lambda: utilisation_chart([USE]),
}
EMPTY: dict[str, tuple[Callable[[], Any], str]] = {
    "pareto": (lambda: pareto_chart([]), "No model has latency_ms and f1_1k yet."),
    "training": (lambda: training_chart([{"val_iou": 1}]), "No model has been trained both"),
    "quantization": (lambda: quantization_chart([{"f1_1k_f": "n/a", "f1_1k": 1}]), "No model has"),
    "layers": (lambda: layers_chart(read_layers("a,b\n1,2\n")), "No layer times for this model."),
    "classes": (lambda: classes_chart(read_scores("")), "No scores per class for this model."),
    "pr": (lambda: pr_chart({}), "No PR curve"),
    "f1": (lambda: f1_chart([{"f1_1k": "n/a"}]), "No model has f1_1k yet."),
    "no layers": (lambda: layers_chart(None), "No layer times for this model."),
    "utilisation": (lambda: utilisation_chart([]), "No device has been used yet."),
}


def picture(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    image.load()
    return image


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_chart_becomes_a_picture_on_its_ground(name: str, theme: Any):
    image = picture(to_png(WHOLE[name](), theme, scale=1)).convert("RGB")
    assert image.width > 300
    assert image.getpixel((1, 1)) == {"light": (255, 255, 255), "dark": (22, 24, 29)}[theme]
    assert len(image.getcolors(1 << 24)) > 30, "nothing is drawn"


@pytest.mark.parametrize("name", TINY)
def test_a_chart_of_a_single_thing_is_a_chart(name: str):
    drawn = to_svg(TINY[name]())
    assert drawn.count("<path") > 3 and "NaN" not in drawn


@pytest.mark.parametrize("name", EMPTY)
def test_a_chart_of_nothing_says_what_is_missing(name: str):
    chart, sentence = EMPTY[name]
    assert sentence in to_svg(chart())


@pytest.mark.parametrize("name", WHOLE)
def test_axes_have_titles_and_no_chart_repeats_its_data(name: str):
    spec = spec_of(WHOLE[name]())
    assert re.search(
        r'"title": "[^"]*(ms|µs|F1|mIoU|score|recall|day)', json.dumps(spec, ensure_ascii=False)
    )
    assert len(spec.get("datasets", {"one": ()})) <= 2


def marks(chart: Any) -> list[str]:
    """What pointing at each model's mark says."""
    return re.findall(r"<(?:\w+:)?title>(calm[^<]*|mine[^<]*)</", to_page_part(chart, "x-"))


def test_every_model_has_its_mark_also_one_that_no_search_made():
    rows = [
        *table(20),
        {"name": "mine-best", "mean": 0.001, "f1_1k": 0.99},
        {"name": "mine-worst", "mean": 0.1, "f1_1k": 0.1},
    ]
    said = marks(pareto_chart(rows))
    assert len(said) == 22
    assert "mine-best: latency_ms 1, f1_1k 0.9900" in said
    assert "mine-worst: latency_ms 100, f1_1k 0.1000" in said
    assert sum(" est," in text for text in said) == sum(
        row.get("latency_kind") == "estimate" for row in rows
    )


def test_a_model_without_an_iteration_is_grey():
    rows = [*table(2, 2), {"name": "mine", "mean": 0.1, "f1_1k": 0.1}]
    part = to_page_part(pareto_chart(rows), "x-")
    (mark,) = re.findall(r"<path ([^>]*)><title>mine: ", part)
    assert 'fill="#888888"' in mark
    (other,) = re.findall(r"<path ([^>]*)><title>calm-heron-0: ", part)
    assert 'fill="rgb' in other


def test_estimates_are_hollow_and_the_legend_says_so():
    drawn = to_svg(pareto_chart(table(20)))
    assert "estimate (hollow)" in drawn and "measured (filled)" in drawn
    measured = [{**row, "latency_kind": "measured"} for row in table(20)]
    assert "hollow" not in to_svg(pareto_chart(measured))


def test_bars_are_one_standard_deviation_to_either_side():
    row = {"name": "a", "mean": 0.010, "stdev": 5.0, "f1_1k": 0.5}
    spec = spec_of(pareto_chart([row]))
    (point,) = next(iter(spec["datasets"].values()))
    assert point["sigma"] == pytest.approx(0.5)
    assert "datum.x - datum.sigma" in json.dumps(spec)


def test_the_use_of_a_device_is_a_share_of_the_whole_day():
    spec = utilisation_chart([{**USE, "seconds": 180}]).to_dict()
    assert spec["encoding"]["y"]["scale"]["domain"] == [0, 100], "three minutes fill no chart"


def test_an_estimate_on_the_front_has_a_pale_band_as_wide_as_its_interval():
    interval = {"latency_low_ms": 8.0, "latency_high_ms": 19.0, "latency_coverage": 0.9}
    estimate = {"latency_kind": "estimate", **interval}
    row = {"name": "a", "mean": 0.010, "f1_1k": 0.5}
    spec = spec_of(pareto_chart([{**row, **estimate}]))
    (point,) = next(iter(spec["datasets"].values()))
    assert (point["low"], point["high"]) == (8.0, 19.0)
    assert point["about"] == "a: latency_ms 10 est (8 – 19), f1_1k 0.5000"
    assert "pale: 90 % interval of an estimate" in json.dumps(spec)
    old = {"latency_kind": "estimate", "latency_margin_percent": 20.0}
    for other in ({"latency_kind": "measured", **interval}, old):
        shown = json.dumps(spec_of(pareto_chart([{**row, **other}])))
        assert "margin" not in shown and "pale" not in shown
    beaten = {**row, **estimate, "name": "b", "mean": 0.02, "f1_1k": 0.4}
    assert "pale" not in json.dumps(spec_of(pareto_chart([row, beaten])))


def test_scores_on_a_front_have_their_intervals_and_the_front_its_names():
    row = {"name": "calm-heron", "mean": 0.01, "f1_1k": 0.5, "f1_1k_low": 0.45, "f1_1k_high": 0.56}
    chart = pareto_chart([row, {"name": "beaten-otter", "mean": 0.02, "f1_1k": 0.4}])
    spec = json.dumps(spec_of(chart))
    assert '"y_low": 0.45, "y_high": 0.56' in spec and "95 % interval of scores" in spec
    drawn = to_svg(chart)
    assert ">calm-heron</text>" in drawn and ">beaten-otter</text>" not in drawn


def test_a_chart_carries_the_font_it_was_measured_with():
    chart = pareto_chart(table(5))
    for text in (to_svg(chart), show(chart).forms["text/html"]):
        assert "@font-face{font-family:'Edgeloop Sans'" in text
        assert re.search(r"font-family=.'?Edgeloop Sans", text)
    from PIL import ImageFont

    letters = ImageFont.truetype(FONTS / "regular.ttf", 12)
    assert letters.getname()[0] == "Edgeloop Sans" and letters.getlength("µ") > 4


def test_a_chart_for_a_phone_is_as_wide_as_one_and_its_letters_are_not_smaller():
    for name in ("pareto", "layers", "classes", "quantization"):
        parts = to_page_parts(WHOLE[name](), "x-")
        wide, narrow = (int(float(w)) for w in re.findall(r'<svg [^>]*?width="([\d.]+)"', parts))
        assert narrow <= NARROW + 8 < wide, name
        assert parts.count('font-size="12px"') > 10


def test_curves_are_read_by_class_and_lines_without_numbers_left_out():
    assert read_curves(POINTS) == {"skin": ([0.0, 0.5], [1.0, 0.9]), "nose": ([1.0], [0.4])}
    assert read_curves("") == read_curves("a,b\n1,2\n") == {}


def test_pointing_at_a_curve_says_which_class_it_is():
    part = to_page_part(pr_chart(read_curves(POINTS), average={"skin": 0.95}), "x-")
    assert re.findall(r"<title>([^<]*)</title>", part) == ["skin  0.950", "nose"]


def test_an_interval_is_known_only_where_the_test_wrote_it_down():
    assert interval_of(read_scores(SCORES)) is None
    assert interval_of(read_scores(SCORES + "f1_low,,,0.6\nf1_high,,,0.75\n")) == (0.6, 0.75)


def test_f1_of_models_is_shown_best_first_with_intervals_where_known():
    rows = [{"name": f"m{n}", "f1_10k": n / 100} for n in range(70)]
    drawn = to_svg(f1_chart(rows, "f1_10k", {"m69": (0.6, 0.8)}))
    assert drawn.index(">m69<") < drawn.index(">m68<") and ">m9<" not in drawn
    assert "the best 60" in drawn and "95 % interval" in drawn
    assert "interval" not in to_svg(f1_chart(rows, "f1_10k"))


def test_a_front_of_three_objectives_has_no_line():
    three = [objective("mean"), objective("f1_1k"), objective("params")]
    assert "step-after" in json.dumps(spec_of(pareto_chart(table(9))))
    assert "step-" not in json.dumps(spec_of(pareto_chart(table(9), three)))


def test_the_line_of_a_front_to_be_maximised_steps_the_other_way():
    turned = [objective("mean:max"), objective("f1_1k")]
    assert "step-before" in json.dumps(spec_of(pareto_chart(table(9), turned)))


def test_float_and_quantized_are_compared_on_the_same_images_only():
    rows = [{"name": "a", "f1_onnx": 0.9, "f1_1k": 0.8}]
    assert "No model has" in to_svg(quantization_chart(rows))
    assert "at most 10,000 test images" in to_svg(quantization_chart([{**rows[0], "f1_10k": 0.7}]))


def test_many_models_are_cut_to_those_that_lose_most():
    rows = [{"name": f"m{n}", "f1_1k_f": 0.9, "f1_1k": 0.9 - n / 1000} for n in range(100)]
    drawn = to_svg(quantization_chart(rows))
    assert "the 60 that lose most" in drawn
    assert ">m99<" in drawn and ">m1<" not in drawn


def test_layers_are_read_with_their_conditions():
    layers = read_layers(PERF)
    assert layers.times_us == (("/enc/Conv", "Conv", 80.5), ("/enc/Conv", "Conv", 30.0))
    assert (layers.kind, layers.conditions) == ("estimate", {"threads": "4"})


def test_layers_of_one_name_keep_a_bar_each_whatever_they_are_called():
    times = tuple((name, "Conv", 3.0) for name in ("same", "same", "\"'});alert(1)//", "</svg>"))
    drawn = to_svg(layers_chart(Layers(times, "measured", {})))
    assert drawn.count(">same<") == 2
    assert "});alert(1)//" in drawn and drawn.count("</svg>") == 1


def test_the_evolution_has_a_frame_an_iteration_on_the_same_axes():
    frames = front_frames([*table(24, 4), {"name": "mine", "mean": 0.004, "f1_1k": 0.5}])
    counts = [len(next(iter(spec_of(frame)["datasets"].values()))) for frame in frames]
    assert counts == [7, 13, 19, 25]
    domains = {json.dumps(spec_of(f)["layer"][-1]["encoding"]["x"]["scale"]) for f in frames}
    assert len(domains) == 1


def test_a_model_keeps_its_colour_through_the_evolution():
    parts = [to_page_part(frame, "x-") for frame in front_frames(table(12, 3))]
    marks = [re.findall(r'<path [^>]*fill="([^"]*)"[^>]*><title>calm-heron-4: ', p) for p in parts]
    assert marks[0] == [] and len(marks[1]) == 1 and marks[1] == marks[2]


def test_the_frames_become_an_animation():
    frames = [to_png(frame, scale=0.5) for frame in front_frames(table(12, 3))]
    moving = picture(to_gif(frames))
    assert (moving.format, moving.n_frames) == ("GIF", 3)
    assert picture(to_gif([to_png(f, scale=0.5) for f in front_frames([])])).format == "GIF"
    with pytest.raises(BadInput):
        to_gif([])


@pytest.mark.slow
def test_a_page_of_its_own_loads_nothing_and_no_name_ends_its_script():
    name = "</script><script>alert(1)</script>"
    page = to_html(pareto_chart([{"name": name, "mean": 0.01, "f1_1k": 0.5}]), "<front>")
    assert page.count("<script") == page.count("</script") == 1
    assert "&lt;front&gt;" in page and "\\u003c/script" in page
    assert references(page) == []
    assert "default-src 'none'" in page


@pytest.mark.parametrize("name", ["a\x01\x1b[31m\ufffe", "\ud800"])
def test_labels_that_xml_cannot_write_are_drawn_all_the_same(name: str):
    """The converter ends the process at a label with a control character in it."""
    charts = [
        quantization_chart([{"name": name, "f1_1k": 0.5, "f1_1k_f": 0.6}]),
        utilisation_chart([{**USE, "device": name}]),
        classes_chart({"f1": {name: 0.5}}, name),
        layers_chart(Layers(((name, name, 3.0),), "measured", {})),
    ]
    for chart in charts:
        assert "\ufffd" in to_page_part(chart, "x-")
        assert to_png(chart)


@pytest.mark.parametrize("text", ["what,name\rlayer,a", f"what,name\nlayer,{'x' * 200_000}"])
def test_a_damaged_file_of_a_model_is_read_without_harm(text: str):
    assert read_layers(text).times_us == ()
    assert read_curves(text) == {} and read_scores(text) == {}


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_a_file_is_what_its_ending_says(tmp_path: Path, ending: str):
    path = tmp_path / f"front.{ending}"
    write_chart(pareto_chart(table(5)), path, "Front", "dark")
    begin = {"png": b"\x89PNG", "svg": b"<svg", "html": b"<!doctype html>"}[ending]
    assert path.read_bytes().startswith(begin)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    chart = pareto_chart(table(3))
    with pytest.raises(BadInput, match=r"\.png, \.svg, \.html"):
        write_chart(chart, tmp_path / "front.pdf", "Front")
    with pytest.raises(LocalFileError, match="No such file"):
        write_chart(chart, tmp_path / "no/front.svg", "Front")
    with pytest.raises(LocalFileError, match="folder"):
        (tmp_path / "a.svg").mkdir()
        write_chart(chart, tmp_path / "a.svg", "Front")


def test_results_of_other_tasks_are_shown_with_their_own_metrics():
    detection = read_scores(
        "metric,cat,dog,overall\nmAP,0.5,,0.5\nAP50,0.75,,0.75\nmAP_low,,,0.4\n"
    )
    shown = classes_chart(detection).to_dict()
    assert shown["encoding"]["color"]["scale"]["domain"] == ["mAP", "AP50"]
    assert interval_of(read_scores("metric,overall\nPSNR,30\nPSNR_low,29\nPSNR_high,31\n")) == (
        29,
        31,
    )
    depths = Evidence(stage="f1_1k", scores=read_scores("metric,overall\ndelta1,0.9\nrmse,0.4\n"))
    assert evidence_charts(depths) == []
    found = Evidence(stage="f1_1k", scores=detection, curves={"cat": ([0.5, 1.0], [1.0, 0.5])})
    titles = [title for title, _ in evidence_charts(found)]
    assert titles == ["Classes", "Precision and recall, f1_1k"]
