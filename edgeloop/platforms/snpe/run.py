"""The script of one run of a tool on a board: a single call does all that belongs together.

It gets ready first and then waits for a word, so that no time is lost between two tools; a second
word lets it send its outputs, since nothing may travel beside a benchmark. A measurement has none,
and sends what little it has at once.

    host → list of inputs, `.`      board → `ready`, or `files`: some of them are gone
    host → `go`                     board → `tool CODE BEGAN ENDED`, or `lease`, or `hot`
    host → `go` (for outputs)       board → `disk …`, a tar stream, then the folder is gone

On the host's side a run waits for its turn while the board is ready already, and lets the next one
begin as soon as the tool has ended, while its results are still on their way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO

from edgeloop.platforms.snpe.adb import Adb, CallLimit, ShellResult, unpacked, words
from edgeloop.platforms.snpe.conditions import LOOK, WATCH, pin, restore
from edgeloop.platforms.snpe.turns import TurnRefusedError, Turns

WORDS = ("ready", "tool", "files", "lease", "hot", "full", "stopped")  # what the board can say
LAYERS_S = 60.0
_LAYERS_INPUTS = 3
_KILL_AFTER_S = 5
_WORD = 'read -r word && [ "$word" = go ] || answer stopped'


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
        self, adb: Adb, turns: Turns, order: ToolOrder, rank: int, call_s: float, transfer_s: float
    ) -> None:
        self._adb = adb
        self._turns = turns
        self._order = order
        self._rank = rank
        self._limit = CallLimit(call_s)
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

    def hold(self, script: str, inputs: Sequence[str]) -> tuple[ShellResult, dict[str, bytes]]:
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
        except TurnRefusedError:  # without a word the board says `stopped`, and cleans up
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


@dataclass(frozen=True)
class ToolOrder:
    """What to run, and where. `hot_c` makes it a measurement, refused when the board is hotter:
    then conditions and profile come back in place of outputs."""

    root: str
    folder: str
    container: str
    arguments: tuple[str, ...]
    limit_s: float
    squeeze: bool = False
    hot_c: float | None = None

    @property
    def layers_s(self) -> float:
        return min(LAYERS_S, self.limit_s) if self.hot_c is not None else 0.0


def tool_script(order: ToolOrder, environment: Mapping[str, str], guard: str) -> str:
    """`guard` is shell text that calls `answer lease` where the board is no longer ours."""
    exports = "\n".join(
        f"export {name}={words(value)}{':$PATH' if name == 'PATH' else ''}"
        for name, value in environment.items()
    )
    folder, container = words(order.folder), words(order.container)
    tool = _tool(order, order.limit_s, "list.txt", "out", order.arguments)
    before, after, results = (
        "",
        "",
        f"""{_WORD}
[ "$code" = 0 ] && set -- "$@" out""",
    )
    watched = ""
    if order.hot_c is not None:
        watched = f"& {WATCH}"
        limit_mc = int(1000 * order.hot_c)
        before = f"""look > before; [ "$top" -gt {limit_mc} ] && answer hot "$top"
{pin(order.root)}"""
        after = f"look > after\n{_layers(order, exports)}\n{restore(order.root)}"
        results = """for file in before after power out/SNPEDiag*.log layers/SNPEDiag*.log; do
  [ -f "$file" ] && set -- "$@" "$file"
done"""
    return f"""
answer() {{ echo "$*"; cd /; rm -rf {folder}; exit 0; }}
sorry() {{ answer "full $(df -k {words(order.root)} | tail -n 1)"; }}
{LOOK}
mkdir -p {folder} && cd {folder} || sorry
gone=; [ -f {container} ] || gone=yes
while read -r line; do
  [ "$line" = . ] && break
  for word in $line; do [ -f "${{word#*:=}}" ] || gone=yes; done
  echo "$line"
done > list.txt || sorry
[ -z "$gone" ] || answer files
touch -c {container}; sed 's/[^ ]*:=//g' list.txt | xargs touch -c
user=$(id -u)
echo ready
{_WORD}
{guard}
{before}
read -r began rest < /proc/uptime
({exports}
exec {tool}) > tool.log 2>&1 < /dev/null {watched}
code=$?
read -r ended rest < /proc/uptime
{after}
echo "tool $code $began $ended"
set -- tool.txt
{results}
echo "disk $(df -k . | tail -n 1)"
tail -c 8000 tool.log > tool.txt
tar cf - "$@" {"| gzip -1" if order.squeeze else ""}
cd / && rm -rf {folder}
exit 0"""


def _layers(order: ToolOrder, exports: str) -> str:
    """Times of the layers come from a short run of their own, since taking them slows the board
    down; that it fails is no reason to lose the measurement."""
    arguments = (*(word for word in order.arguments if word != "basic"), "detailed")
    return f"""
head -n {_LAYERS_INPUTS} list.txt > few.txt
[ $code = 0 ] && ({exports}
exec {_tool(order, order.layers_s, "few.txt", "layers", arguments)}) > /dev/null 2>&1 < /dev/null
read -r ended rest < /proc/uptime"""


def _tool(
    order: ToolOrder, limit_s: float, inputs: str, output: str, arguments: tuple[str, ...]
) -> str:
    limit = ("timeout", "-k", str(_KILL_AFTER_S), f"{limit_s:g}")
    files = ("--container", order.container, "--input_list", inputs, "--output_dir", output)
    return words(*limit, "snpe-net-run", *files, *arguments)
