"""Metrics of a job as curves."""

from __future__ import annotations

import json

from edgeloop.view.portal.views.jobs import HEIGHT, MOST_CURVES, MOST_POINTS, WIDTH, curves_of


def lines(*entries: object) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def test_every_number_is_a_curve_over_the_steps() -> None:
    content = lines(*({"epoch": n, "loss": 8.0 - n, "done": True, "note": "x"} for n in (1, 2, 5)))
    [loss] = curves_of(content)
    assert (loss.name, loss.across, loss.first, loss.last) == ("loss", "epoch", 1, 5)
    assert (loss.low, loss.high, loss.latest, loss.count) == (3.0, 7.0, 3.0, 3)
    assert loss.path == f"0.00,0.00 {WIDTH / 4:.2f},{HEIGHT / 4:.2f} {WIDTH:.2f},{HEIGHT:.2f}"


def test_without_steps_the_lines_count_and_steps_that_go_back_are_a_curve_too() -> None:
    loss, epoch = curves_of(lines({"loss": 1, "epoch": 2}, {"loss": 2, "epoch": 1}))
    assert (loss.across, loss.last, epoch.name) == ("line", 2, "epoch")


def test_what_is_no_number_or_cut_off_is_left_out() -> None:
    odd = b'{"a": NaN, "b": 1e400, "c": 1}\n[1]\nnonsense\n\xff\n' + b"[" * 9000 + b"\n"
    [curve] = curves_of(odd + lines({"c": 1, "d": 10**400}) + b'{"c": 3')
    assert (curve.name, curve.count) == ("c", 2)
    assert curve.path == "0.00,15.00 100.00,15.00"  # constant: in the middle
    assert curves_of(b"") == ()


def test_long_curves_are_thinned_and_keep_their_peaks() -> None:
    entries = [{"step": n, "x": 9.0 if n == 4321 else n % 7 / 10} for n in range(10_000)]
    [curve] = curves_of(lines(*entries))
    assert curve.count == 10_000 and len(curve.path.split()) <= MOST_POINTS + 2
    assert ",0.00" in curve.path and curve.high == 9.0
    many = {f"m{n}": n for n in range(100)}
    assert len(curves_of(lines(many, many))) == MOST_CURVES
