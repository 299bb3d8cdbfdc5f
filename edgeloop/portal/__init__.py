"""The portal: the state of an experiment, live in a browser, and the same as JSON.

    with Workspace.open() as workspace:
        serve(workspace, PortalOptions(port=0), lambda address: print(address.url))

`create_app` returns the application, for a server of your own. Needs the extra `portal`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.portal.app import create_app
    from edgeloop.portal.server import Address, checked, serve
    from edgeloop.portal.state import PortalOptions
    from edgeloop.portal.tokens import AUTO, opening_page, own_token, token_in

__all__ = [
    "AUTO",
    "Address",
    "PortalOptions",
    "checked",
    "create_app",
    "opening_page",
    "own_token",
    "serve",
    "token_in",
]

_WHERE = {
    "app": ("create_app",),
    "state": ("PortalOptions",),
    "server": ("Address", "checked", "serve"),
    "tokens": ("AUTO", "opening_page", "own_token", "token_in"),
}


def __getattr__(name: str) -> object:
    """Imported on demand: options can be checked without FastAPI."""
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"edgeloop.portal.{module}"), name)
    raise AttributeError(f"module 'edgeloop.portal' has no attribute {name!r}")
