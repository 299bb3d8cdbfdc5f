"""A short round of the nemesis on every store; `make bench` runs long ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.nemesis.driver import Nemesis
from tests.peers.azurite import Azurite
from tests.peers.postgres import Postgres


@pytest.fixture(params=["sqlite", "postgresql", "azure"])
def tormented(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nemesis]:
    """Servers of its own: it stops and starts them while others' tests go on."""
    folder = tmp_path / "history"
    folder.mkdir()
    with ExitStack() as peers:
        if request.param == "sqlite":
            url, restart = f"sqlite:{tmp_path / 'store'}", None
        elif request.param == "postgresql":
            server = peers.enter_context(Postgres())
            url = f"{server.url}?blobs=file://{tmp_path / 'blobs'}"
            restart = _after(server.kill, server.start)
        else:
            server = peers.enter_context(Azurite())
            url, restart = server.connection_string, _after(server.stop, server.start)
        yield Nemesis(url, folder, seconds=10, models=12, seed=7, restart_server=restart)


def _after(end: Callable[[], None], start: Callable[[], None]) -> Callable[[], None]:
    """PostgreSQL is killed. Azurite is told to stop: it keeps its tables in memory and writes them
    when it ends, so killing it would test Azurite's durability, which it does not promise."""

    def restart() -> None:
        end()
        start()

    return restart


def test_every_stage_ends_once_and_nothing_stale_gets_in(tormented: Nemesis) -> None:
    report = tormented.run()

    assert report.violations == []
    assert report.deeds["kill"] > 0
    assert report.deeds["freeze"] > 0
    assert (report.deeds["server"] > 0) == (tormented.restart_server is not None)
    assert report.seen["accepted"] > 0
