"""A trainer that takes no time, for jobs: all that the real one writes, without PyTorch.

Its scores depend on the network and the epoch alone. What `what` asks for happens: a network may
diverge, not fit, or kill its process; "crash" does so in its second epoch. While the file that the
variable QUICK_WAIT names is there, no training begins.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from edgeloop.architectures import Architecture
from edgeloop.errors import OutOfMemory, TrainingDiverged
from edgeloop.search.evaluators import trainer
from edgeloop.training import CHECKPOINT, HISTORY, METRICS, MODEL, TrainingPlan, TrainingResult


def quick(
    arch: Architecture, dataset: Path, plan: TrainingPlan, out: Path, **places: Path
) -> TrainingResult:
    while Path(os.environ.get("QUICK_WAIT", "nowhere")).exists():
        time.sleep(0.05)
    what, width = arch.params["what"], int(arch.params["width"])
    if what == "nan":
        raise TrainingDiverged(arch=arch.id, step=1)
    if what == "huge":
        raise OutOfMemory(arch=arch.id, device="this machine", batch=8)
    out.mkdir(parents=True, exist_ok=True)
    checkpoint, until = out / CHECKPOINT, plan.until or plan.epochs
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    with (out / HISTORY).open("a" if done else "w") as history:
        for epoch in range(done + 1, until + 1):
            if what == "killed" or (what == "crash" and epoch == 2):
                os.kill(os.getpid(), signal.SIGKILL)
            score = 1 - 1 / (width * epoch)
            line = {"epoch": epoch, "step": 10 * epoch, "loss": 1 / epoch, "seconds": time.time()}
            history.write(json.dumps({**line, "f1": score, "miou": score}) + "\n")
            checkpoint.write_text(str(epoch))
    is_paused = until < plan.epochs
    if not is_paused:
        (out / MODEL).write_bytes(b"model")
    arch.save(out / "arch.json")
    score = 1 - 1 / (width * until)
    found = TrainingResult(
        *(arch.id, score, score, 1 / until, until, until, 10 * until, 1, 0.1, 10.0),
        *(False, "cpu", "segmentation", is_paused),
    )
    (out / METRICS).write_text(json.dumps(found.__dict__))
    return found


if __name__ == "__main__":
    perform = trainer.perform
    trainer.perform = lambda order, paths: perform(order, paths, quick)  # type: ignore[assignment]
    sys.exit(trainer.main(sys.argv[1:]))
