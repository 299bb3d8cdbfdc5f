"""What a fleet may be told, and the sentence when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.errors import BadSetting
from edgeloop.operate.fleet.records import Bounds, ExperimentShare, FleetSpec, read_spec
from edgeloop.settings import Settings


@pytest.mark.parametrize(
    ("written", "bounds"),
    [("2:16", (2, 16)), ("4", (4, 4)), (4, (4, 4)), ("0:8", (0, 8)), (" 1:1 ", (1, 1))],
)
def test_bounds_are_two_numbers_or_one(written: object, bounds: tuple[int, int]):
    assert read_spec({"runners": written}).runners == Bounds(*bounds)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"runners": "16:2"}, "runners must begin with the smaller number, such as 2:16"),
        ({"runners": "0"}, "runners must allow at least one runner"),
        ({"runners": "2-16"}, "runners must be LEAST:MOST or one number, such as 2:16"),
        ({"runners": "-1:3"}, "runners must be LEAST:MOST"),
        ({"runners": True}, "runners must be LEAST:MOST"),
        ({"runners": "1:99999"}, "runners must be 10000 at the most"),
        ({"cpus": 0}, "cpus must be a whole number, 1 or more"),
        ({"name": "My Fleet"}, "name must be small letters, digits and '-'"),
        ({"runers": "2:4"}, "unknown key 'runers': did you mean 'runners'?"),
        ({"experiments": {"faces": {"weigth": 2}}}, "may have 'weight' and 'quota'"),
        ({"experiments": {"faces": {"quota": 0}}}, "must be a whole number, 1 or more"),
        ({"experiments": {"faces": -1}}, "must be a number above 0"),
        ({"experiments": ["a b c"]}, "experiments has 'a b c'"),
        ({"options": ["--drain"]}, "options cannot have --drain: leave it out"),
        ({"options": ["--device=host"]}, "options cannot have --device: use the key 'devices'"),
        ({"options": ["postgresql://me:secret@h/db"]}, "options cannot hold a secret"),
    ],
)
def test_a_mistake_is_one_sentence(written: dict[str, object], said: str):
    with pytest.raises(BadSetting) as raised:
        read_spec(written)
    assert said in str(raised.value)
    assert "secret@" not in str(raised.value)


def test_the_file_is_read_and_options_win(tmp_path: Path):
    (tmp_path / "edgeloop.yaml").write_text(
        "fleet:\n  runners: 2:16\n  cpus: 2\n  devices: htp:snapdragon-888\n"
        "  experiments:\n    faces: {weight: 2, quota: 8}\n    hands: 1\n    other:\n"
    )
    settings = Settings.load(tmp_path, {})
    spec = read_spec(settings.fleet, {"cpus": 4})
    assert (spec.runners, spec.cpus) == (Bounds(2, 16), 4)
    assert spec.devices == ("htp:snapdragon-888",)
    assert spec.experiments == {
        "faces": ExperimentShare(2.0, 8),
        "hands": ExperimentShare(1.0),
        "other": ExperimentShare(),
    }
    assert read_spec(spec.to_json()) == spec


def test_what_a_record_holds_is_read_back():
    spec = FleetSpec(name="night", options=("--precision", "a16w8"), devices=("adb", "host"))
    assert read_spec(spec.to_json()) == spec
