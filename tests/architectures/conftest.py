from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.converted import toolchain

__all__ = ["toolchain"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Several test processes share the cores; more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
