"""Archives of code as a store may hold them: each is put where a job's own code should be."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

GOOD = {"train.py": b"print(1)"}


def member(name: str, content: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def packed(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", format=form) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


def _header(name: str, size: int, kind: bytes = tarfile.REGTYPE, data: bytes = b"") -> bytes:
    """A header that claims a size, whatever follows."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + data)


def _negative() -> bytes:
    """The size says that the next member lies before this one."""
    info = tarfile.TarInfo("x")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 10 + (-1_024 & 0xFFFF).to_bytes(2, "big")
    header[148:156] = b"        "
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return gzip.compress(bytes(header))


def _bomb(name: str, size: int) -> bytes:
    """Many gzip members of zeros behind one header."""
    zeros = gzip.compress(bytes(8 << 20), 1)
    return _header(name, size) + zeros * (size >> 23)


def _pax(size: int) -> bytes:
    return _header("pax", size, tarfile.XHDTYPE) + gzip.compress(bytes(8 << 20), 1) * (size >> 23)


def _many(count: int) -> bytes:
    block = tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT)
    return gzip.compress(block * count, 1)


ARCHIVES: Mapping[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "no archive": lambda: b"hello" * 1_000,
    "no tar": lambda: gzip.compress(b"hello" * 1_000),
    "raw deflate": lambda: zlib.compress(b"hello"),
    "cut off": lambda: packed(member("a.py", bytes(100_000)))[:-40],
    "other code": lambda: packed(member("train.py", b"import os; os.system('id')")),
    "other name": lambda: packed(member("train2.py", GOOD["train.py"])),
    "executable": lambda: packed(member("train.py", GOOD["train.py"], mode=0o755)),
    "one file more": lambda: packed(member("a.py"), member("train.py", GOOD["train.py"])),
    "above": lambda: packed(member("../escaped.py", b"x")),
    "far above": lambda: packed(member("a/../../../escaped.py", b"x")),
    "absolute": lambda: packed(member("/tmp/escaped.py", b"x")),
    "link out": lambda: packed(
        member("a", type=tarfile.SYMTYPE, linkname="/tmp"), member("a/escaped.py", b"x")
    ),
    "hard link": lambda: packed(member("a", type=tarfile.LNKTYPE, linkname="/etc/passwd")),
    "link to itself": lambda: packed(member("a", type=tarfile.SYMTYPE, linkname="a")),
    "device": lambda: packed(member("zero", type=tarfile.CHRTYPE, devmajor=1, devminor=5)),
    "pipe": lambda: packed(member("pipe", type=tarfile.FIFOTYPE)),
    "folder": lambda: packed(member("folder", type=tarfile.DIRTYPE)),
    "one name twice": lambda: packed(member("a.py", b"1"), member("a.py", b"2")),
    "file and folder": lambda: packed(member("a", b"1"), member("a/b", b"2")),
    "name with a null": lambda: packed(member("a", pax_headers={"path": "a\0b"})),
    "name with escapes": lambda: packed(member("\x1b[2J/../x")),
    "name of 100,000 letters": lambda: packed(member("x" * 100_000)),
    "name 5,000 deep": lambda: packed(member("/".join("x" * 5_000))),
    "size of 8 TB": lambda: _header("x", 8 << 40),
    "size negative": _negative,
    "size of 10**400": lambda: packed(member("a", pax_headers={"size": "9" * 400})),
    "size below 0": lambda: packed(member("a", pax_headers={"size": "-1024"})),
    "3 GB of zeros": lambda: _bomb("x", 3 << 30),
    "header of 1 GB": lambda: _pax(1 << 30),
    "300,000 files": lambda: _many(300_000),
    "sparse file of 8 TB": lambda: packed(
        member("x", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": str(8 << 40)})
    ),
}
