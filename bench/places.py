"""A fresh store of each kind, on servers that the bench starts and stops."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from edgeloop.store import Store, open_store, parse_location
from tests.peers.azurite import Azurite
from tests.peers.postgres import Postgres

KINDS = ("sqlite", "postgresql", "azurite")


@contextmanager
def place(kind: str) -> Iterator[str]:
    """The address of an empty store."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgeloop-bench-")))
        if kind == "sqlite":
            yield f"sqlite:{folder / 'store'}"
        elif kind == "postgresql":
            server = stack.enter_context(Postgres())
            yield f"{server.url}?blobs=file://{folder / 'blobs'}"
        else:
            yield stack.enter_context(Azurite()).connection_string


@contextmanager
def opened(kind: str) -> Iterator[Store]:
    with place(kind) as address:
        store = open_store(parse_location(address))
        yield store
        store.close()
