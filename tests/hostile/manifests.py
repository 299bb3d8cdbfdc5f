"""What a shared store holds when somebody else writes to it: ledgers and manifests of datasets,
tickets, states and records of jobs.

A builder gets the folder of the store's files and puts forged ones there.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Builder = Callable[[Path], None]
NAME = "working/faces"
CONTENT = b"hello"
PIECE = hashlib.sha256(CONTENT).hexdigest()
OBJECT = "0" * 32
DIGEST = "d" * 64
DEEP = b"[" * 200_000


def put(blobs: Path, key: str, content: bytes) -> None:
    path = blobs / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def manifest(**fields: Any) -> dict[str, Any]:
    """One file `a.txt` of five bytes."""
    plain = {
        "format": 1,
        "objects": [OBJECT],
        "pieces": [[PIECE, 0, 0, 5]],
        "files": [["a.txt", 5, 1_700_000_000_000_000_000, 0, [0]]],
    }
    return {**plain, **fields}


def digest_of(files: object) -> str:
    """As a reader computes it, so that only what is behind it can refuse the manifest."""
    hasher = hashlib.sha256()
    for path, size, _, executable, pieces in files if isinstance(files, list) else ():
        row = [path, size, bool(executable), *(PIECE for _ in pieces)]
        hasher.update(json.dumps(row).encode() + b"\n")
    return hasher.hexdigest()


def published(blobs: Path, content: bytes, digest: str = DIGEST, **fields: Any) -> None:
    """A ledger with one version, and this as its manifest."""
    name = f"{digest}-{'0' * 32}.json.gz"
    version = {
        **{"name": NAME, "version": 1, "manifest": name, "files": 1, "bytes": 5},
        **{"created": "2026-01-01T00:00:00+00:00", "node": "n", "message": ""},
        **fields,
    }
    record = {"format": 1, "by": "x", "next_version": 2, "versions": [version]}
    put(blobs, "_data/log/working@faces/00000001.json", json.dumps(record).encode())
    put(blobs, f"_data/manifests/working@faces/{name}", content)
    put(blobs, f"_data/objects/working@faces/{OBJECT}", CONTENT)


def _manifest(**fields: Any) -> Builder:
    def build(blobs: Path) -> None:
        data = manifest(**fields)
        try:
            digest = digest_of(data["files"])
        except (TypeError, ValueError):
            digest = DIGEST
        published(blobs, gzip.compress(json.dumps(data).encode()), digest)

    return build


def _files(*rows: Any) -> Builder:
    return _manifest(files=list(rows))


def _named(path: Any) -> Builder:
    return _files([path, 5, 0, 0, [0]])


def _packed(content: bytes) -> Builder:
    return lambda blobs: published(blobs, gzip.compress(content))


def _repeated(unit: bytes, size: int, before: bytes = b"", after: bytes = b"") -> Builder:
    """`size` bytes of text from a few thousand."""

    def build(blobs: Path) -> None:
        block = unit * (3_000_000 // len(unit))
        members = gzip.compress(block, 1) * (size // len(block))
        published(blobs, gzip.compress(before) + members + gzip.compress(after))

    return build


def _raw(content: bytes) -> Builder:
    return lambda blobs: published(blobs, content)


PULLS: Mapping[str, Builder] = {
    "no gzip": _raw(b"hello"),
    "empty": _raw(b""),
    "cut off": _raw(gzip.compress(json.dumps(manifest()).encode())[:-20]),
    "wrong checksum": _raw(gzip.compress(b"{}")[:-8] + bytes(8)),
    "1 GB of zeros": _repeated(b"\0", 1 << 30),
    "1 GB of spaces": _repeated(b" ", 1 << 30),
    "300 MB of brackets": _repeated(b"[],", 300_000_000, b"["),
    "30 MB of brackets": _repeated(b"[],", 30_000_000, b'{"format":1,"objects":[', b"0]}"),
    "30 MB of objects": _repeated(b"{},", 30_000_000, b'{"format":1,"objects":[', b"0]}"),
    "30 MB of numbers": _repeated(b"7,", 30_000_000, b'{"format":1,"objects":[', b"0]}"),
    "30 MB of text": _repeated(b"a", 30_000_000, b'{"format":"', b'"}'),
    "deep": _packed(DEEP),
    "deep objects": _packed(b'{"a":' * 100_000),
    "a list": _packed(b"[]"),
    "a number": _packed(b"7"),
    "5,000 digits": _packed(b'{"format": ' + b"9" * 5_000 + b"}"),
    "format 2": _manifest(format=2),
    "format with escapes": _manifest(format="\x1b[2J"),
    "another content": lambda blobs: published(
        blobs, gzip.compress(json.dumps(manifest()).encode())
    ),
    "path above": _named("../a.txt"),
    "path far above": _named("x/../../../../tmp/a.txt"),
    "path absolute": _named("/tmp/a.txt"),
    "path empty": _named(""),
    "path with a null": _named("a\0b"),
    "path a surrogate": _named("\ud800"),
    "path a number": _named(7),
    "path of 1 MB": _named("x" * 1_000_000),
    "path of 300 letters": _named("x" * 300),
    "path 2,000 deep": _named("/".join("x" * 2_000)),
    "path with escapes": _files(["\x1b[2J../", 5, 0, 0, [0]]),
    "path twice": _files(["a.txt", 5, 0, 0, [0]], ["a.txt", 5, 0, 0, [0]]),
    "file and folder": _files(["a", 5, 0, 0, [0]], ["a/b", 5, 0, 0, [0]]),
    "not sorted": _files(["b", 5, 0, 0, [0]], ["a", 5, 0, 0, [0]]),
    "mtime 10**30": _files(["a.txt", 5, 10**30, 0, [0]]),
    "mtime a text": _files(["a.txt", 5, "now", 0, [0]]),
    "size 10**18": _files(["a.txt", 10**18, 0, 0, [0]]),
    "size negative": _files(["a.txt", -5, 0, 0, [0]]),
    "piece 10**9": _files(["a.txt", 5, 0, 0, [10**9]]),
    "piece negative": _files(["a.txt", 5, 0, 0, [-1]]),
    "piece true": _files(["a.txt", 5, 0, 0, [True]]),
    "row of three": _files(["a.txt", 5, 0]),
    "row a text": _files("a.txt"),
    "piece of 4 GB": _manifest(
        pieces=[[PIECE, 0, 0, 4 << 30]], files=[["a.txt", 8 << 30, 0, 0, [0, 0]]]
    ),
    "piece at 10**18": _manifest(pieces=[[PIECE, 0, 10**18, 5]]),
    "piece of nothing": _manifest(pieces=[[PIECE, 0, 0, 0]], files=[["a.txt", 0, 0, 0, [0] * 99]]),
    "piece named ..": _manifest(pieces=[["../../x", 0, 0, 5]]),
    "object named ..": _manifest(objects=["../../../x"]),
    "object 10**9": _manifest(pieces=[[PIECE, 10**9, 0, 5]]),
    "wrong bytes": _manifest(pieces=[["a" * 64, 0, 0, 5]]),
    "1,000,000 times one piece": _files(["a.txt", 5_000_000, 0, 0, [0] * 1_000_000]),
    "created a list": lambda blobs: published(blobs, b"", created=[1]),
    "message an object": lambda blobs: published(blobs, b"", message={"a": 1}),
    "version true": lambda blobs: published(blobs, b"", version=True),
    "files 10**400": lambda blobs: published(blobs, b"", files=10**400),
    "manifest above": lambda blobs: published(blobs, b"", manifest="../../x"),
    "another name": lambda blobs: published(blobs, b"", name="working/other"),
    "another key": lambda blobs: published(blobs, b"", evil=1),
}


def _record(content: bytes, number: str = "00000001") -> Builder:
    return lambda blobs: put(blobs, f"_data/log/working@faces/{number}.json", content)


LISTS: Mapping[str, Builder] = {
    "record no JSON": _record(b"\xff\xfe"),
    "record empty": _record(b""),
    "record deep": _record(DEEP),
    "record a list": _record(b"[]"),
    "record of 20 MB": _record(b"[" + b"[]," * 7_000_000 + b"0]"),
    "record 5,000 digits": _record(b'{"versions": [], "next_version": ' + b"9" * 5_000 + b"}"),
    "record endless": _record(b'{"versions": [], "by": "x", "next_version": Infinity}'),
    "record the last": _record(b'{"versions": [], "by": "x", "next_version": 1}', "99999999"),
    "versions a number": _record(b'{"versions": 7, "by": "x", "next_version": 1}'),
    "versions of texts": _record(b'{"versions": ["x"], "by": "x", "next_version": 1}'),
    "next version a text": _record(b'{"versions": [], "by": "x", "next_version": "x"}'),
}
