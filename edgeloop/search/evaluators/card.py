"""The process in which candidates share a GPU: `python -m edgeloop.search.evaluators.card …`,
started by `SharedTrainers` and kept as long as the search runs.

It reads one JSON line per call from its standard input ({"train": 7, "folder": …} or {"stop": 7})
and answers on its standard output when a candidate begins and when it ends. A candidate is trained
in its own folder, by its own order, in a thread. After an error that leaves the GPU unusable for
all of them, such as an illegal memory access, the process ends: whoever was in training is then
tried alone by our side, to find the one to blame.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from edgeloop.errors import EdgeloopError
from edgeloop.search.evaluators.trainer import ORDER, TrainerPaths, TrainingOrder, perform
from edgeloop.search.nets.many import SharedTraining
from edgeloop.search.nets.plan import TrainingPlan, TrainingProgress

LOG = "train.log"
BROKEN = 70  # the exit code when the GPU cannot be used by this process any more
_BREAKS = ("CUDA error", "CUDNN_STATUS", "CUBLAS_STATUS", "device-side assert")


class TrainingCanceled(Exception):
    """It was over its time limit."""


class CardServer:
    """Threads that train, one per candidate, on a device that they share."""

    def __init__(self, device: SharedTraining, paths: TrainerPaths, answers: int) -> None:
        self._device, self._paths, self._answers = device, paths, answers
        self._lock = threading.Lock()
        self._stopped: set[int] = set()

    def serve(self, calls: int) -> None:
        """Until our side is gone: then whatever runs ends, however busy it is."""
        self._answer(0, "ready")
        with os.fdopen(calls, encoding="utf-8") as lines:
            for line in lines:
                call = json.loads(line)
                if "stop" in call:
                    self._stopped.add(call["stop"])
                    continue
                arguments = (call["train"], Path(call["folder"]))
                threading.Thread(target=self._train, args=arguments, daemon=True).start()
        os.killpg(0, signal.SIGKILL)

    def _train(self, number: int, folder: Path) -> None:
        code, text = 1, ""
        with (folder / LOG).open("w", encoding="utf-8") as log:
            try:
                code = perform(
                    TrainingOrder.load(folder / ORDER),
                    TrainerPaths(
                        self._paths.dataset, folder, self._paths.cache, self._paths.project
                    ),
                    partial(
                        self._device.train,
                        begun=partial(self._answer, number, "begun"),
                        progress=partial(self._check, number),
                    ),
                    log.write,
                )
            except TrainingCanceled:
                text = "it was stopped"
            except EdgeloopError as error:
                text = str(error)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it has an answer
                traceback.print_exc(file=log)
                log.flush()
                text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                if any(sign in str(error) for sign in _BREAKS):
                    sys.stderr.write(f"{folder.parent.name}: {text}\n")
                    os._exit(BROKEN)
        self._answer(number, "ended", code=code, text=text)

    def _check(self, number: int, _: TrainingProgress) -> None:
        if number in self._stopped:
            raise TrainingCanceled

    def _answer(self, number: int, what: str, **more: object) -> None:
        used = self._device.shared.usage.mean()
        line = json.dumps({"number": number, "what": what, "gpu": used, **more}) + "\n"
        with self._lock:
            os.write(self._answers, line.encode())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="card", description="Train candidates on one device.")
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=0, help="0: as many as there is room for")
    given = parser.parse_args(arguments)
    # Whatever libraries print goes to the log, not between the answers.
    calls, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    try:
        plan = TrainingPlan(device=given.device, threads=given.threads)
        shared = SharedTraining(plan, given.at_once or None)
        with shared.opened():
            paths = TrainerPaths(given.dataset, Path(), given.cache, given.project)
            CardServer(shared, paths, answers).serve(calls)
    except EdgeloopError as error:
        sys.stderr.write(f"{error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
