"""One live portal, and everything of the corpus thrown at it, one after the other."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from edgeloop.settings import Settings
from edgeloop.workspace import Workspace
from tests.hostile.http import CORPUS
from tests.portal.live import live

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-hostile-tests"
LIMIT_S = 60.0
GROWTH = 150 << 20
ROW = {"name": "odd", "status": "complete"}


@dataclass
class Target:
    port: int
    process: psutil.Process
    project: Path
    words: dict[bytes, bytes]
    resident: int

    def statuses(self, content: bytes) -> list[int]:
        """Of all responses until the portal closes the connection, or of the first one where it
        waits for another request."""
        for word, value in self.words.items():
            content = content.replace(word, value)
        said = b""
        with socket.create_connection(("127.0.0.1", self.port), LIMIT_S) as connection:
            with suppress(ConnectionError):  # refused before all of it was sent
                connection.sendall(content)
            with suppress(ConnectionError):
                while not _is_whole(said) and (part := connection.recv(1 << 16)):
                    said += part
        assert b"Traceback" not in said
        return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)]


def _is_whole(said: bytes) -> bool:
    head, end, body = said.partition(b"\r\n\r\n")
    if not end or b"\r\nconnection: close" in head.lower():
        return False
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    project = tmp_path_factory.mktemp("attacked")
    with Workspace(Settings.load(project, {})) as workspace:
        workspace.store.models(workspace.experiment).insert("odd", dict(ROW))
    (project / "token").write_text(TOKEN)
    with live(project, "--allow-changes", "--token-file", "token") as portal:
        url = httpx.URL(portal.address)
        with httpx.Client(base_url=url, timeout=LIMIT_S) as client:
            client.get("/", params={"token": TOKEN})
            change = client.get("/api/v1/session").json()["token"]
            cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
            assert client.get("/api/v1/models").status_code == 200
        process = psutil.Process(portal.process.pid)
        words = {b"{token}": TOKEN, b"{cookie}": cookie, b"{change}": change}
        filled = {name: text.encode() for name, text in words.items()}
        found = Target(int(url.port or 0), process, project, filled, process.memory_info().rss)
        yield found
        code, err = portal.end()
        assert (code, err) == (130, "Stopped; the portal is closed.\n")


@pytest.mark.parametrize("name", sorted(CORPUS))
def test_every_request_gets_the_answer_it_deserves(target: Target, name: str):
    request = CORPUS[name]
    statuses = target.statuses(request.content)
    assert statuses and statuses[0] in request.statuses, (statuses, request.content[:200])
    assert all(status < 500 for status in statuses)
    assert 404 not in statuses[1:]  # nothing that hid in a body was taken for a request


def test_the_corpus_is_large():
    assert len(CORPUS) >= 150


def test_afterwards_the_portal_answers_and_nothing_has_changed(target: Target):
    """Runs last: what is in a file runs in its order."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    url = f"http://127.0.0.1:{target.port}/api/v1/models"
    got = httpx.get(url, headers=headers, timeout=LIMIT_S)
    assert got.status_code == 200 and got.json()["total"] == 1
    with Workspace(Settings.load(target.project, {})) as workspace:
        assert workspace.status() == [ROW]
    assert target.process.memory_info().rss - target.resident < GROWTH
