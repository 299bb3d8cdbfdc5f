"""What doctor says of the Neural Processing SDK: a line for it, and one for each missing part."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.models.catalog import change_settings
from edgeloop.operate.doctor import examine
from edgeloop.platforms import HealthCheck
from edgeloop.workspace import Workspace
from tests.platforms.sdks import make_sdk


def findings(tmp_path: Path) -> dict[str, HealthCheck]:
    return {finding.what: finding for finding in examine(f"sqlite:{tmp_path / 'store'}", None)}


def test_it_says_whether_models_can_be_evaluated_on_this_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert findings(tmp_path)["system"].ok
    monkeypatch.setattr("edgeloop.operate.doctor.sys.platform", "darwin")
    elsewhere = findings(tmp_path)["system"]
    assert not elsewhere.ok and not elsewhere.needed
    assert "portal work here" in elsewhere.text and "on Linux" in elsewhere.text


def test_without_an_sdk_it_says_where_to_get_one_and_that_is_no_failure(tmp_path: Path) -> None:
    found = findings(tmp_path)["snpe-sdk"]
    assert not found.ok
    assert not found.needed
    assert "SNPE_ROOT" in found.text


def test_a_whole_sdk_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNPE_ROOT", str(make_sdk(tmp_path / "sdk")))
    found = findings(tmp_path)["snpe-sdk"]
    assert found.ok
    assert "2.28.0.241029" in found.text


def test_each_missing_part_has_a_line_that_says_where_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_sdk(tmp_path / "sdk")
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(root))
    (root / "bin/x86_64-linux-clang/snpe-dlc-info").unlink()
    (root / "bin/aarch64-android/snpe-net-run").unlink()
    for path in (root / "lib").glob("hexagon-*/unsigned/*"):
        path.unlink()
    found = findings(tmp_path)
    assert not found["snpe-sdk"].ok
    assert "bin/x86_64-linux-clang/snpe-dlc-info" in found["snpe-dlc-info"].text
    assert "bin/aarch64-android/snpe-net-run" in found["snpe-net-run for boards"].text
    assert "hexagon-*" in found["hexagon libraries"].text
    assert "aarch64-android libraries" not in found


def test_it_shows_the_dataset_that_the_experiment_names(tmp_path: Path) -> None:
    assert not findings(tmp_path)["dataset"].ok
    with Workspace.open(f"sqlite:{tmp_path / 'store'}") as workspace:
        change_settings(workspace.store, workspace.experiment, {"dataset": "working/faces@1"})
    found = findings(tmp_path)["dataset"]
    assert found.ok
    assert "working/faces@1, which the experiment names" in found.text
