"""The models of the package: what their first table says holds, and they can be told apart."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.cli.conftest import Edgeloop

PAIRS = 1.079  # docs/qnn.md, `two of a family`
MODELS = ("demo:unet-small", "demo:unet-medium", "demo:unet-large")


@pytest.mark.slow
def test_each_has_an_interval_that_is_stated_and_the_next_is_slower_by_more_than_the_error(
    edgeloop: Edgeloop,
):
    devices = ("--device", "htp:qcs8550", "--device", "htp:x-elite")
    tables = [edgeloop("bench", model, *devices, "--json").json for model in MODELS]
    assert [[row["coverage"] for row in table] for table in tables] == [[0.9, 0.9]] * 3
    for faster, slower in pairwise(table[0]["latency_ms"] for table in tables):
        assert slower > PAIRS * faster
