"""Connections and their limits: nobody who is slow, silent or many keeps others out.

- A request's head must arrive within `HEAD_S` of the connection or of the last response.
- Whoever does not read a response fast enough is cut off; downloads and event streams then wait for
  nobody, and hold no thread meanwhile.
- A new connection is always welcome: when there are too many of one address, or of all, the one
  that we have been waiting for the longest goes, of the address that has the most. We wait for a
  request until all of it, its body included, is there. Only if we work for all of them is the new
  one refused.
- With TLS, handshakes count as connections and have the same time limit.

The time for a body is limited by `edgeloop.view.portal.auth`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 1_000
MOST_PER_ADDRESS = 500
FILES_BESIDES = 200  # of the store, of libraries
HEAD_S = 10.0
WRITE_S = 30.0
LEAST_BYTES = 32 << 10  # a reader takes this much within WRITE_S, or all
MOST_UNREAD = 1 << 20  # of a body after its refusal; who sends more is cut off
FULL = "The portal has too many connections: try again in some seconds."
LATE = "The request did not arrive in time."
INVALID = "This is not a valid HTTP request."


@dataclass(frozen=True)
class ConnectionLimits:
    most: int = MOST_CONNECTIONS
    per_address: int = MOST_PER_ADDRESS
    head_s: float = HEAD_S
    write_s: float = WRITE_S


def usable_limits() -> ConnectionLimits:
    """As many connections as this process may open files, which is raised where it is low."""
    try:
        import resource
    except ImportError:  # not a POSIX system: there is no such limit to raise
        return ConnectionLimits()
    wanted = MOST_CONNECTIONS + FILES_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    is_enough = soft == resource.RLIM_INFINITY or soft >= wanted
    most = MOST_CONNECTIONS if is_enough else max(soft - FILES_BESIDES, soft // 2, 1)
    return ConnectionLimits(most, min(MOST_PER_ADDRESS, max(most // 2, 1)))


class Connections:
    """All open connections by address, each address's in the order in which they began to wait."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._groups: dict[str, dict[PortalProtocol, None]] = {}
        self._count = 0

    def admit(self, newcomer: PortalProtocol) -> bool:
        own = self._groups.get(newcomer.address, {})
        if len(own) >= self.limits.per_address:
            is_room = self._make_room(own)
        elif self._count >= self.limits.most:
            groups = sorted(self._groups.values(), key=len, reverse=True)
            is_room = any(map(self._make_room, groups))
        else:
            is_room = True
        if is_room:
            self._groups.setdefault(newcomer.address, {})[newcomer] = None
            self._count += 1
        return is_room

    def waits(self, connection: PortalProtocol) -> None:
        """It is behind all others that wait already."""
        group = self._groups.get(connection.address, {})
        if connection in group:
            group[connection] = group.pop(connection)

    def leave(self, connection: PortalProtocol) -> None:
        group = self._groups.get(connection.address, {})
        if connection in group:
            del group[connection]
            self._count -= 1
            if not group:
                del self._groups[connection.address]

    def _make_room(self, group: dict[PortalProtocol, None]) -> bool:
        idle = (item for item in group if item.is_awaited)
        stuck = (item for item in group if item.is_stuck)
        victim = next(idle, None) or next(stuck, None)
        if victim is None:
            return False
        self.leave(victim)
        victim.drop()
        return True


class PortalProtocol(H11Protocol):
    """A connection. `tls` encrypts it first."""

    def __init__(
        self, *given: Any, register: Connections, tls: ssl.SSLContext | None, **named: Any
    ) -> None:
        super().__init__(*given, **named)
        self.address = ""
        self._register = register
        self._limits = register.limits
        self._tls = tls
        self._socket: asyncio.Transport | None = None  # before it is encrypted
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._unread = 0
        self._has_begun = False

    @property
    def is_at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_awaited(self) -> bool:
        """Its next request is not there yet, or not all of its body."""
        return not self.is_at_work or self.cycle.more_body

    @property
    def is_stuck(self) -> bool:
        """Its reader is too slow for now."""
        return self.flow is not None and self.flow.write_paused

    def drop(self) -> None:
        for transport in (self.transport, self._socket):
            if transport is not None:
                transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = transport
        self.address = _group_of(transport.get_extra_info("peername"))
        if not self._register.admit(self):
            transport.write(_response(503, FULL, "Retry-After: 5\r\n"))
            transport.close()
        elif self._tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._encrypt(transport, self._tls))

    async def _encrypt(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            secured = await self.loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self._limits.head_s,
                ssl_shutdown_timeout=self._limits.head_s,
            )
        except OSError:  # including those of ssl and of time limits
            secured = None
        if secured is None:
            transport.abort()
            self._register.leave(self)
            return
        self._begin(secured)
        if self._early:
            self.data_received(self._early)
            self._early = b""

    def _begin(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._register.leave(self)
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:  # the first bytes after a handshake
            self._early += data
            if len(self._early) > MOST_UNREAD:
                self.drop()
            return
        self._has_begun = True
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:  # from now on its body is awaited
            self._register.waits(self)
        if self.is_at_work:
            self._unread = 0
            if not self.flow.write_paused:
                self._stop()
        elif self.cycle is not None and self.conn.their_state is h11.SEND_BODY:
            self._unread += len(data)
            if self._unread > MOST_UNREAD:
                self.drop()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.is_at_work:
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set(self._limits.write_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.is_at_work:
            self._stop()

    def send_400_response(self, msg: str) -> None:
        """Called while the error is handled, which knows whether the head was too large."""
        status = 431 if getattr(sys.exception(), "error_status_hint", 400) == 431 else 400
        has_answered = self.is_at_work and self.cycle.response_started
        if not has_answered and not self.transport.is_closing():
            self.transport.write(_response(status, INVALID))
        self.transport.close()
        if self.is_at_work:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _wait(self) -> None:
        """For the head of the next request."""
        self._has_begun = False
        self._register.waits(self)
        self._set(self._limits.head_s)

    def _set(self, seconds: float) -> None:
        self._stop()
        self._unsent = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(seconds, self._check)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """The time is over: for a reader to have read, or for a head to have arrived."""
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            if self._unsent - unsent < LEAST_BYTES:
                self.drop()
            else:
                self._set(self._limits.write_s)
        elif not self.is_at_work:
            if self._has_begun and not self.transport.is_closing():
                self.transport.write(_response(408, LATE))
            self.transport.close()
            self._set(self._limits.head_s)  # for the last bytes


def protocol_factory(
    limits: ConnectionLimits, tls: ssl.SSLContext | None = None
) -> Callable[..., PortalProtocol]:
    """What makes the connections of one server."""
    register = Connections(limits)

    def make(*given: Any, **named: Any) -> PortalProtocol:
        return PortalProtocol(*given, register=register, tls=tls, **named)

    return make


def _group_of(peer: object) -> str:
    """Whose connection it is: an IPv4 address, or the network of an IPv6 address, since whoever has
    one of those has as many as they like."""
    text = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, 64), strict=False))
        address = address.ipv4_mapped
    return str(address)


def _response(status: int, sentence: str, more: str = "") -> bytes:
    body = json.dumps({"detail": sentence})
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nX-Content-Type-Options: nosniff\r\n{more}"
        f"Connection: close\r\n\r\n{body}"
    ).encode()
