"""A job's code out of a store that others write to: all of it is what was submitted, or none."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from edgeloop.errors import BadInput
from edgeloop.node.layout import unpack_code
from edgeloop.node.ticket import CodeDigest, content_digest
from tests.hostile import archives

MOST_BYTES = 512 << 20


def digest() -> str:
    total = CodeDigest()
    for name, content in archives.GOOD.items():
        total.add(name, content_digest(content), executable=False)
    return total.hexdigest()


@pytest.mark.parametrize("name", archives.ARCHIVES)
def test_a_hostile_archive_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    """Without a command: only the wrapper inside a job unpacks code, and calls this."""
    (tmp_path / "code.tar.gz").write_bytes(archives.ARCHIVES[name]())
    (tmp_path / "work").mkdir()
    tracemalloc.start()
    try:
        with pytest.raises(
            BadInput, match=r"The job's code (cannot be unpacked: .|in the store is not)"
        ):
            unpack_code(tmp_path / "code.tar.gz", digest(), tmp_path / "work")
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert {path.name for path in tmp_path.rglob("*")} == {"code.tar.gz", "work"}


def test_what_was_submitted_is_unpacked(tmp_path: Path) -> None:
    content = archives.packed(*(archives.member(*item) for item in archives.GOOD.items()))
    (tmp_path / "code.tar.gz").write_bytes(content)
    (tmp_path / "work").mkdir()
    unpack_code(tmp_path / "code.tar.gz", digest(), tmp_path / "work")
    assert (tmp_path / "work" / "train.py").read_bytes() == archives.GOOD["train.py"]
