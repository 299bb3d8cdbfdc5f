"""A proxy in front of one port that can be told, while it runs, to misbehave as networks do.

It forwards bytes and knows no protocol. One proxy serves one client, so that a partition may cut
off some clients of a server and leave the others alone, in one direction or in both.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, Self

Direction = Literal["requests", "answers"]
BOTH: tuple[Direction, ...] = ("requests", "answers")

_CHUNK = 1 << 16
_AT_ONCE = struct.pack("ii", 1, 0)  # linger for 0 s: what is under way is dropped


@dataclass(eq=False)
class _Link:
    """A connection of the client, and the one to the server that belongs to it."""

    near: socket.socket
    far: socket.socket
    left_of_answer: int | None = None  # bytes of the answer that still go through; None: all
    is_cut: bool = field(default=False)

    def cut(self) -> None:
        """Ended without a word, on both sides."""
        self.is_cut = True
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes whoever reads from it
            with contextlib.suppress(OSError):
                end.close()


class Proxy:
    """Forwards connections to `target`, a port of this machine that may be changed at any time.

    `counts` says what was done to connections: held, reset, cut; `changed` is told of each.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.counts: Counter[str] = Counter()
        self._links: set[_Link] = set()
        self.changed = threading.Condition(threading.RLock())
        self._held: frozenset[Direction] = frozenset()
        self._delay_s = 0.0
        self._answers_left: int | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, *directions: Direction) -> None:
        """Nothing goes through in these directions (both, if none is named) until `heal`: what was
        sent arrives late then, as after a partition that the connections outlive."""
        with self.changed:
            self._held = frozenset(directions or BOTH)

    def delay(self, seconds: float) -> None:
        """From now on each piece of data takes that much longer, in each direction."""
        self._delay_s = seconds

    def lose_answers(self, after_bytes: int = 0) -> None:
        """Requests reach the server. Of what it sends from now on, each connection lets so many
        bytes through and then ends, in the middle of an answer."""
        with self.changed:
            self._answers_left = after_bytes
            for link in self._links:
                link.left_of_answer = after_bytes

    def reset(self) -> None:
        """Every open connection ends at once; new ones are served."""
        with self.changed:
            links = list(self._links)
        for link in links:
            link.cut()
            self._count("reset")

    def heal(self) -> None:
        """From now on everything goes through."""
        with self.changed:
            self._held = frozenset()
            self._delay_s, self._answers_left = 0.0, None
            for link in self._links:
                link.left_of_answer = None
            self.changed.notify_all()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.heal()
        self.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        """Clients wait for whole answers, so nothing is gained by waiting for more to send."""
        try:
            far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:  # as a port that nobody listens on would
            _Link(near, near).cut()
            return
        far.settimeout(None)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.changed:
            link = _Link(near, far, self._answers_left)
            self._links.add(link)
        answers = threading.Thread(target=self._pump, args=(link, "answers"), daemon=True)
        answers.start()
        self._pump(link, "requests")
        answers.join()
        with self.changed:
            self._links.discard(link)
        for end in (near, far):
            end.close()

    def _pump(self, link: _Link, direction: Direction) -> None:
        ends = (link.near, link.far) if direction == "requests" else (link.far, link.near)
        source, target = ends
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                if self._delay_s:
                    time.sleep(self._delay_s)
                self._wait_while_held(link, direction)
                is_last = direction == "answers" and self._is_cut_short(link, chunk)
                if is_last:
                    target.sendall(chunk[: link.left_of_answer])
                    link.cut()
                    self._count("cut")
                    return
                target.sendall(chunk)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _wait_while_held(self, link: _Link, direction: Direction) -> None:
        with self.changed:
            if direction in self._held:
                self._count("held")
                self.changed.wait_for(lambda: direction not in self._held or link.is_cut)

    def _count(self, what: str) -> None:
        with self.changed:
            self.counts[what] += 1
            self.changed.notify_all()

    def _is_cut_short(self, link: _Link, chunk: bytes) -> bool:
        """Whether this piece is the last that goes through, and then only in part."""
        with self.changed:
            if link.left_of_answer is None:
                return False
            if len(chunk) >= link.left_of_answer:
                return True
            link.left_of_answer -= len(chunk)
            return False
