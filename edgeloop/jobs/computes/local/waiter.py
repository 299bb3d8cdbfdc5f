"""The program of a job that waits on this machine, as one file.

It is kept beside the queue under the name of its hash: a job that has waited for days goes on with
what it began with, whatever becomes of the Edgeloop that submitted it.
"""

from __future__ import annotations

import hashlib
import secrets
import zipfile
from io import BytesIO
from pathlib import Path

_PACKAGE = Path(__file__).parents[3]
_HERE = "jobs/computes/local"
_MODULES = (
    *(f"{_HERE}/turn", f"{_HERE}/queue", f"{_HERE}/environment"),
    "jobs/protocol/resources",
)
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def waiter_file(folder: Path) -> Path:
    """Where it lies in `folder`; it is made where it is not there yet."""
    contents = {f"edgeloop/{name}.py": _source(name) for name in _MODULES}
    contents = {"__main__.py": _source(f"{_HERE}/begin"), **contents}
    digest = hashlib.sha256(repr(contents).encode()).hexdigest()[:16]
    file = folder / f"waiter-{digest}.zip"
    if not file.is_file():
        partial = file.with_name(f".{secrets.token_hex(8)}.part")
        partial.write_bytes(_zipped(contents))
        partial.replace(file)
    return file


def _zipped(contents: dict[str, bytes]) -> bytes:
    """Stored as it is: what a waiting process need not load is worth more than a few kilobytes."""
    target = BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), content)
    return target.getvalue()


def _source(name: str) -> bytes:
    return (_PACKAGE / f"{name}.py").read_bytes()
