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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import IO

from edgeloop.platforms.snpe.adb import Adb, CallLimit, ShellResult, unpacked, words

# Turns: how the sessions of one runner share a board.
#
# One tool runs at a time. The session that began first goes first, so that sessions do not run in
# lockstep: while one is amid its runs, another gets ready. Files may travel while a tool runs, but
# never while one runs alone: a benchmark beside a push would measure the push.


class TurnRefusedError(Exception):
    """The runner is ending, or something else goes first, and this stage has not begun."""


class Turns:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = count()
        self._want_alone: set[tuple[int, int]] = set()
        self._waiting: set[tuple[int, int]] = set()
        self._reserved: set[int] = set()
        self._kept: set[int] = set()  # by `reserve`: their files may still have to travel
        self._begun: set[int] = set()
        self._checks: dict[int, Callable[[], None]] = {}
        self._refusals: dict[int, Exception] = {}
        self._closed = False
        self._holder: tuple[int, int] | None = None
        self._alone = False
        self._alone_since = 0.0
        self._travelling = 0

    @property
    def alone_s(self) -> float:
        """How long one session has had the board alone; 0: none has."""
        return time.monotonic() - self._alone_since if self._alone else 0.0

    def rank(self) -> int:
        """A place in the queue, for all runs of a stage."""
        return next(self._numbers)

    def check_first(self, rank: int, check: Callable[[], None] | None) -> None:
        """Call this before the first turn of this place; what it raises refuses all its turns."""
        with self._changed:
            self._refusals.pop(rank, None)
            if check is None:
                self._checks.pop(rank, None)
            else:
                self._checks[rank] = check

    def refusal(self, rank: int) -> Exception | None:
        """Why the check refused this place its turn, if it did."""
        return self._refusals.get(rank)

    def reserve(self, rank: int) -> None:
        """No later place gets a turn before this one had its own, or until `forget`."""
        with self._changed:
            self._begun.discard(rank)
            self._reserved.add(rank)
            self._kept.add(rank)
            self._changed.notify_all()

    def forget(self, rank: int) -> None:
        """The stage of this place is over."""
        with self._changed:
            self._checks.pop(rank, None)
            self._refusals.pop(rank, None)
            self._begun.discard(rank)
            self._reserved.discard(rank)
            self._kept.discard(rank)
            self._changed.notify_all()

    def close(self) -> None:
        """Stages that had a turn may go on; those that had none are refused theirs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @contextmanager
    def tool(self, rank: int, alone: bool = False) -> Iterator[None]:
        """This session may run a tool; with `alone`, nothing travels meanwhile."""
        ticket = (rank, next(self._numbers))
        with self._changed:
            self._waiting.add(ticket)
            if alone:
                self._want_alone.add(ticket)
            try:
                self._changed.wait_for(lambda: self._is_next(ticket) or self._is_refused(rank))
                if self._is_refused(rank):
                    raise TurnRefusedError
                self._holder = ticket
                self._waiting.discard(ticket)
                if rank not in self._begun:
                    self._check(rank)
                    self._begun.add(rank)
                    self._reserved.discard(rank)
                    self._kept.discard(rank)
                if alone:
                    self._alone, self._alone_since = True, time.monotonic()
                    self._changed.wait_for(lambda: not self._travelling)
            except BaseException:
                self._leave(ticket)
                raise
        try:
            yield
        finally:
            with self._changed:
                self._leave(ticket)

    @contextmanager
    def kept_for(self, rank: int) -> Iterator[None]:
        """No later place in the queue gets a turn meanwhile, though no tool runs."""
        with self._changed:
            self._reserved.add(rank)
        try:
            yield
        finally:
            with self._changed:
                self._reserved.discard(rank)
                self._changed.notify_all()

    @contextmanager
    def travel(self) -> Iterator[None]:
        """Bytes may go to the board or come from it. Benchmarks that are ready go first."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not self._alone_next())
            self._travelling += 1
        try:
            yield
        finally:
            with self._changed:
                self._travelling -= 1
                self._changed.notify_all()

    def _is_next(self, ticket: tuple[int, int]) -> bool:
        if self._holder is not None or ticket != min(self._waiting):
            return False
        return ticket[0] <= min(self._reserved, default=ticket[0])

    def _check(self, rank: int) -> None:
        """It may take a while, and others may get ready meanwhile; none of them gets a turn."""
        check = self._checks.pop(rank, None)
        if check is None:
            return
        self._changed.release()
        try:
            check()
        except Exception as error:
            self._refusals[rank] = error
            raise TurnRefusedError from error
        finally:
            self._changed.acquire()

    def _is_refused(self, rank: int) -> bool:
        return rank in self._refusals or (self._closed and rank not in self._begun)

    def _alone_next(self) -> bool:
        """A benchmark that is ready and may begin: one behind a place that is kept may not."""
        if self._holder is not None or not self._waiting:
            return False
        first = min(self._waiting)
        return first in self._want_alone and first[0] <= min(self._kept, default=first[0])

    def _leave(self, ticket: tuple[int, int]) -> None:
        self._waiting.discard(ticket)
        self._want_alone.discard(ticket)
        if self._holder == ticket:
            self._holder, self._alone = None, False
        self._changed.notify_all()


# The conditions a board was in: temperatures, clocks, battery. Read by a script on the board right
# before and after a measurement, and kept with it.
#
# The clocks are held still where the board lets us (root): what they were is written down on the
# board before it is changed, so that the next session can put it back if this one dies in between.


HOTTEST_SENSIBLE_MC = 150_000
_GOVERNORS = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"

# Only what the shell does itself: a fork for each of eighty thermal zones would warm the board.
LOOK = f"""
look() {{
  top=0
  for zone in /sys/class/thermal/thermal_zone*; do
    name=; value=
    read -r name < "$zone/type"; read -r value < "$zone/temp"
    case "$value" in ''|*[!0-9]*) continue;; esac
    [ "$value" -lt 1000 ] && value=$((value * 1000))
    [ "$value" -gt {HOTTEST_SENSIBLE_MC} ] && continue
    echo "zone $value ${{zone##*thermal_zone}} $name"
    [ "$value" -gt "$top" ] && top=$value
  done 2>/dev/null
  for clock in /sys/devices/system/cpu/cpu[0-9]*/cpufreq; do
    governor=; khz=
    read -r governor < "$clock/scaling_governor"; read -r khz < "$clock/scaling_cur_freq"
    cpu=${{clock%/cpufreq}}
    [ -n "$governor$khz" ] && echo "cpu ${{cpu##*/}} $governor $khz"
  done 2>/dev/null
  for part in capacity status temp; do
    value=
    read -r value < "/sys/class/power_supply/battery/$part"
    [ -n "$value" ] && echo "battery $part $value"
  done 2>/dev/null
  read -r up rest < /proc/uptime; echo "uptime $up"
}}
"""

# Beside the tool of a measurement, a few times a second: the most memory of its process so far, and
# the power, where the board reports it. `wait` gives the tool's own exit code.
WATCH = """tool=$!
while kill -0 $tool 2>/dev/null; do
  child=; read -r child rest < /proc/$tool/task/$tool/children
  [ -n "$child" ] && while read -r name value rest; do
    [ "$name" = VmHWM: ] && echo "rss $value"
  done < "/proc/$child/status"
  for file in /sys/class/hwmon/hwmon*/power*_input; do
    value=; read -r value < "$file" && echo "uw ${file} $value"
  done
  for supply in /sys/class/power_supply/*; do
    value=; volts=; state=Online
    [ -f "$supply/status" ] && read -r state < "$supply/status"
    read -r value < "$supply/current_now" && read -r volts < "$supply/voltage_now"
    echo "ua ${supply##*/} ${value:-0} ${volts:-0} $state"
  done
  sleep 0.2 || sleep 1
done > power 2>/dev/null
wait $tool"""


def pin(root: str) -> str:
    """Shell text: the fastest clocks, where the number in `user` may set them."""
    note = words(f"{root}/clocks")
    return f"""
if [ "$user" = 0 ] && [ ! -e {note} ]; then
  for file in {_GOVERNORS}; do
    old=; read -r old < "$file" && [ -n "$old" ] && echo "$old $file"
  done 2>/dev/null > {note}.new
  if [ -s {note}.new ] && mv -f {note}.new {note}; then
    while read -r old file; do echo performance > "$file"; done < {note} 2>/dev/null
  else rm -f {note}.new; fi
fi
"""


def restore(root: str) -> str:
    """Shell text: the clocks as they were before `pin`; nothing but clocks is ever written to."""
    note = words(f"{root}/clocks")
    return f"""
if [ -e {note} ]; then
  while read -r old file; do
    case "$file" in
      *..*) ;;
      /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor) echo "$old" > "$file";;
    esac
  done < {note} 2>/dev/null
  rm -f {note}
fi
"""


def conditions(before: str, after: str) -> dict[str, str | float]:
    """Both looks as one flat record, in units of people."""
    record: dict[str, str | float] = {}
    for when, text in (("before", before), ("after", after)):
        for line in text.splitlines():
            kind, _, rest = line.partition(" ")
            parts = rest.split(" ", 2)
            if kind == "zone" and len(parts) >= 2:
                name = " ".join(parts[1:])
                record[f"zone {name} {when} °C"] = _number(parts[0]) / 1000
            elif kind == "cpu" and len(parts) == 3:
                record[f"{parts[0]} governor {when}"] = parts[1]
                record[f"{parts[0]} {when} kHz"] = _number(parts[2])
            elif kind == "battery" and len(parts) >= 2:
                record[f"battery {parts[0]} {when}"] = " ".join(parts[1:])
            elif kind == "uptime":
                record[f"uptime {when} s"] = _number(rest)
        record[f"hottest {when} °C"] = hottest_c(text)
    return record


def peak_rss_bytes(text: str) -> int | None:
    """From what `WATCH` wrote; None where it saw no process."""
    sizes = [_number(line.split(" ")[1]) for line in text.splitlines() if line.startswith("rss ")]
    return int(1024 * max(sizes)) if sizes and max(sizes) > 0 else None


def power_mw(text: str) -> float | None:
    """The mean over the run of the sum of all sensors that say power (hwmon), else of the supplies
    that say current and voltage. None where the board reports neither, or charges a battery:
    the two cannot be told apart then."""
    sums: dict[str, dict[str, list[float]]] = {"uw": {}, "ua": {}}
    is_charging = False
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        parts = rest.split(" ", 3)
        if kind == "uw" and len(parts) == 2:
            sums[kind].setdefault(parts[0], []).append(_number(parts[1]) / 1e3)
        elif kind == "ua" and len(parts) == 4:  # some say what leaves a battery as negative
            is_charging = is_charging or parts[3] == "Charging"
            milliwatts = abs(_number(parts[1])) * _number(parts[2]) / 1e9
            sums[kind].setdefault(parts[0], []).append(milliwatts)
    if is_charging:
        sums["ua"] = {}
    for sensors in sums.values():
        total = sum(sum(values) / len(values) for values in sensors.values())
        if total > 0:
            return total
    return None


def hottest_c(text: str) -> float:
    zones = [line.split(" ", 2)[1] for line in text.splitlines() if line.startswith("zone ")]
    return max((_number(value) / 1000 for value in zones), default=0.0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


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
