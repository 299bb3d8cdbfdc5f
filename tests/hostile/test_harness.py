"""The harness sees what it shall see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.conftest import Attempt
from tests.hostile.harness import Ended


def test_commands_are_the_real_ones(attempt: Attempt, project: Path) -> None:
    assert attempt("status").code == 0
    (project / "net.onnx").write_bytes(b"\xff" * 100)
    ended = attempt("upload", "net.onnx")
    assert "net.onnx" in ended.refusal
    assert 0 < ended.peak_mb < 512 and ended.cpu_s > 0
    assert attempt("upload", "--no-such-option").refusal.startswith("Error: ")
    assert attempt("--version").out.startswith("edgeloop ")


@pytest.mark.parametrize(
    "ended",
    [
        Ended(0, "", "", 1, 100),
        Ended(-9, "", "edgeloop: no", 1, 100),
        Ended(1, "", "", 1, 100),
        Ended(1, "", "edgeloop: no", 11, 100),
        Ended(1, "", "edgeloop: no", 1, 600),
        Ended(1, "", "Traceback (most recent call last)\nedgeloop: no", 1, 100),
        Ended(1, "", "edgeloop: unexpected ValueError: no", 1, 100),
        Ended(1, "", "edgeloop: \x1b[31mno", 1, 100),
        Ended(1, "", "no", 1, 100),
        Ended(1, "", "edgeloop: " + "no" * 2000, 1, 100),
    ],
)
def test_a_bad_end_is_seen(ended: Ended) -> None:
    with pytest.raises(AssertionError):
        _ = ended.refusal
