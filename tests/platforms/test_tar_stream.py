from __future__ import annotations

import gzip
import io
import os
import subprocess

from edgeloop.platforms.snpe.adb import entry_of, packed, squeezed, unpacked


def test_a_squeezed_stream_is_what_gzip_itself_reads():
    pieces = [os.urandom(1000) * 700, b"", b"x" * 5, bytes(3_000_000)]
    stream = b"".join(squeezed(pieces))
    assert len(stream) < 500_000
    assert gzip.decompress(stream) == b"".join(pieces)
    done = subprocess.run(
        ["gzip", "-dc"], input=stream, capture_output=True, check=True, timeout=60
    )
    assert done.stdout == b"".join(pieces)
    assert gzip.decompress(b"".join(squeezed([]))) == b""


def test_files_come_out_as_they_went_in():
    files = {"a.raw": b"1", "empty": b"", "long": os.urandom(5_000), "sub/b": b"x" * 512}
    stream = b"".join(packed(entry_of(name, content) for name, content in files.items()))
    assert unpacked(io.BytesIO(stream)) == files
    assert unpacked(io.BytesIO(gzip.compress(stream)), is_squeezed=True) == files
    listing = subprocess.run(
        ["tar", "tf", "-"], input=stream, capture_output=True, check=True, timeout=60
    )
    assert listing.stdout.decode().split() == list(files)
