"""The server: its address, its limits, and a shutdown that does not wait for open pages."""

from __future__ import annotations

import contextlib
import errno
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from edgeloop.errors import BadInput, MissingExtra
from edgeloop.view.portal.auth import is_loopback
from edgeloop.view.portal.state import Portal, PortalOptions
from edgeloop.view.portal.tokens import (
    AUTO,
    SHORTEST_TOKEN,
    OwnToken,
    check_certificate,
    fingerprint,
    own_certificate,
    own_token,
)
from edgeloop.workspace import Workspace

if TYPE_CHECKING:
    import uvicorn

MOST_CONNECTIONS = 1_000
IDLE_S = 5
_FILES_BESIDES = 200  # of the store, of libraries
LAST_REQUESTS_S = 2
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - what is refused without a token


@dataclass(frozen=True)
class Address:
    """`link` includes the token if it is the user's own; otherwise it is the address. `token_file`
    is where that token is kept. `fingerprint` is that of a self-signed certificate."""

    url: str
    link: str
    token_file: Path | None = None
    fingerprint: str = ""


def checked(options: PortalOptions) -> PortalOptions:
    """Any address except loopback needs a token that is long enough."""
    token = options.token
    if not token and not is_loopback(options.host):
        raise BadInput(
            reason=f"{options.host or 'every address'} can be reached by others, so the portal "
            "needs a token: leave --no-token out"
        )
    if token and token != AUTO and len(token) < SHORTEST_TOKEN:
        raise BadInput(
            reason=f"the portal's token must have {SHORTEST_TOKEN} characters or more: without "
            "EDGELOOP_PORTAL_TOKEN and --token-file one is made"
        )
    if not token.isprintable() or not token.isascii() or " " in token:
        raise BadInput(reason="the portal's token may only have ASCII letters, digits and signs")
    if (options.certificate is None) != (options.key is None):
        raise BadInput(reason="TLS needs both --tls-cert and --tls-key")
    if options.is_self_signed and options.certificate is not None:
        raise BadInput(reason="--tls makes a certificate, so leave out --tls-cert and --tls-key")
    _check_public_url(options.public_url)
    return options


def _check_public_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if url and not (is_valid and parts.path in ("", "/") and not parts.query and "@" not in url):
        raise BadInput(
            reason=f"{url!r} is not an address such as https://portal.example: a proxy serves the "
            "portal at the root of a name of its own"
        )


def serve(
    workspace: Workspace, options: PortalOptions, announce: Callable[[Address], None]
) -> None:
    """Runs until SIGTERM or Ctrl-C, which is raised as ever. `announce` is called once the address
    can be opened."""
    try:
        import uvicorn

        from edgeloop.view.portal.app import create_app
    except ImportError:
        raise MissingExtra(what="The portal", extra="portal") from None
    options = checked(options)
    user_token = own_token() if options.token == AUTO else None
    options = replace(options, token=user_token.text) if user_token else options
    options = _with_certificate(workspace, options)
    if options.certificate is not None and options.key is not None:
        check_certificate(options.certificate, options.key)
    with contextlib.closing(bound(options)) as listener:
        options = replace(options, port=listener.getsockname()[1])
        app = create_app(workspace, options)
        portal: Portal = app.state.portal

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                """Event streams never end by themselves, so they are closed first."""
                portal.closing.set()
                super().handle_exit(sig, frame)

        announce(address_of(workspace, options, user_token))
        config = server_config(app, options.certificate, options.key)
        Server(config).run(sockets=[listener])


def server_config(
    app: object, certificate: Path | None = None, key: Path | None = None
) -> uvicorn.Config:
    """How the application is served. Uvicorn limits connections and idle ones; clients that are
    slow on purpose are for a proxy to handle, as docs/how-to/portal.md says."""
    import uvicorn

    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http="h11",
        loop="asyncio",
        ssl_certfile=certificate,
        ssl_keyfile=key,
        limit_concurrency=usable_connections(),
        timeout_keep_alive=IDLE_S,
        log_level="error",  # not a line for each request that is not valid
        access_log=False,  # it would contain ?token=
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=LAST_REQUESTS_S,
    )


def usable_connections() -> int:
    """As many connections as this process may open files for, after raising that limit."""
    try:
        import resource
    except ImportError:  # not a POSIX system: there is no such limit to raise
        return MOST_CONNECTIONS
    needed = MOST_CONNECTIONS + _FILES_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return MOST_CONNECTIONS
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    return max(min(MOST_CONNECTIONS, soft - _FILES_BESIDES), soft // 2, 1)


def _with_certificate(workspace: Workspace, options: PortalOptions) -> PortalOptions:
    if not options.is_self_signed:
        return options
    host = "" if options.host in _EVERYWHERE else options.host
    names = ("localhost", "127.0.0.1", "::1", workspace.settings.node, host)
    usable = [name for name in dict.fromkeys(names) if re.fullmatch(r"[A-Za-z0-9.:-]+", name)]
    certificate, key = own_certificate(usable)
    return replace(options, certificate=certificate, key=key)


def bound(options: PortalOptions) -> socket.socket:
    """A listening socket."""
    where = f"{options.host or '*'}:{options.port}"
    try:
        addresses = socket.getaddrinfo(
            options.host or None, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, place = addresses[0]
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


def address_of(
    workspace: Workspace, options: PortalOptions, user_token: OwnToken | None = None
) -> Address:
    host = workspace.settings.node if options.host in _EVERYWHERE else options.host
    scheme = "https" if options.certificate else "http"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{options.port}/"
    if options.public_url:
        url = options.public_url.rstrip("/") + "/"
    mark = (
        fingerprint(options.certificate) if options.is_self_signed and options.certificate else ""
    )
    if user_token is None:
        return Address(url, url, None, mark)
    return Address(url, f"{url}?token={quote(user_token.text, safe='')}", user_token.file, mark)


def _why_not(where: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where} is in use, maybe by another portal: choose another port with --port, "
            "or any free one with --port 0"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"this user is not allowed to use {where}: choose a port above 1023 with --port"
    return f"{where} cannot be used: {error.strerror}"
