"""Constants that turn an estimate into a time, and the fit of one's own."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeloop.errors import BadInput
from edgeloop.platforms import open_device
from edgeloop.platforms.qnn.chips import chips
from edgeloop.platforms.qnn.latency import (
    built_in_profiles,
    calibrated,
    find_profile,
    fit_profile,
    list_profiles,
    save_profile,
)
from tests.converted import open_htp

RAW = [40.0, 90.0, 300.0, 700.0, 1500.0, 4000.0, 9000.0]


def pairs(a, b, raw=RAW, noise=0.0):
    dice = np.random.default_rng(1)
    return [(x, (a + b * x) * float(np.exp(noise * dice.standard_normal()))) for x in raw]


def test_every_builtin_profile_belongs_to_a_chip():
    profiles = built_in_profiles()
    assert set(profiles) <= set(chips())
    assert all(chips()[name].estimate_soc == profile.soc for name, profile in profiles.items())
    assert calibrated(419, profiles["qcs8550"]) == pytest.approx(441, rel=0.15)  # MobileNetV2


@given(a=st.floats(0, 500), b=st.floats(0.2, 3))
@settings(max_examples=10, deadline=None)
def test_exact_times_give_the_exact_constants(a, b):
    profile = fit_profile(pairs(a, b), "board", 62)
    assert profile.b == pytest.approx(b, rel=0.01)
    assert profile.a_us == pytest.approx(a, rel=0.02, abs=0.5)
    assert profile.error_percent < 1


def test_an_outlier_bends_the_fit_little():
    given_pairs = pairs(60, 0.9, noise=0.02)
    given_pairs[3] = (given_pairs[3][0], given_pairs[3][1] * 5)
    profile = fit_profile(given_pairs, "board", 62)
    for raw in (100, 1000, 8000):
        assert calibrated(raw, profile) == pytest.approx(60 + 0.9 * raw, rel=0.15)


def test_the_start_is_never_negative():
    profile = fit_profile([(x, 0.9 * x - 20) for x in RAW[1:]], "board", 62)
    assert profile.a_us >= 0
    assert profile.b > 0


@pytest.mark.parametrize(
    ("given_pairs", "reason"),
    [
        (pairs(60, 0.9)[:4], "5 or more models"),
        ([(100.0, 150.0)] * 8, "there are 1"),
        ([*pairs(60, 0.9), (0.0, 5.0)], "above zero"),
        ([*pairs(60, 0.9), (5.0, float("nan"))], "above zero"),
    ],
)
def test_too_little_or_nonsense_is_refused(given_pairs, reason):
    with pytest.raises(BadInput, match=reason):
        fit_profile(given_pairs, "board", 62)


def test_a_profile_is_kept_in_the_workspace_and_opens_as_a_device(tmp_path):
    profile = fit_profile(pairs(60, 0.9), "my-board", 62)
    folder = tmp_path / ".edgeloop" / "profiles"
    save_profile(folder, profile)
    assert find_profile("my-board", folder) == profile
    assert "my-board" in list_profiles(folder)
    device = open_htp("htp:my-board", tmp_path)
    assert "calibrated by my-board" in device.probe()
    device.close()


def test_a_profile_of_ones_own_wins_over_the_builtin_one(tmp_path):
    save_profile(tmp_path, fit_profile(pairs(1, 2), "qcs8550", 77))
    assert find_profile("qcs8550", tmp_path).b == pytest.approx(2, rel=0.01)
    assert find_profile("qcs8550", None) == built_in_profiles()["qcs8550"]


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", json.dumps({"soc": 1, "a_us": -1}), "[" * 100_000]
)
def test_a_broken_profile_says_what_to_do(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(BadInput, match="calibrate again"):
        find_profile("bad", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"b": float("inf")},
        {"range_us": [3, -1]},
        {"soc": float("inf")},
        *(
            {"intervals": {"any": {"low": 0.9, "high": 1.2, "networks": 9} | one}}
            for one in (
                *({"low": float("nan")}, {"high": -3}, {"low": 2}, {"networks": 0}),
                *({"coverage": 7}, {"coverage": float("nan")}),
            )
        ),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(tmp_path, change):
    path = save_profile(tmp_path, fit_profile(pairs(1, 2), "own", 77))
    assert find_profile("own", tmp_path) is not None
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BadInput, match="calibrate again"):
        find_profile("own", tmp_path)


@pytest.mark.parametrize("name", ["../x", "", "A B", "x" * 80])
def test_names_that_are_no_file_names_are_refused(tmp_path, name):
    with pytest.raises(BadInput, match="cannot be named"):
        fit_profile(pairs(60, 0.9), name, 62)


def test_an_unknown_device_lists_what_there_is():
    with pytest.raises(BadInput, match=r"did you mean 'host'.*htp:CHIP"):
        open_device("hots")
    with pytest.raises(BadInput, match="no chip 'snapdragon-9'"):
        open_device("htp:snapdragon-9")
    with pytest.raises(BadInput, match="no device 'host:1'"):
        open_device("host:1")
