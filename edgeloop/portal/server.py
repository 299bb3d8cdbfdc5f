"""The server: its address, and a shutdown that does not wait for open pages."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType
from urllib.parse import quote

from edgeloop.errors import BadInput, MissingExtra
from edgeloop.portal.auth import SHORTEST_TOKEN, is_loopback
from edgeloop.portal.state import Portal, PortalOptions
from edgeloop.workspace import Workspace

AUTO = "auto"
LAST_REQUESTS_S = 2
MOST_CONNECTIONS = 1_000
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - what is refused without a token


@dataclass(frozen=True)
class Address:
    """`link` includes the token if it was generated here; otherwise it is the address."""

    url: str
    link: str


def checked(options: PortalOptions) -> PortalOptions:
    """Any address except loopback needs a token that is long enough."""
    token = secrets.token_urlsafe(24) if options.token == AUTO else options.token
    if not token and not is_loopback(options.host):
        raise BadInput(
            reason=f"{options.host or 'every address'} can be reached by others, so the portal "
            "needs a token: set EDGELOOP_PORTAL_TOKEN, or use --token auto"
        )
    if token and len(token) < SHORTEST_TOKEN:
        raise BadInput(
            reason=f"the portal's token must have {SHORTEST_TOKEN} characters or more: "
            "--token auto generates one"
        )
    return replace(options, token=token)


def serve(
    workspace: Workspace, options: PortalOptions, announce: Callable[[Address], None]
) -> None:
    """Runs until Ctrl-C or SIGTERM. `announce` is called once the address can be opened."""
    try:
        import uvicorn

        from edgeloop.portal.app import create_app
    except ImportError:
        raise MissingExtra(what="The portal", extra="portal") from None
    is_generated = options.token == AUTO
    options = checked(options)
    with contextlib.closing(bound(options)) as listener:
        options = replace(options, port=listener.getsockname()[1])
        app = create_app(workspace, options)
        portal: Portal = app.state.portal
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,  # it would contain ?token=
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=LAST_REQUESTS_S,
            limit_concurrency=MOST_CONNECTIONS,
        )

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                """Event streams never end by themselves, so they are closed first."""
                portal.closing.set()
                super().handle_exit(sig, frame)

        announce(address_of(workspace, options, is_generated))
        with contextlib.suppress(KeyboardInterrupt):
            Server(config).run(sockets=[listener])


def bound(options: PortalOptions) -> socket.socket:
    """A listening socket."""
    where = f"{options.host or '*'}:{options.port}"
    try:
        found = socket.getaddrinfo(
            options.host or None, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, place = found[0]
        listener = socket.socket(family, kind, protocol)
    except (socket.gaierror, OverflowError, UnicodeError):
        raise BadInput(reason=f"{where} is not an address of this machine") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise BadInput(reason=_why_not(where, error)) from None
    return listener


def address_of(workspace: Workspace, options: PortalOptions, is_generated: bool = False) -> Address:
    host = workspace.settings.node if options.host in _EVERYWHERE else options.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{options.port}/"
    return Address(url, f"{url}?token={quote(options.token, safe='')}" if is_generated else url)


def _why_not(where: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where} is in use, maybe by another portal: choose another port with --port, "
            "or any free one with --port 0"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"this user is not allowed to use {where}: choose a port above 1023 with --port"
    return f"{where} cannot be used: {error.strerror}"
