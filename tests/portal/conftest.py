"""Portals: in this process for questions and answers, as a process of its own for what is live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from edgeloop.settings import Settings
from edgeloop.view.portal.app import create_app
from edgeloop.view.portal.state import PortalOptions
from edgeloop.workspace import Workspace
from tests.portal.farm import fill

HERE = "http://127.0.0.1:8750"
TOKEN = "a-token-nobody-guesses"

MakeClient = Callable[..., TestClient]


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project as a farm leaves it; no test of the module changes it."""
    folder = tmp_path_factory.mktemp("farm")
    fill(folder)
    return folder


@pytest.fixture(scope="module")
def reading(farm: Path) -> Iterator[TestClient]:
    """Somebody who looks at the farm."""
    with (
        Workspace(Settings.load(farm, {})) as workspace,
        TestClient(create_app(workspace), HERE, follow_redirects=False) as client,
    ):
        yield client


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """An empty embedded store of one's own."""
    with Workspace(Settings.load(tmp_path, {}, store=f"sqlite:{tmp_path / 'store'}")) as opened:
        yield opened


@pytest.fixture
def make_client(workspace: Workspace) -> Iterator[MakeClient]:
    """A portal on that store, and somebody who asks it, as a browser on this machine would."""
    with clients_of(workspace) as make:
        yield make


@contextmanager
def clients_of(workspace: Workspace) -> Iterator[MakeClient]:
    """Starts portals on a store; all of them end together."""
    with ExitStack() as closing:

        def make(
            token: str = "", allow_changes: bool = False, host: str = "127.0.0.1", base: str = HERE
        ) -> TestClient:
            options = PortalOptions(host, 8750, token, allow_changes)
            app = create_app(workspace, options)
            return closing.enter_context(TestClient(app, base, follow_redirects=False))

        yield make
