"""The end of a job: outputs, log and state into the store, in this order, and the scratch away.

The state comes last because it is a promise: who reads `completed` finds every file there.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from edgeloop.errors import EdgeloopError, StoreRefused
from edgeloop.jobs.ticket import State
from edgeloop.jobs.wrapper.log import Log, LogCopier
from edgeloop.jobs.wrapper.outputs import OutputCopier
from edgeloop.jobs.wrapper.repeat import STORE_TROUBLE, patiently
from edgeloop.jobs.wrapper.scratch import Scratch
from edgeloop.jobs.wrapper.state import StateWriter, latest_metrics

FAILED = 1
KILLED = 137
CANCELED = 143
_STUBBORN = 3  # times that a store takes everything but some file before that file is given up
_DELAY_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """What became of the job; `code` is the exit code that the compute gets to see."""

    state: State
    code: int
    reason: str = ""
    exit_code: int | None = None  # the command's own, where it ran
    published: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """All that is needed to finish a job; the same for a keeper and for who salvages one."""

    scratch: Scratch
    node: str
    log: Log
    log_copier: LogCopier
    outputs: OutputCopier
    state: StateWriter
    patience_s: float

    def finish(self, outcome: Outcome) -> int:
        """The job's final exit code. The scratch folder stays where not all of it is stored."""
        missing = self._copy_all()
        if missing:
            outcome = self._incomplete(outcome, missing)
        elif outcome.state == "completed":
            self._try(self.outputs.remove_deleted)
        self.log.say(f"{outcome.state}: {outcome.reason}" if outcome.reason else outcome.state)
        if self._report(outcome, complete=not missing) and not missing:
            shutil.rmtree(self.scratch.folder, ignore_errors=True)
        return outcome.code

    def _incomplete(self, outcome: Outcome, missing: set[str]) -> Outcome:
        """Results that nobody can fetch are no success; single files that no store could hold are
        said and no more."""
        many = f"{len(missing)} files of outputs/ ({sorted(missing)[0]}, …)"
        what = many if len(missing) > 1 else f"outputs/{next(iter(missing))}"
        why = f" ({self.outputs.trouble})" if self.outputs.trouble else ""
        kept = f"{what} could not be stored{why}: see {self.scratch.outputs} on {self.node}"
        reason = f"{outcome.reason}; {kept}" if outcome.reason else kept
        if outcome.state == "completed" and not self._works(self.state.put):
            return replace(outcome, state="failed", code=FAILED, reason=reason)
        return replace(outcome, reason=reason)

    def _copy_all(self) -> set[str]:
        """What could not be copied. A file that fails while all else goes is given up soon."""
        deadline = time.monotonic() + self.patience_s
        refusals, delay = 0, _DELAY_S
        while True:
            missing = self.outputs.finish()
            if self.outputs.trouble is None:
                return missing
            works = self._works(self.state.put)
            refusals = refusals + 1 if works else 0
            hopeless = isinstance(self.outputs.trouble, StoreRefused) and not works
            left = deadline - time.monotonic()
            if hopeless or refusals >= _STUBBORN or left <= 0:
                return missing
            time.sleep(min(delay, left))
            delay = min(2 * delay, 15 * _DELAY_S)

    def _report(self, outcome: Outcome, complete: bool) -> bool:
        stored = self._try(self.log_copier.copy)
        self.state.change(
            state=outcome.state,
            exit_code=outcome.exit_code,
            reason=outcome.reason,
            ended=time.time(),
            published=outcome.published,
            log_bytes=self.log_copier.bytes_sent,
            outputs_complete=complete,
            metrics=latest_metrics(self.scratch.outputs / "metrics.jsonl")
            or self.state.progress.metrics,
        )
        return self._try(self.state.put) and stored

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            patiently(action, self.patience_s)
        except EdgeloopError as error:
            self.log.say(f"{error} The job's folder is kept: {self.scratch.folder}")
            return False
        return True

    def _works(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except STORE_TROUBLE:
            return False
        return True
