"""`python -m edgeloop.operate.fleet.keeper FOLDER`: keeps one runner of a local fleet alive.

It starts the runner again when it dies, and the kernel kills the runner if the keeper dies. The
supervisor may come and go: the keeper holds the lock `alive` in its folder for as long as it lives,
and is told to end by a file there. Without any supervisor for `ORPHAN_S` it ends by itself, so that
nothing is left running unattended on a machine.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from edgeloop._util.files import is_locked, write_atomic
from edgeloop._util.system import ENDING_SIGNALS
from edgeloop.operate.fleet.launcher import RunnerOrder, RunnerProcess
from edgeloop.settings import whole_environment

ORDER, STATE, ALIVE = "order.json", "state.json", "alive"
DRAIN, KILL = "drain", "kill"
SUPERVISOR_LOCK = "supervisor.lock"
POLL_S = 0.2
LOOK_S = 2.0  # between two looks for the supervisor
ORPHAN_S = 120.0


def main(folder: Path, log: Path, orphan_s: float) -> None:
    Keeper(folder, log, orphan_s).run()


class Keeper:
    """One runner, from its order to its end."""

    def __init__(self, folder: Path, log: Path, orphan_s: float) -> None:
        self._folder, self._orphan_s = folder, orphan_s
        order = RunnerOrder.from_json((folder / ORDER).read_text(encoding="utf-8"))
        self._process = RunnerProcess(order, whole_environment(), log)
        self._is_told_to_end = False
        self._looked_at = self._supervised_at = time.monotonic()

    def run(self) -> None:
        for number in ENDING_SIGNALS:
            signal.signal(number, self._end)
        written = ""
        while True:
            state = self._process.poll()
            told = json.dumps(
                {"state": state, "note": self._process.note, "pid": self._process.pid}
            )
            if told != written:
                write_atomic(self._folder / STATE, told)
                written = told
            if state == "ended":
                return
            if (self._folder / KILL).exists():
                self._process.kill()
            elif self._is_told_to_end or (self._folder / DRAIN).exists() or self._is_orphan():
                self._process.drain()
            time.sleep(POLL_S)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._is_told_to_end = True

    def _is_orphan(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            if is_locked(self._folder.parent.parent / SUPERVISOR_LOCK):
                self._supervised_at = now
        return now - self._supervised_at > self._orphan_s


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
