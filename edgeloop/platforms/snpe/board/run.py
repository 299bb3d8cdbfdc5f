"""The host's side of a run: it waits for its turn while the board is ready already, and lets the
next one begin as soon as the tool has ended, while the results are still on their way."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO

from edgeloop.platforms.snpe.board.adb import Adb, Answer
from edgeloop.platforms.snpe.board.adb_call import Limit
from edgeloop.platforms.snpe.board.script import WORDS, Order
from edgeloop.platforms.snpe.board.tar import unpacked
from edgeloop.platforms.snpe.board.turns import TurnRefusedError, Turns


@dataclass(frozen=True)
class ToolRun:
    """How a run went: seconds inside the tool by the board's clock, when it ended by ours, and the
    files it left."""

    seconds: float
    ended: datetime
    files: dict[str, bytes] = field(repr=False)

    def text(self, name: str) -> str:
        return self.files.get(name, b"").decode("utf-8", "replace")


class Conversation:
    """One call of `tool_script`. `said` is the board's word on how it went, `disk` what `df` says
    after the tool."""

    def __init__(
        self, adb: Adb, turns: Turns, order: Order, rank: int, call_s: float, transfer_s: float
    ) -> None:
        self._adb = adb
        self._turns = turns
        self._order = order
        self._rank = rank
        self._limit = Limit(call_s)
        self._tool_s = order.limit_s + order.layers_s + call_s
        self._transfer_s = transfer_s
        self._arming = ExitStack()
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._over = threading.Event()
        self.ended = datetime.now(UTC)
        self.said: list[str] = []
        self.disk: list[str] = []

    @property
    def _is_measurement(self) -> bool:
        return self._order.hot_c is not None

    def hold(self, script: str, inputs: Sequence[str]) -> tuple[Answer, dict[str, bytes]]:
        with self._arming:
            self._arming.enter_context(self._turns.travel())
            send = self._orders("".join(f"{path}\n" for path in inputs).encode())
            answer, files = self._adb.stream(script, self._receive, self._limit, send)
        return answer, files or {}

    def _orders(self, listed: bytes) -> Iterator[bytes]:
        """Drawn by the thread that feeds the call, so that is where turns are waited for."""
        yield listed + b".\n"
        self._ready.wait()
        if self._over.is_set():
            return
        self._limit.pause()  # others have limits of their own
        try:
            with self._turns.tool(self._rank, alone=self._is_measurement):
                if self._over.is_set():
                    return
                self._limit.restart(self._tool_s)
                yield b"go\n"
                self._ended.wait()
        except TurnRefusedError:  # without a word the board says `stopped`, and tidies up
            self._limit.restart(self._tool_s)
            return
        if self._over.is_set():
            return
        self._limit.pause()
        with self._turns.travel():
            self._limit.restart(self._transfer_s)
            yield b"go\n"
            self._over.wait()

    def _receive(self, stream: IO[bytes]) -> dict[str, bytes]:
        try:
            if not self._hear(stream, "ready"):
                return {}
            self._arming.close()
            self._ready.set()
            if not self._hear(stream, "tool"):
                return {}
            self.ended = datetime.now(UTC)
            if not self._is_measurement:
                self._ended.set()
            self.disk = stream.readline().decode("utf-8", "replace").split()
            return unpacked(stream, self._order.squeeze)
        finally:
            self._over.set()
            self._ended.set()
            self._ready.set()

    def _hear(self, stream: IO[bytes], word: str) -> bool:
        """Some boards' shells and linkers have something to say first: that is passed over."""
        while line := stream.readline():
            self.said = line.decode("utf-8", "replace").split()
            if self.said and self.said[0] in WORDS:
                break
        return self.said[:1] == [word]
