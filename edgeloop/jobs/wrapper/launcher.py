"""The front: the process that a compute started. It shows the log, hands signals on, and waits.

The wrapper on the other nodes of a job that has several.

It lays out the same code and data and runs the same command, with the variables that its compute
set for this node (RANK, MASTER_ADDR, …). The first node alone speaks for the job: this one writes
nothing to the store, neither outputs nor log nor state.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

from edgeloop._util.redact import redact
from edgeloop.errors import EdgeloopError, LocalFileError
from edgeloop.jobs.protocol.handover import Handover
from edgeloop.jobs.wrapper import processes
from edgeloop.jobs.wrapper.ending import FAILED, KILLED, Outcome
from edgeloop.jobs.wrapper.environment import Surroundings, handover
from edgeloop.jobs.wrapper.events import CANCEL, Canceled, Events
from edgeloop.jobs.wrapper.layout import Places
from edgeloop.jobs.wrapper.log import Log, Tail
from edgeloop.jobs.wrapper.repeat import Repeating
from edgeloop.jobs.wrapper.scratch import Scratch
from edgeloop.jobs.wrapper.supervisor import Keeper

_SHOW_S = 0.2
_STUCK_S = 10.0
_CHUNK = 1 << 16
_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KEEPER_KILLED = "the program that watched over the job was killed"


def main(arguments: list[str]) -> int:
    try:
        order = handover()
        if arguments[:1] == ["salvage"]:
            return _salvage(order, Path(arguments[1]), _KEEPER_KILLED)
        return _run(order)
    except EdgeloopError as error:
        _complain(str(error))
        return FAILED


def _run(order: Handover) -> int:
    _open_standard_streams()
    _check_folder(order)
    here = Surroundings.here()
    if order.nodes == 1:
        here = replace(here, rank=0)  # the variable is somebody else's
    scratch = Scratch.of(here.cache, order.job, here.rank)
    try:
        scratch.make()
    except OSError as error:
        raise LocalFileError(path=scratch.folder, reason=error.strerror) from None
    show = Show(scratch.log)
    lifeline, answer = _start_keeper(order, scratch, here)
    _hand_on_signals(lifeline)
    show.start()
    code = _answer(answer)
    if code is None and here.rank:
        code = KILLED
    elif code is None:
        _salvage(order, scratch.folder, _KEEPER_KILLED)
        code = KILLED
    show.finish()
    return code


def _start_keeper(order: Handover, scratch: Scratch, here: Surroundings) -> tuple[int, int]:
    """A grandchild, so that it is not found among the front's children. Forking is safe here: no
    thread has been started yet. Returns the lifeline to write to and the answer to read from."""
    listens, lifeline = os.pipe()
    answer, says = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.setsid()
        if os.fork() == 0:
            os.close(lifeline)
            os.close(answer)
            _become_keeper(order, scratch, here, listens, says)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(listens)
    os.close(says)
    return lifeline, answer


def _become_keeper(
    order: Handover, scratch: Scratch, here: Surroundings, lifeline: int, says: int
) -> None:
    """Never returns. Its own words go to the log; it holds none of what the front was given.

    Who ends a container asks all in it at once: the front hands that on, so the keeper itself lives
    through it. A handler, since what is ignored would be ignored by the command too.
    """
    try:
        for number in _ASKING:
            signal.signal(number, lambda *_: None)
        with Path(os.devnull).open("rb") as nothing, scratch.log.open("ab") as log:
            for source, target in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(source.fileno(), target)
        from edgeloop.jobs.wrapper.supervisor import keep

        code = (follow if here.rank else keep)(order, scratch, here, lifeline)
        os.write(says, json.dumps(code).encode())
    except Exception as error:  # noqa: BLE001 - the front must hear of it, whatever it is
        Log(scratch.log).say(f"the wrapper itself failed: {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _answer(answer: int) -> int | None:
    """The exit code, or None when the keeper ended without a word."""
    said = b""
    while True:
        select.select([answer], [], [])  # signals are handled in between
        part = os.read(answer, 64)
        if not part:
            return int(json.loads(said)) if said else None
        said += part


def _hand_on_signals(lifeline: int) -> None:
    def cancel(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(lifeline, CANCEL)

    for number in _ASKING:
        signal.signal(number, cancel)


def _salvage(order: Handover, folder: Path, reason: str) -> int:
    from edgeloop.jobs.wrapper.ending import salvage
    from edgeloop.store import open_access

    done = salvage(folder, open_access(order.access), reason, order.pace.patience_s)
    return 0 if done else FAILED


def _check_folder(order: Handover) -> None:
    """A folder that is only elsewhere would be made here, and the results with it."""
    folder = order.access.options.get("folder", "")
    if order.access.make == "LocalStore" and not Path(folder).is_dir():
        reason = "this store's folder is not on this machine: use one in the cloud, or share it"
        raise LocalFileError(path=folder, reason=reason)


def _open_standard_streams() -> None:
    """A pipe of ours must not end up as somebody's standard output."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


def _complain(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"edgeloop: {redact(sentence)}\n")


class Show:
    """A thread that passes the log to standard output: one that is stuck holds nothing else up."""

    def __init__(self, log: Path) -> None:
        self._tail = Tail(log)
        self._over = threading.Event()
        self._moved = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Wait for the rest, as long as it moves."""
        self._over.set()
        self._moved = time.monotonic()
        while self._thread.is_alive() and time.monotonic() - self._moved < _STUCK_S:
            self._thread.join(_SHOW_S)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                last = self._over.is_set()
                while content := self._tail.read(_CHUNK):
                    self._write(content)
                if last:
                    return
                self._over.wait(_SHOW_S)

    def _write(self, content: bytes) -> None:
        while content:
            content = content[os.write(1, content) :]
            self._moved = time.monotonic()


def follow(handover: Handover, scratch: Scratch, here: Surroundings, lifeline: int) -> int:
    """Run this node's part to its end; the exit code for the compute."""
    processes.adopt_orphans()
    return Follower(handover, scratch, here, Events(lifeline)).run()


class Follower(Keeper):
    def run(self) -> int:
        try:
            outcome = self._work(self._ticket(None), None)
        except Canceled:
            outcome = self._canceled(None)
        except EdgeloopError as error:
            outcome = Outcome("failed", FAILED, str(error))
        return self._finish(outcome)

    def _make_threads(self) -> dict[str, Repeating]:
        return {}

    def _say_state(self) -> None:
        pass

    def _publish(self, ticket: object, places: Places) -> Outcome:
        return Outcome("completed", 0, exit_code=0)

    def _finish(self, outcome: Outcome) -> int:
        processes.end_all(lambda: processes.descendants(os.getpid()))
        if outcome.reason:
            self._log.say(outcome.reason)
        shutil.rmtree(self._scratch.folder, ignore_errors=True)
        return outcome.code
