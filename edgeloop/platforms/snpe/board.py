"""Boards over adb: the files on them, the lease that guards them, and the runs."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from edgeloop._util.system import user_name
from edgeloop.errors import DeviceBusy, DeviceUnavailable, ModelFailed
from edgeloop.platforms.base import DeviceLeftover
from edgeloop.platforms.snpe import BoardOptions
from edgeloop.platforms.snpe.adb import Adb, words
from edgeloop.platforms.snpe.dlc import input_word
from edgeloop.platforms.snpe.files import RESERVE_BYTES, BoardFiles, InputFile, model_name
from edgeloop.platforms.snpe.run import (
    LOOK,
    Conversation,
    ToolOrder,
    ToolRun,
    Turns,
    hottest_c,
    restore,
    tool_script,
)
from edgeloop.platforms.snpe.sdk import Sdk

# One board and everything that happens on it: who holds it, what lies on it, which tool runs.
#
# `open` makes it ours: it answers, its lease is taken, what an earlier run left is cleared away,
# the SDK is there. Whatever breaks the connection later closes it again, so that the next use
# starts from the beginning. A run of a tool is one call: check the lease, run under the board's own
# time limit, say how it went; results follow in a second one, while the next tool runs already.


ROOT = "/data/local/tmp/edgeloop"
_NOT_STARTED = (126, 127)  # what shells and `timeout` say of a program that they cannot run
_LOOK_S = 2.0
_NOT_LINKED = "CANNOT LINK EXECUTABLE"


class Board:
    def __init__(self, adb: Adb, sdk: Sdk, options: BoardOptions) -> None:
        self.adb = adb
        self.sdk = sdk
        self.options = options
        self.turns = Turns()
        self.files = BoardFiles(adb, ROOT, sdk, self.turns, options)
        self._lease = BoardLease(adb, ROOT, options.lease_s)
        self._opening = threading.Lock()
        self._is_open = False
        self._held = False
        self._runs: set[str] = set()
        self.closing = threading.Event()
        self._beat: threading.Thread | None = None
        self._cooling_until = 0.0
        self.celsius: float | None = None  # as last reported: it is never asked for alone

    def open(self) -> None:
        """Ours and ready; raises DeviceBusy where another runner has it. Does nothing twice."""
        with self._opening:
            if self._is_open:
                return
            self.adb.probe()
            answer = self.adb.shell(words("mkdir", "-p", *(f"{ROOT}/{f}" for f in _FOLDERS)))
            if answer.code:
                raise self.adb.unavailable(f"{ROOT} cannot be made there: {answer.last_line}")
            self._lease.take()
            self._held = True
            self._clear_leftovers()
            self.files.look()
            self._is_open = True
            if self._beat is None:
                self._beat = threading.Thread(target=self._keep, name="board-lease", daemon=True)
                self._beat.start()

    def close(self) -> None:
        """Calls under way end, tools of ours on the board too, and the lease is given back. This is
        the end of a runner, which has no time for a board that hangs: its lease will expire."""
        self.closing.set()
        self.adb.close()
        if self._held:
            self.adb.reopen()
            self._runs.clear()
            with contextlib.suppress(DeviceUnavailable):
                self._clear_leftovers(self.options.probe_s)
                self._lease.release(self.options.probe_s)
            self.adb.close()
        self._held = self._is_open = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Trouble with the board means that it must be reopened."""
        try:
            self.open()
            yield
        except DeviceUnavailable:
            self._is_open = False
            raise

    @contextlib.contextmanager
    def placed(
        self, model: Path, runs: Sequence[Mapping[str, InputFile]]
    ) -> Iterator[tuple[str, list[str]]]:
        """The model and its inputs are on the board and stay meanwhile: the model's path there, and
        a line of an input list for each run."""
        name = model_name(model)
        named = [[(key, file.name, file) for key, file in run.items()] for run in runs]
        inputs = {place: file for run in named for _, place, file in run}
        with self.files.using([name, *inputs]):
            self.files.push(model, name, inputs)
            yield self.files.path(name), [self._line(run) for run in named]

    def _line(self, run: Sequence[tuple[str, str, InputFile]]) -> str:
        words = (input_word(key, self.files.path(place), len(run)) for key, place, _ in run)
        return " ".join(words)

    @property
    def is_cooling(self) -> bool:
        """Whether a benchmark waits until the board is cooler."""
        return time.monotonic() < self._cooling_until

    def note_cooling(self, seconds: float) -> None:
        """A benchmark looks again in so many seconds; the look itself takes a moment."""
        self._cooling_until = time.monotonic() + seconds + _LOOK_S

    @contextlib.contextmanager
    def _run_folder(self) -> Iterator[str]:
        """A folder on the board for one run; what is left of it goes when the board is opened."""
        token = secrets.token_hex(8)
        self._runs.add(token)
        try:
            yield f"{ROOT}/run/{token}"
        finally:
            self._runs.discard(token)

    def run(
        self,
        rank: int,
        container: str,
        arguments: Sequence[str],
        inputs: Sequence[str],
        hot_c: float | None = None,
    ) -> ToolRun | None:
        """Run the SDK's tool on a model; None: the board is hotter than `hot_c`, nothing was run.

        `hot_c` also says that this is a measurement: conditions are taken, clocks are pinned, and
        nothing else happens on the board meanwhile.
        """
        options = self.options
        squeeze = self.files.squeezes and hot_c is None
        with self._run_folder() as folder:
            order = ToolOrder(
                root=ROOT,
                folder=folder,
                container=container,
                arguments=tuple(arguments),
                limit_s=options.tool_s,
                squeeze=squeeze,
                hot_c=hot_c,
            )
            guard = self._lease.guard("answer lease")
            if hot_c is not None:  # the heartbeat leaves a benchmark alone
                guard += f"\n{self._lease.extension(options.tool_s + options.lease_s)}"
            environment = self.sdk.board_environment(self.files.sdk_home)
            talk = Conversation(
                self.adb, self.turns, order, rank, options.grace_s, options.transfer_s
            )
            answer, files = talk.hold(tool_script(order, environment, guard), inputs)
        match talk.said:
            case ["tool", code, began, ended]:
                run = ToolRun(float(ended) - float(began), talk.ended, files)
                self._judge(int(code), run, _free_bytes(talk.disk))
                if hot_c is not None:
                    self._hear(run.text("after"))
                return run
            case ["hot", *heat]:
                self._hear(f"zone {' '.join(heat)}")
                return None
            case ["stopped", *_]:
                raise self.turns.refusal(rank) or self.adb.unavailable("this runner is stopping")
            case ["lease", *_]:
                raise self._lease.lost()
            case ["files", *_]:
                self.files.forget()
                raise self.adb.unavailable("files that were pushed to it are gone")
            case ["full", *free] if _is_full(_free_bytes(free)):
                raise self.files.full()
        raise self.adb.unavailable(f"a run could not be started there: {answer.last_line}")

    def _judge(self, code: int, run: ToolRun, free: int | None) -> None:
        """Whose fault it was: a full disk and a tool that cannot start are the board's, the rest
        the model's. Which code `timeout` gives differs between boards, so time tells."""
        if _is_full(free):
            raise self.files.full()
        if not code:
            return
        where = f"snpe-net-run on adb:{self.adb.serial}"
        if run.seconds >= self.options.tool_s - 0.1:
            raise ModelFailed(reason=f"{where} did not end within {self.options.tool_s:g} s")
        lines = [line.strip() for line in run.text("tool.txt").splitlines() if line.strip()]
        said = lines[-1] if lines else f"exit code {code}"
        broken = [line for line in lines if _NOT_LINKED in line]
        if code in _NOT_STARTED or broken:
            self.files.is_sdk_suspect = True
            raise self.adb.unavailable(f"snpe-net-run cannot start there: {(broken or [said])[0]}")
        raise ModelFailed(reason=f"{where} failed: {said}")

    def _clear_leftovers(self, limit_s: float | None = None) -> None:
        """Tools that outlived their client still work on the board, and folders of runs that were
        cut off lie there; both belonged to the holder of the lease before, and are orphaned."""
        ours = "|".join(["'*'", *sorted(self._runs)])
        marker = words(f"{ROOT}/run/")
        self.adb.shell(
            f"""
{restore(ROOT)}
cd {words(f"{ROOT}/run")} || exit 0
for old in *; do
  case "$old" in {ours}) continue;; esac
  ls -ld /proc/[0-9]*/cwd 2>/dev/null | grep -F -- " -> "{marker}"$old" |
    sed -n 's#.*/proc/\\([0-9]*\\)/cwd.*#\\1#p' | while read -r number; do kill -9 "$number"; done
  rm -rf "./$old"
done 2>/dev/null
exit 0""",
            limit_s,
        )

    def _keep(self) -> None:
        """The lease lives as long as this process, busy or not; and this is how a board that hangs
        is noticed long before a tool's time is over. A benchmark is left alone, its own call has
        pushed the expiry out; but not for ever."""
        period_s = self.options.lease_s / 3
        while not self.closing.wait(period_s):
            if not self._is_open or 0 < self.turns.alone_s < 3 * period_s:
                continue
            try:
                self._renew()
            except DeviceUnavailable:  # hung, gone, or leased by another: no call will end well
                self._is_open = False
                self.adb.interrupt()

    def _renew(self) -> None:
        """The temperature comes along: a call of its own would warm the board."""
        self._hear(self._lease.renew(f"{LOOK}\nlook"))

    def _hear(self, look: str) -> None:
        self.celsius = hottest_c(look) or self.celsius


def _is_full(free: int | None) -> bool:
    return free is not None and free < RESERVE_BYTES // 4


_FOLDERS = ("sdk", "data", "models", "run")


def _free_bytes(words_of_df: Sequence[str]) -> int | None:
    numbers = [int(word) for word in words_of_df if word.isdecimal()]
    return 1024 * numbers[2] if len(numbers) >= 3 else None


# One runner per board: a lease on the board itself, so that every machine that reaches it sees it.
#
# Making a folder is atomic there, so the session that makes it has the board. Its expiry is counted
# by the board's own clock since it started: no clock of a host is trusted, and a board that was
# restarted is free. An owner that died on this machine is recognised at once; any other silent one
# when its time is over. Every run of a tool checks the token first.


LONGEST_S = 6 * 3600.0  # an expiry beyond this was written before the board was restarted
_TRIES = 4
_FIELDS = ("token", "owner", "machine", "pid", "boot", "expires")
_CLOCK = """
up=$(cut -d. -f1 /proc/uptime)
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
"""


class BoardLease:
    def __init__(self, adb: Adb, root: str, lease_s: float = 60.0) -> None:
        self._adb = adb
        self._folder = f"{root}/lease"
        self._lease_s = lease_s
        self.token = secrets.token_hex(8)

    def take(self) -> None:
        """Ours afterwards, or DeviceBusy with who has it and for how long at most."""
        for _ in range(_TRIES):
            held = self._try()
            if held is None:
                return
            if held["token"] == self.token:
                self.renew()
                return
            if held["token"]:
                self._refuse_live(held)
            else:
                time.sleep(0.5)  # made this moment, or its maker died in it
                held = self._try()
                if held is None:
                    return
                if held["token"]:
                    continue
            self._clear(held["token"])
        raise self._adb.unavailable("its lease keeps changing owners; check who else uses it")

    def check_free(self) -> None:
        """Raises DeviceBusy where another one holds the board; changes nothing there."""
        answer = self._adb.shell("\n".join((_CLOCK, *self._reads())))
        held = _fields(answer.text)
        if held["token"] and held["token"] != self.token:
            self._refuse_live(held)

    def _refuse_live(self, held: dict[str, str]) -> None:
        left_s = _number(held["expires"]) - _number(held["up"])
        is_old = held["boot"] != held["now"] or left_s <= 0 or left_s > LONGEST_S
        if not is_old and not _died_here(held["machine"], held["pid"]):
            owner = held["owner"] or "another runner"
            raise DeviceBusy(device=f"adb:{self._adb.serial}", owner=owner, seconds=left_s)

    def renew(self, also: str = "") -> str:
        """`also` is shell text for the same call; what that printed."""
        script = f"{self.guard('exit 9')}\n{self.extension(self._lease_s)}\n{also}"
        answer = self._adb.shell(script)
        if answer.code == 9:
            raise self.lost()
        return answer.text

    def release(self, limit_s: float | None = None) -> None:
        """If it is still ours; a board that is gone frees itself."""
        away = f"{self._folder}.{self.token}"
        script = f"{self.guard('exit 0')}\n{words('mv', self._folder, away)} && "
        with contextlib.suppress(DeviceUnavailable):
            self._adb.shell(script + words("rm", "-rf", away), limit_s)

    def guard(self, otherwise: str) -> str:
        """Shell text that does `otherwise` where the lease is not ours. No program is started for
        it, since it stands between two tools."""
        file = words(f"{self._folder}/token")
        read = f"holder=; [ -f {file} ] && read -r holder < {file}"
        return f'{read}\n[ "$holder" = {words(self.token)} ] || {{ {otherwise}; }}'

    def extension(self, seconds: float) -> str:
        """Shell text that pushes the expiry out."""
        file, fresh = f"{self._folder}/expires", f"{self._folder}/expires.new"
        count = f"$(( ${{up%%.*}} + {int(seconds) + 1} ))"
        write = f'echo "{count}" > {words(fresh)} && {words("mv", "-f", fresh, file)}'
        return f"read -r up rest < /proc/uptime; {write}"

    def lost(self) -> DeviceUnavailable:
        return self._adb.unavailable("another runner took the board over while this one was silent")

    def _try(self) -> dict[str, str] | None:
        """None when the lease was free and is ours now, else what it says."""
        said = {
            "owner": f"{user_name()}@{socket.gethostname()} (process {os.getpid()})",
            "machine": _machine(),
            "pid": str(os.getpid()),
        }
        writes = [
            f"printf %s {words(value)} > {words(f'{self._folder}/{name}')}"
            for name, value in said.items()
        ]
        token = f"echo {words(self.token)} > {words(f'{self._folder}/token')}"
        boot = f'printf %s "$boot" > {words(f"{self._folder}/boot")}'
        script = "\n".join(
            (
                _CLOCK,
                f"if {words('mkdir', self._folder)} 2>/dev/null; then",
                " && ".join((*writes, boot, self.extension(self._lease_s), token)),
                f"[ $? = 0 ] || {{ {words('rm', '-rf', self._folder)}; exit 1; }}",
                "echo taken; else",
                *self._reads(),
                "fi",
            )
        )
        answer = self._adb.shell(script)
        if answer.code:
            raise self._adb.unavailable(f"no lease could be written to it: {answer.last_line}")
        if answer.text.startswith("taken"):
            return None
        return _fields(answer.text)

    def _reads(self) -> list[str]:
        """Shell text that says what the lease says, and the time of the board."""
        return [
            'echo "up=$up"; echo "now=$boot"',
            *(
                f'echo "{name}=$(cat {words(f"{self._folder}/{name}")} 2>/dev/null)"'
                for name in _FIELDS
            ),
        ]

    def _clear(self, judged: str) -> None:
        """Moved away first, so that of two who judge it dead one alone clears it; what turns out
        to be a fresh one goes back."""
        away = f"{self._folder}.{self.token}"
        script = f"""
{words("rm", "-rf", away)}
{words("mv", self._folder, away)} 2>/dev/null || exit 0
if [ "$({words("cat", f"{away}/token")} 2>/dev/null)" = {words(judged)} ]
then {words("rm", "-rf", away)}
else [ -e {words(self._folder)} ] || {words("mv", away, self._folder)}
fi"""
        self._adb.shell(script)


def _fields(text: str) -> dict[str, str]:
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    return {name: values.get(name, "").strip() for name in ("up", "now", *_FIELDS)}


def _machine() -> str:
    """This machine since it started, and the processes that one can see from here."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    identity = boot.read_text().strip() if boot.exists() else socket.gethostname()
    with contextlib.suppress(OSError):
        identity += f" {Path('/proc/self/ns/pid').readlink()}"
    return identity


def _died_here(machine: str, pid: str) -> bool:
    if machine != _machine() or not pid.isdecimal() or not Path("/proc/self").exists():
        return False
    return not Path(f"/proc/{pid}").exists()


def _number(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0


# Orphaned files on a board: programs of SDKs, inputs and models that were not used for long.
#
# All times are the board's own: no clock of a host is trusted. Nothing goes from a board that a
# runner holds; it is held while something goes.


_SDK = re.compile(r"sdk/[0-9a-f]{8,128}(\.tmp)?")
_FILE = re.compile(r"(data|models)/[0-9a-f]{8,128}\.(raw|dlc)(\.tmp)?")
_KILOBYTE = 1024


class BoardLeftovers:
    """`kept_sdk` is the digest of the SDK that runners of this machine use; empty: none."""

    def __init__(self, adb: Adb, root: str, kept_sdk: str, older_s: float, lease_s: float) -> None:
        self._adb = adb
        self._root = root
        self._kept = f"sdk/{kept_sdk}"
        self._older_s = older_s
        self._lease = BoardLease(adb, root, lease_s)

    def find(self) -> list[DeviceLeftover]:
        """Raises DeviceBusy where a runner holds the board."""
        self._adb.probe()
        self._lease.check_free()
        leftovers = []
        for kind, why, pattern in (
            ("SDKs", "that no runner has used lately", _SDK),
            ("inputs and models", "that no runner has used lately", _FILE),
        ):
            old = self._old(pattern)
            names, sizes = [name for name, _ in old], [size for _, size in old]
            leftovers.append(
                DeviceLeftover(
                    f"adb:{self._adb.serial}", kind, names, sizes, why, self._remover(pattern)
                )
            )
        return [leftover for leftover in leftovers if leftover.names]

    def _remover(self, pattern: re.Pattern[str]) -> Callable[[], int]:
        def remove() -> int:
            self._lease.take()
            try:
                names = [name for name, _ in self._old(pattern)]
                for start in range(0, len(names), 500):
                    part = "\n".join(names[start : start + 500])
                    script = f"cd {words(self._root)} && xargs rm -rf"
                    answer = self._adb.shell(script, send=[part.encode()])
                    if answer.code:
                        reason = f"files cannot be removed there: {answer.last_line}"
                        raise self._adb.unavailable(reason)
                return len(names)
            finally:
                self._lease.release()

        return remove

    def _old(self, pattern: re.Pattern[str]) -> Sequence[tuple[str, int]]:
        """Names below the root and bytes, of what is not kept."""
        answer = self._adb.shell(f"""
[ -d {words(self._root)} ] || exit 0
cd {words(self._root)} || exit 1
echo "now $(date +%s)"
for folder in sdk/*; do
  [ -d "$folder" ] || continue
  echo "$(stat -c %Y "$folder") $(( $(du -sk "$folder" | cut -f1) * {_KILOBYTE} )) $folder"
done
for folder in data models; do
  [ -d "$folder" ] && find "$folder" -type f -exec stat -c '%Y %s %n' {{}} +
done
true""")
        if answer.code:
            raise self._adb.unavailable(f"its files cannot be listed: {answer.last_line}")
        now, listed = 0, []
        for line in answer.text.splitlines():
            parts = line.strip().split(" ", 2)
            if parts[0] == "now" and len(parts) == 2 and parts[1].isdecimal():
                now = int(parts[1])
            elif len(parts) == 3 and parts[0].isdecimal() and parts[1].isdecimal():
                listed.append((int(parts[0]), int(parts[1]), parts[2]))
        return [
            (name, size)
            for used, size, name in sorted(listed)
            if pattern.fullmatch(name) and used < now - self._older_s and name != self._kept
        ]
