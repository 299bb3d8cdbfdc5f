"""Writes the SHA-256 of every package of constraints.txt into it, from the index that pip uses.

    python scripts/pin_hashes.py

Run it after a version changed. Files for Linux (x86-64, AArch64) and Python 3.11 to 3.13 count,
and source archives. tests/setup/test_constraints.py fails if a version has no hash.
"""

from __future__ import annotations

import hashlib
import html
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote
from urllib.request import Request, urlopen

FILE = Path(__file__).parents[1] / "constraints.txt"
TIMEOUT_S = 60
_LINK = re.compile(r'<a\b[^>]*href="([^"#]+)#sha256=([0-9a-f]{64})"')
_PYTHON = re.compile(r"(py3|cp31[123]|py2\.py3|cp3\d*-abi3)[.-]")
_PLATFORM = re.compile(r"(any|(many)?linux\w*_(x86_64|aarch64)(\.\w+)*)$")


def main() -> None:
    index, folders = pip_setting("index-url"), pip_setting("find-links").split()
    lines = FILE.read_text().splitlines()
    pins = [line.split()[0] for line in lines if re.match(r"[\w.-]+==", line)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda pin: hashes(pin, index, folders), pins))
    without = [pin for pin, digests in zip(pins, found, strict=True) if not digests]
    if without:
        sys.exit(f"pin_hashes: the index has no hash for {', '.join(without)}")
    head = [line for line in lines if line.startswith("#")]
    text = [entry(pin, digests) for pin, digests in zip(pins, found, strict=True)]
    FILE.write_text("\n".join([*head, *text]) + "\n")


def entry(pin: str, digests: set[str]) -> str:
    """A requirement with its hashes, in the notation of pip."""
    return " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in sorted(digests))])


def hashes(pin: str, index: str, folders: list[str]) -> set[str]:
    """Those of all files of this version that may be installed: a local version (`+cpu`) counts."""
    name, version = pin.split("==")
    project = re.sub(r"[-_.]+", "-", name).lower()
    digests = {
        digest for file, digest in of_index(f"{index}/{project}/") if is_usable(file, name, version)
    }
    for folder in folders:
        for path in Path(folder).glob("*.whl"):
            if is_usable(path.name, name, version):
                digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    return digests


def of_index(url: str) -> Iterator[tuple[str, str]]:
    request = Request(url, headers={"Accept": "text/html"})
    with urlopen(request, timeout=TIMEOUT_S) as answer:
        page = answer.read().decode()
    for link, digest in _LINK.findall(page):
        yield unquote(html.unescape(link).rsplit("/", 1)[-1]), digest


def is_usable(file: str, name: str, version: str) -> bool:
    """Whether this is an archive of the version, or a wheel of it for Python and platform."""
    stem = re.sub(r"[-_.]+", "[-_.]+", re.escape(name).replace("\\", ""))
    start = re.match(rf"{stem}-{re.escape(version)}(\+[\w.]+)?(-|\.tar|\.zip)", file, re.IGNORECASE)
    if start is None:
        return False
    if not file.endswith(".whl"):
        return True
    tags = file.removesuffix(".whl").rsplit("-", 3)[1:]
    return bool(_PYTHON.match("-".join(tags[:2]) + "-")) and bool(_PLATFORM.search(tags[2]))


def pip_setting(name: str) -> str:
    """What pip is configured with; for the index, its own default otherwise."""
    command = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not answer and name == "index-url":
        from pip._internal.models.index import PyPI

        return str(PyPI.simple_url)
    return answer.rstrip("/")


if __name__ == "__main__":
    main()
