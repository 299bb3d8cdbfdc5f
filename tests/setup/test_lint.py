"""ruff and mypy have nothing to say. As tests, they run beside the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(1200)  # mypy without its cache, on a busy machine
@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "--quiet", "."),
        ("ruff", "format", "--check", "--quiet", "."),
        ("mypy", "--no-error-summary"),
    ],
    ids=" ".join,
)
def test_a_linter_has_no_complaint(command: tuple[str, ...]):
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
