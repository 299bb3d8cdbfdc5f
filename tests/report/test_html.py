"""The report: one file, whole, and harmless whatever the models are called."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime

import pytest
from PIL import Image

from edgeloop.view.charts import Evidence, read_curves, read_layers, read_scores
from edgeloop.view.measures import objective
from edgeloop.view.report import ReportData, Source, render
from tests.report.pages import read, references
from tests.report.tables import Row, table
from tests.report.test_charts import PERF, POINTS, SCORES, USE

SOURCE = Source("a folder", "faces", datetime(2026, 11, 15, 12, 0, tzinfo=UTC))
TWO = (objective("mean"), objective("f1_1k"))
EVIL = {
    "name": "<script>alert('name')</script>",
    "mean": 0.0001,
    "f1_1k": 0.999,
    "f1_1k_f": "n/a",
    "status": "error",
    "error": '"><img src="http://evil.example/x" onerror=alert(1)>',
    "tags": '["a\\"b", "<b>"]',
    "device": "</td><script>",
    "theirs": "javascript:alert(1)",
}


def picture() -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(target, "PNG")
    return target.getvalue()


def report(rows: list[Row], **more: object) -> str:
    return render(ReportData(rows, TWO, SOURCE, **more))


def test_nothing_is_loaded_and_nothing_runs():
    page = read(text := report([*table(30), EVIL], uses=[USE]))
    assert references(text) == []
    assert not {"script", "link", "iframe", "object", "embed", "base"} & {
        t for t, _ in page.elements
    }
    assert not [a for _, found in page.elements for a in found if a.startswith("on")]
    assert "default-src 'none'" in text
    assert "@import" not in text and not re.search(r"url\((?!#|data:font/woff2;base64,)", text)


def test_a_report_says_what_it_has_with_units_and_nothing_of_what_has_not_happened():
    interval = {"latency_low_ms": 0.05, "latency_high_ms": 0.09, "latency_coverage": 0.9}
    estimate = {"latency_kind": "estimate", "mean": 0.00006388, **interval}
    text = report([{"name": "a", "f1_1k": 0.7412, "status": "complete", **estimate}])
    assert "<title>Models of faces: report</title>" in text
    assert "<b>63.88 µs est</b>lowest latency" in text and "63.88 est, 50 – 90<" in text
    assert "<b>0.7412</b>highest F1 on the device" in text
    assert " yet" not in "".join(read(text).texts) and 'id="charts"' not in text
    gained = {"name": "b", "mean": 0.001, "f1_1k": 0.75, "f1_1k_f": 0.74}
    assert "quantizing gains 0.0100 of F1 on average" in report([gained])


def test_names_errors_and_tags_are_texts():
    page = read(report([*table(3), EVIL]))
    shown = "".join(page.texts)
    assert EVIL["name"] in shown and EVIL["error"] in shown and EVIL["tags"] in shown
    assert [tag for tag, _ in page.elements if tag in ("script", "img")] == []


def test_every_link_leads_to_a_place_in_the_page_and_no_id_occurs_twice():
    evidence = {"calm-heron-0": Evidence(read_layers(PERF), "f1_1k", read_scores(SCORES))}
    page = read(report([*table(20), EVIL], evidence=evidence, uses=[USE]))
    assert len(set(page.ids)) == len(page.ids)
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    used = {v[5:-1] for _, found in page.elements for v in found.values() if v[:5] == "url(#"}
    assert used and used <= set(page.ids)


def test_a_point_of_the_chart_leads_to_its_model():
    page = read(report(table(20)))
    headings = {found["id"] for tag, found in page.elements if tag == "article"}
    marks = [n for n, (tag, found) in enumerate(page.elements) if tag == "a" and n]
    in_chart = [page.elements[n][1]["href"] for n in marks if page.elements[n + 1][0] == "path"]
    # On screens and on phones.
    assert len(in_chart) == 40 and {link[1:] for link in in_chart} == headings


def test_the_front_comes_first_and_estimates_say_so():
    rows = [
        {"name": "beaten", "mean": 0.02, "f1_1k": 0.5},
        {"name": "best", "mean": 0.01, "stdev": 10.0, "f1_1k": 0.9, "latency_kind": "estimate"},
        {"name": "unmeasured", "status": "new"},
    ]
    text = report(rows)
    assert "10 ± 1 est" in text
    articles = re.findall(r'<article id="(m\d+)">\s*.*<h3>(\w+)</h3>(<span class="badge">)?', text)
    assert articles == [
        ("m0", "best", '<span class="badge">'),
        ("m1", "beaten", ""),
        ("m2", "unmeasured", ""),
    ]
    assert "1 model does not have all of these numbers" in text


def test_many_models_are_a_summary_and_folded_details():
    text = report(table(120), evidence={"calm-heron-0": Evidence(read_layers(PERF))})
    page = read(text)
    assert len(text) < 1_000_000
    assert text.index('id="front"') < text.index('id="charts"') < text.index('id="table"')
    assert "<details><summary>All 120 models</summary>" in text
    sections = [found["id"] for tag, found in page.elements if tag == "article"]
    assert 100 <= len(sections) <= 101 and "of 120 models have a section here" in text
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    opened = [found for tag, found in page.elements if tag == "details" and "open" in found]
    assert len(opened) == text.count('class="badge"')


def test_a_model_of_the_front_shows_its_layers_classes_and_curves():
    found = Evidence(read_layers(PERF), "f1_10k", read_scores(SCORES), picture())
    text = report(table(1), evidence={"calm-heron-0": found})
    assert "Layer times" in text and "Classes, f1_10k" in text
    assert "PR curves of f1_10k" in text and "data:image/png;base64,iVBOR" in text
    assert "condition: threads" in text and references(text) == []


def test_curves_are_drawn_in_the_page_where_their_points_are_known():
    found = Evidence(None, "f1_10k", read_scores(SCORES), b"", read_curves(POINTS))
    text = report(table(1), evidence={"calm-heron-0": found})
    assert "Precision and recall, f1_10k" in text and ">skin  0.950<" in text
    assert "overall AP 0.800" in text and "drawn when it was tested" not in text
    assert references(text) == [] and "data:image" not in text


def test_the_page_says_where_its_figures_come_from():
    rows = [
        {**row, "precision": "a8w8", "latency_profile": "888", "latency_calibrated": True}
        for row in table(4)
    ]
    text = report(rows)
    _, _, end = text.partition('id="provenance"')
    for said in ("2026-11-15 12:00 UTC", "a folder", "faces", "htp:snapdragon-888 (4)", "a8w8 (4)"):
        assert said in end
    assert "estimate (2), measured (2)" in end and "888 (fitted on a device) (2)" in end
    assert "Edgeloop" in end and "Python" in end


def test_an_estimate_has_its_interval_and_a_lower_bound_is_on_no_front():
    shared = {"f1_1k": 0.5, "mean": 0.0044, "latency_kind": "estimate"}
    stated = {"latency_low_ms": 4.05, "latency_high_ms": 4.8, "latency_coverage": 0.9}
    rows = [
        {**shared, "name": "stated", **stated, "latency_basis": "errors of 40 networks"},
        {**shared, "name": "bound", "mean": 0.001, "latency_missing_ops": 2},
        {**shared, "name": "old", "latency_margin_percent": 20.0},
    ]
    text = report(rows)
    assert "4.4 est, 4.05 – 4.8<" in text and "≥ 1 est" in text and "± 20" not in text
    assert "its 90 % interval, in brackets" in text and "errors of 40 networks (1)" in text
    front, _, _ = text.partition('id="table"')
    assert "stated" in front and ">bound<" not in front


@pytest.mark.parametrize("rows", [[], [{"name": "new", "status": "new"}]])
def test_a_table_with_nothing_to_show_is_a_page_all_the_same(rows: list[Row]):
    text = report(rows)
    assert "No model has latency_ms and f1_1k yet." in text
    assert read(text).elements[-1][0] in ("td", "th", "tr")


def test_two_models_of_one_value_keep_their_own_columns():
    text = report([{"name": "a", "mean": 0.01, "f1_1k": 0.5, "f1_10k": 0.5}])
    assert "f1_1k 0.5000 · f1_10k 0.5000" in text
