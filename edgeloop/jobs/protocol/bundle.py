"""The wrapper as one file: what runs inside a job where Edgeloop is not installed.

The same sources give the same bytes, so the file is named by its hash and stored once.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

from edgeloop.jobs.protocol.ticket import wrapper_key
from edgeloop.store import Blobs

_PACKAGE = Path(__file__).parents[2]
# What may be imported inside a job: these need no more than the standard library and obstore.
_FILES = (
    *("__init__.py", "_version.py", "errors.py"),
    *("store/__init__.py", "store/base.py", "store/blobs.py", "store/identity.py"),
    *("store/location.py", "store/registry.py"),
    *("jobs/__init__.py", "jobs/protocol/__init__.py", "jobs/protocol/ticket.py"),
    "jobs/protocol/handover.py",
)
_ROOMS = ("_util", "data", "jobs/wrapper")
_MAIN = "import sys\nfrom edgeloop.jobs.wrapper import main\nsys.exit(main(sys.argv[1:]))\n"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def bundle() -> bytes:
    """The .pyz: run it with any Python from 3.11 on that has obstore."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in _contents():
            archive.writestr(_entry(name), content, compresslevel=6)
    return target.getvalue()


def ensure_wrapper(blobs: Blobs) -> str:
    """The wrapper's key in the store; it is sent where it is not there yet."""
    content = bundle()
    key = wrapper_key(hashlib.sha256(content).hexdigest())
    if blobs.size(key) is None:
        blobs.put(key, content)
    return key


def _contents() -> list[tuple[str, bytes]]:
    files = {_PACKAGE / name for name in _FILES}
    for room in _ROOMS:
        files.update((_PACKAGE / room).rglob("*.py"))
    named = [(f"edgeloop/{file.relative_to(_PACKAGE).as_posix()}", file) for file in files]
    return [("__main__.py", _MAIN.encode()), *((name, f.read_bytes()) for name, f in sorted(named))]


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _LONG_AGO)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry
