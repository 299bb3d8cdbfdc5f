"""The list of public architectures that `python -m bench architectures` tries, and some of them,
rebuilt by the same script and timed by the same command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.architectures import HERE, architectures, measure

FAMILIES = {
    *("classification", "detection", "segmentation", "pose", "depth", "super-resolution"),
    *("audio", "transformer", "hybrid", "text", "video"),
}
# A free batch at opset 12; float16 and two outputs; a wave with one side.
REBUILT = (
    pytest.param("yolo_small", marks=pytest.mark.soak),
    pytest.param("landmarks", marks=pytest.mark.soak),
    "m5",
)


def test_the_list_is_long_and_wide() -> None:
    listed = architectures()
    names = [entry["name"] for entry in listed]
    assert len(names) == len(set(names)) >= 60
    assert {entry["family"] for entry in listed} >= FAMILIES
    assert {entry["package"] for entry in listed} == {
        "torchvision",
        "timm",
        "transformers",
        "papers",
    }
    assert {entry["exporter"] for entry in listed} == {"dynamo", "legacy"}
    assert min(entry["opset"] for entry in listed) < 10 < 20 < max(e["opset"] for e in listed)
    assert any(entry.get("half") for entry in listed)
    assert any(entry.get("dynamic") for entry in listed)


def test_their_environment_is_pinned_and_has_the_pytorch_of_ours() -> None:
    lines = (HERE / "requirements.txt").read_text("utf-8").splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+-]+", line) for line in pinned), pinned
    ours = (HERE.parents[1] / "constraints.txt").read_text("utf-8").split()
    for package in ("torch", "onnx", "numpy"):
        [version] = [line for line in pinned if line.startswith(f"{package}==")]
        assert version in ours


@pytest.mark.slow
@pytest.mark.parametrize("name", REBUILT)
def test_an_architecture_gets_its_latency_without_a_store(name: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, HERE / "build.py", tmp_path, name], check=True)
    [entry] = [entry for entry in architectures() if entry["name"] == name]
    result = measure(entry, tmp_path)
    assert not result.reason
    assert result.latency_ms is not None
    assert 0.01 < result.latency_ms < 100


def test_the_documentation_names_every_architecture() -> None:
    page = (HERE.parents[1] / "docs" / "reference" / "architectures.md").read_text("utf-8")
    assert [entry["name"] for entry in architectures() if f"`{entry['name']}`" not in page] == []
