"""Two tiers: `make unit` needs no server, no root and little time; `make test` runs everything.

A test is marked `server` when it uses a server's fixture, and all tests of a file when the file
imports a peer at its top. What opens ports otherwise, trains, or takes more than about a second
carries `pytest.mark.server` or `pytest.mark.slow` itself. `pytest --unit` runs what has neither
mark: files that are marked as a whole (`pytestmark = …` on one line) are not even imported, and a
test that listens on a port or imports a peer fails.
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

MARKERS = (
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
HELPERS = {"tests.peers.ports", "tests.peers.process"}

_SERVER_FILE = re.compile(r"^from tests\.peers\.(?!ports\b|process\b)", re.MULTILINE)
_MARKED_FILE = re.compile(r"^pytestmark = pytest\.mark\.(server|slow)\b", re.MULTILINE)


class ServerInUnitTest(BaseException):
    """A unit test wanted a server. No handler of errors in the code under test may hide it."""


@cache
def is_left_out(file: Path) -> bool:
    """Whether all tests of a file are outside the unit tier."""
    if not (file.name.startswith("test_") and file.suffix == ".py"):
        return False
    return _imports_a_peer(file) or bool(_MARKED_FILE.search(file.read_text()))


def mark_servers(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if _imports_a_peer(item.path) or _uses_a_server(item):
            item.add_marker("server")


def is_unit(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(name) for name in ("server", "slow"))


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
