"""Portals on real sockets, served from a thread as the program serves them.

That starts in a tenth of the time that a process takes: most tests look at pages and answers, which
do not know the difference.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from click.testing import CliRunner

from edgeloop.cli.app import app as command_line
from edgeloop.settings import Settings
from edgeloop.view.portal.app import create_app
from edgeloop.view.portal.server import server_config
from edgeloop.view.portal.state import PortalOptions
from edgeloop.workspace import Workspace
from tests.conftest import clean_environ
from tests.peers.process import wait_until

LIMIT_S = 60.0
COMMAND_S = 120.0


@dataclass(frozen=True)
class Site:
    """A project, and the portal that shows it."""

    folder: Path
    url: str
    environ: dict[str, str] = field(default_factory=dict, repr=False)

    def at(self, path: str) -> str:
        return self.url.rstrip("/") + path

    def edgeloop(self, *arguments: object) -> str:
        """A command in another process, as somebody else would give it."""
        done = subprocess.run(
            [sys.executable, "-m", "edgeloop", *map(str, arguments)],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def workspace(self) -> Workspace:
        return Workspace(Settings.load(self.folder, self.environ))


@contextmanager
def portal_here(
    folder: Path,
    environ: dict[str, str] | None = None,
    token: str = "",
    allow_changes: bool = False,
) -> Iterator[Site]:
    """The portal of a project, in a thread."""
    with Workspace(Settings.load(folder, environ or {})) as workspace:
        options = PortalOptions(token=token, allow_changes=allow_changes)
        served = Served(create_app(workspace, options))
        try:
            yield Site(folder, f"{served.url}/", {**clean_environ(), **(environ or {})})
        finally:
            served.close()


def run_here(folder: Path, *arguments: str) -> None:
    """A command in a project that writes files there, in this process."""
    outside = dict.fromkeys(os.environ.keys() - clean_environ().keys())
    with chdir(folder):
        done = CliRunner(env=outside).invoke(command_line, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output


class Served:
    """Starts at once; `close` ends it."""

    def __init__(self, app: Any, certificate: Path | None = None, key: Path | None = None) -> None:
        self._app = app
        self._server = uvicorn.Server(server_config(app, certificate, key))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = self._listener.getsockname()
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.place[1]}"
        given = {"sockets": [self._listener]}
        self._thread = threading.Thread(target=self._server.run, kwargs=given, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started, LIMIT_S, "the server to start")

    @property
    def open(self) -> int:
        return len(self._server.server_state.connections)

    def connect(self, first: bytes = b"", receive: int = 0) -> socket.socket:
        made = socket.socket()
        if receive:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        made.settimeout(LIMIT_S)
        made.connect(self.place)
        made.sendall(first)
        return made

    def close(self) -> None:
        """Streams of events never end by themselves, so a portal closes them first."""
        portal = getattr(self._app.state, "portal", None)
        if portal is not None:
            portal.closing.set()
        self._server.should_exit = True
        self._thread.join(LIMIT_S)
        self._listener.close()
