"""Two tiers: `make test` runs what a change can break, `make soak` what is long by nature.

Every test is in exactly one of them: `pytest.mark.soak` on a test, a parameter or a file
(`pytestmark = …` on one line) puts it into `make soak`, and everything else is in `make test`.
`make unit` is the part of `make test` that needs no server, no root and little time.

A test is marked `server` when it uses a server's fixture, and all tests of a file when the file
imports a peer at its top. What opens ports otherwise, trains, or takes more than about a second
carries `pytest.mark.server` or `pytest.mark.slow` itself. `pytest --tier unit` runs what has
neither mark: files that are marked as a whole are not even imported, and a test that listens on a
port or imports a peer fails.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TIERS = ("unit", "test", "soak")
MARKERS = (
    "soak: long by nature (whole searches, clusters under kills, other Pythons): `make soak`",
    "server: needs a server that `make setup` installs, or rights that only root has",
    "slow: trains, waits for several processes, or takes more than about a second",
)
# Fixtures that start a server, or that are only used with one.
SERVER_FIXTURES = {
    *("postgres", "azurite", "s3", "ray_cluster", "azure_certificate", "azure_storage", "azureml"),
    *("adb_server", "boards", "board", "sdk", "sdk_1", "browser"),
}
# Parameters that choose a server.
SERVER_KINDS = {"postgresql", "azure", "s3"}
# Modules of tests.peers that are no servers.
HELPERS = {"tests.peers.ports", "tests.peers.process", "tests.peers.systemctl"}

_SERVER_FILE = re.compile(r"^from tests\.peers\.(?!ports\b|process\b|systemctl\b)", re.MULTILINE)
_MARKED_FILE = re.compile(r"^pytestmark = pytest\.mark\.(server|slow|soak)\b", re.MULTILINE)
_SOAK_FILE = re.compile(r"^pytestmark = pytest\.mark\.soak\b", re.MULTILINE)
_SOAK_ANYWHERE = re.compile(r"\bmark\.soak\b")


class ServerInUnitTest(BaseException):
    """A unit test wanted a server. No handler of errors in the code under test may hide it."""


@cache
def is_left_out(file: Path, tier: str) -> bool:
    """Whether a tier has no test of a file, so that the file need not be imported."""
    if not (file.name.startswith("test_") and file.suffix == ".py"):
        return False
    text = file.read_text()
    if tier == "soak":
        return not _SOAK_ANYWHERE.search(text)
    if tier == "test":
        return bool(_SOAK_FILE.search(text))
    return _imports_a_peer(file) or bool(_MARKED_FILE.search(text))


def is_in(item: pytest.Item, tier: str) -> bool:
    is_soak = item.get_closest_marker("soak") is not None
    if tier == "soak":
        return is_soak
    if tier == "test":
        return not is_soak
    return not (is_soak or any(item.get_closest_marker(name) for name in ("server", "slow")))


def mark_servers(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if _imports_a_peer(item.path) or _uses_a_server(item):
            item.add_marker("server")


def forbid_servers() -> None:
    """From now on this process cannot listen on a port, nor import a peer."""

    bare_listen = socket.socket.listen

    def listen(listener: socket.socket, *backlog: int) -> None:
        if listener.family != socket.AF_UNIX:
            where = listener.getsockname()
            raise ServerInUnitTest(f"a unit test listens on {where}: mark it `server`")
        bare_listen(listener, *backlog)

    sys.addaudithook(watch)
    socket.socket.listen = listen  # type: ignore[method-assign]


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: it sees every import that loads something."""
    if (
        event == "import"
        and arguments[0].startswith("tests.peers.")
        and arguments[0] not in HELPERS
    ):
        raise ServerInUnitTest(f"a unit test imports {arguments[0]}: mark it `server`")


@cache
def _imports_a_peer(file: Path) -> bool:
    return bool(_SERVER_FILE.search(file.read_text()))


def _uses_a_server(item: pytest.Item) -> bool:
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    kinds = {value for value in params if isinstance(value, str)}
    return bool(SERVER_FIXTURES & set(getattr(item, "fixturenames", ())) or SERVER_KINDS & kinds)
