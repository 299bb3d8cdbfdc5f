"""One board and everything that happens on it: who holds it, what lies on it, which tool runs.

`open` makes it ours: it answers, its lease is taken, what an earlier run left is cleared away, the
SDK is there. Whatever breaks the connection later closes it again, so that the next use starts
from the beginning. A run of a tool is one call: check the lease, run under the board's own time
limit, say how it went; results follow in a second one, while the next tool runs already.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from edgeloop.errors import DeviceUnavailable, ModelFailed
from edgeloop.platforms.snpe.board.adb import Adb, words
from edgeloop.platforms.snpe.board.conditions import LOOK, hottest_c, restore
from edgeloop.platforms.snpe.board.files import RESERVE_BYTES, BoardFiles, InputFile, model_name
from edgeloop.platforms.snpe.board.lease import BoardLease
from edgeloop.platforms.snpe.board.run import Conversation, ToolOrder, ToolRun, tool_script
from edgeloop.platforms.snpe.board.turns import Turns
from edgeloop.platforms.snpe.options import BoardOptions
from edgeloop.platforms.snpe.sdk import Sdk
from edgeloop.platforms.snpe.tensors import input_word

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
        self.files = BoardFiles(
            adb, ROOT, sdk, self.turns, options.cap_bytes, options.transfer_s, options.squeeze
        )
        self._lease = BoardLease(adb, ROOT, options.lease_s)
        self._opening = threading.Lock()
        self._is_open = False
        self._held = False
        self._runs: set[str] = set()
        self.closing = threading.Event()
        self._beat: threading.Thread | None = None
        self._cooling_until = 0.0
        self.celsius: float | None = None  # as last heard: nobody asks for it alone

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
        """Calls under way end, tools of ours on the board too, and the lease is given back."""
        self.closing.set()
        self.adb.close()
        if self._held:
            self.adb.reopen()
            self._runs.clear()
            with contextlib.suppress(DeviceUnavailable):
                self._clear_leftovers()
            self._lease.release()
            self.adb.close()
        self._held = self._is_open = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Trouble with the board means that it must be opened anew."""
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
                ROOT, folder, container, tuple(arguments), options.tool_s, squeeze, hot_c
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

    def _clear_leftovers(self) -> None:
        """Tools that outlived their client still work on the board, and folders of runs that were
        cut off lie there; both belong to whoever had the lease before, so to nobody."""
        known = "|".join(["'*'", *sorted(self._runs)])
        marker = words(f"{ROOT}/run/")
        self.adb.shell(f"""
{restore(ROOT)}
cd {words(f"{ROOT}/run")} || exit 0
for old in *; do
  case "$old" in {known}) continue;; esac
  ls -ld /proc/[0-9]*/cwd 2>/dev/null | grep -F -- " -> "{marker}"$old" |
    sed -n 's#.*/proc/\\([0-9]*\\)/cwd.*#\\1#p' | while read -r number; do kill -9 "$number"; done
  rm -rf "./$old"
done 2>/dev/null
exit 0""")

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
            except DeviceUnavailable:  # hung, gone, or somebody else's: no call will end well
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
