"""Following a log that grows in the store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeloop.jobs import watch as logs
from edgeloop.jobs.watch import LogReader, last_lines
from edgeloop.node import ticket
from edgeloop.testing import memory_blobs


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_PIECE", 8)


def put_log(blobs, job: str, text: bytes, piece: int) -> None:
    for number in range(0, max(1, -(-len(text) // piece))):
        part = text[number * piece : (number + 1) * piece]
        blobs.put(ticket.log_key(job, number), part)


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_a_reader_gets_every_byte_once_however_the_log_grew(parts: list[bytes]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "LOG_PIECE", 8)
        blobs, text, read = memory_blobs(), b"", b""
        reader = LogReader(blobs, "job")
        for part in parts:
            text += part
            put_log(blobs, "job", text, 8)
            read += b"".join(reader.more())
            assert read == text
        assert reader.has_read == len(text)


def test_a_job_that_printed_nothing_has_an_empty_log():
    assert list(LogReader(memory_blobs(), "job").more()) == []
    assert last_lines(memory_blobs(), "job", 5) == b""


def test_a_reader_can_begin_in_the_middle(small_pieces: None):
    blobs = memory_blobs()
    put_log(blobs, "job", b"0123456789abcdefgh", 8)
    assert b"".join(LogReader(blobs, "job", 9).more()) == b"9abcdefgh"


def test_the_last_lines_are_found_across_pieces(small_pieces: None):
    blobs = memory_blobs()
    put_log(blobs, "job", b"one\ntwo\nthree\nfour\nfive\n", 8)
    assert last_lines(blobs, "job", 2) == b"four\nfive\n"
    assert last_lines(blobs, "job", 99) == b"one\ntwo\nthree\nfour\nfive\n"
    numbers = b"".join(b"%07d\n" % number for number in range(12))
    put_log(blobs, "long", numbers, 8)
    assert last_lines(blobs, "long", 99) == numbers


def test_the_log_of_another_job_is_not_touched():
    blobs = memory_blobs()
    blobs.put(ticket.log_key("job-2", 0), b"other")
    assert last_lines(blobs, "job", 5) == b""
