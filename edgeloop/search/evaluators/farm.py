"""Latency and F1 measured by runners: upload the model, then watch the status table.

A model is named after its architecture, so a later search finds it: it is not uploaded again, and
if the runners are done with it, its values are there at once.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from edgeloop.errors import (
    BadInput,
    ComputeUnavailable,
    EdgeloopError,
    ModelBusy,
    NameTaken,
    StoreUnavailable,
)
from edgeloop.models.catalog import Candidates
from edgeloop.models.columns import CANDIDATE, mean_latency_ms, ran_on
from edgeloop.models.runners import Registry
from edgeloop.search.base import Evaluation
from edgeloop.search.evaluators.screening import UNTRAINED, ModelBuilder
from edgeloop.search.evaluators.threads import PollingEvaluator, Request, failure
from edgeloop.search.nets.plan import MODEL
from edgeloop.store import Values
from edgeloop.workspace import Workspace

LATENCY, F1 = "farm_latency_ms", "farm_f1"
_NO_MODEL_YET = (CANDIDATE, "uploading", "deleting", None)
_BUILD_LIMIT_S = 120.0
PATIENCE_S = 10.0  # for runners that are just starting
CHECK_S = 10.0


@dataclass
class _Asked:
    """A model that is waited for. `last` is what its row said when it was last read."""

    request: Request
    name: str
    is_uploaded: bool = False
    last: str = "its row was never read"

    @property
    def arch_id(self) -> str:
        return self.request.arch.id


class RemoteBenchmark(PollingEvaluator):
    """Have architectures measured by the runners of an experiment, through its status table.

    `send` accepts an architecture and returns at once; `collect` returns the evaluations that are
    finished, in any order. Latency needs an untrained model, which is built here unless `files`
    has `untrained.onnx`; F1 needs the trained one, `model.onnx`. An architecture that is in the
    table already is not measured again. What is not measured in time is an error that may be
    retried; the model stays in the table.

    Args:
        workspace: The experiment whose runners measure.
        gives: What to measure: `farm_latency_ms`, `farm_f1`, or both.
        timeout_s: Seconds for each architecture, from `send` on.
        device: Rejects values of any other device. By default any device will do.
        stage: Column of the F1.
        trained_with: Conditions of the training, on which F1 depends, as one line.
        tags: Tags of the uploaded models.
        project: Root for files of spaces. By default the folder of the project.
        tell: Called with a sentence when no runner can measure, and when one can again.

    Examples:
        >>> from pathlib import Path
        >>> from edgeloop import RemoteBenchmark, Workspace
        >>> arch = {"space": "mine", "params": {}, "shape": [1, 3, 64, 64], "classes": 19}
        >>> with Workspace.open() as workspace:
        ...     benchmark = RemoteBenchmark(workspace, timeout_s=3600)
        ...     benchmark.send(arch, {"untrained.onnx": Path("net.onnx")})
        ...     evaluations = benchmark.collect(timeout_s=0)  # no runner has measured it yet
        ...     benchmark.close()
        >>> evaluations
        []
    """

    label = "on the farm"

    def __init__(
        self,
        workspace: Workspace,
        gives: Sequence[str] = (LATENCY,),
        timeout_s: float = 3600.0,
        device: str | None = None,
        stage: str = "f1_1k",
        *,
        trained_with: str = "",
        tags: Sequence[str] = (),
        project: Path | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        if not gives or set(gives) - {LATENCY, F1}:
            raise BadInput(reason=f"RemoteBenchmark gives {LATENCY} and {F1}, not {list(gives)}")
        super().__init__(away_s=math.inf)  # every model has its own time limit
        self.gives = tuple(dict.fromkeys(gives))
        self.cost = 2 if F1 in self.gives else 1
        self._workspace, self._timeout_s, self._device = workspace, timeout_s, device
        self._is_trained, self._tags = F1 in self.gives, tuple(tags)
        self._stages = [
            workspace.plan["benchmark" if name == LATENCY else stage] for name in self.gives
        ]
        self.conditions = self._conditions(stage, trained_with)
        self._builder = ModelBuilder(_BUILD_LIMIT_S, project or workspace.settings.project)
        self._asked: dict[str, _Asked] = {}
        self._tell = tell
        self._registry = Registry(workspace.store)
        models = workspace.store.models(workspace.experiment)
        self._table = Candidates(models, workspace.experiment)
        self._checked = 0.0
        self._complaint = ""

    def _conditions(self, stage: str, trained_with: str) -> str:
        parts = [f"farm, {self._device or 'any device'}"]
        if LATENCY in self.gives:
            parts.append(f"mean of {self._workspace.settings.benchmark_runs}")
        if self._is_trained:
            parts += [stage, trained_with or "trained somehow"]
        return "; ".join(parts)

    def _take(self, request: Request) -> None:
        self._asked[request.arch.id] = _Asked(request, "")  # named when the store is first asked

    def _waiting(self) -> list[str]:
        return list(self._asked)

    def _forget(self, arch_id: str) -> None:
        self._asked.pop(arch_id, None)

    def _poll(self) -> bool:
        before = len(self._asked)
        try:
            self._read_all()
        except (StoreUnavailable, ComputeUnavailable) as error:
            for asked in self._asked.values():
                asked.last = str(error)
        self._look_for_runners()
        for asked in list(self._asked.values()):
            if time.monotonic() - asked.request.sent > self._timeout_s:
                sentence = (
                    f"{asked.name or asked.arch_id} was not measured within {self._timeout_s:g} s; "
                    f"its row when last read: {asked.last}"
                )
                self._settle(failure(asked.arch_id, sentence, is_final=False))
        return len(self._asked) < before

    def _read_all(self) -> None:
        rows = self._rows()
        for asked in list(self._asked.values()):
            row = rows.get(asked.name)
            if row is not None and row.get("status") in _NO_MODEL_YET:
                row = None
            if row is None or (self._is_trained and not asked.is_uploaded):
                self._upload(asked)
            else:
                self._judge(asked, row)

    def _look_for_runners(self) -> None:
        """Tell once that no runner could measure, and once that there is one again."""
        now = time.monotonic()
        waiting = [asked for asked in self._asked.values() if now - asked.request.sent > PATIENCE_S]
        if not waiting or now - self._checked < CHECK_S:
            return
        self._checked = now
        try:
            complaint = self._missing_runner(len(waiting))
        except EdgeloopError:
            return  # said elsewhere
        if any(asked.last.startswith("status running") for asked in waiting):
            complaint = ""  # by a runner of an older version, which does not register
        if complaint and not self._complaint:
            self._tell(complaint)
        elif self._complaint and not complaint:
            self._tell(f"A runner serves experiment {self._workspace.experiment!r} now.")
        self._complaint = complaint

    def _missing_runner(self, waiting: int) -> str:
        """Why models may wait for ever; empty if they need not."""
        experiment, store = self._workspace.experiment, self._workspace.store.description
        entries = [entry for entry in self._registry.entries() if not entry.is_dead]
        serving = [entry for entry in entries if entry.experiment == experiment]
        capability = f"device@{self._device}" if self._device else "device"
        models = f"{waiting} model{'s wait' if waiting > 1 else ' waits'} to be measured"
        device = self._device or "NAME"
        advice = f"edgeloop runner --experiment {experiment} --device {device}"
        if not serving:
            others = sorted({f"{entry.node} ({entry.experiment})" for entry in entries})
            elsewhere = f" Runners of other experiments: {', '.join(others[:5])}." if others else ""
            return (
                f"{models}, but no live runner serves experiment {experiment!r} of {store}. "
                f"Start one: {advice}.{elsewhere}"
            )
        if not any(capability in entry.capabilities for entry in serving):
            nodes = ", ".join(sorted({entry.node for entry in serving})[:5])
            kind = f"has {self._device}" if self._device else "has a device"
            return f"{models}, but no live runner {kind}: there is {nodes}. Start one: {advice}."
        return ""

    def _rows(self) -> dict[str, Values]:
        """Each by its name: a poll must not read a table of thousands of other models."""
        if not self._asked:
            return {}
        ending = ".trained" if self._is_trained else ""
        for asked in self._asked.values():
            if not asked.name:
                asked.name = f"{self._table.name_of(asked.arch_id)}{ending}"
        models = self._workspace.store.models(self._workspace.experiment)
        rows = [models.get(name) for name in sorted({a.name for a in self._asked.values()})]
        return {row.key: row.values for row in rows if row is not None}

    def _upload(self, asked: _Asked) -> None:
        """Uploading the same content under the same name again does nothing; a model of another
        training gets another name."""
        if asked.is_uploaded:
            sentence = f"{asked.name} was removed from the status table"
            self._settle(failure(asked.arch_id, sentence, is_final=False))
            return
        try:
            with tempfile.TemporaryDirectory(prefix="edgeloop-farm-") as folder:
                file = self._file(asked, Path(folder))
                benchmark_only = not self._is_trained
                self._workspace.upload(
                    file,
                    asked.name,
                    benchmark_only=benchmark_only,
                    tags=self._tags,
                    architecture=asked.request.arch.canonical,
                    check=False,
                )
            asked.is_uploaded, asked.last = True, "status new"
        except StoreUnavailable:
            raise
        except ModelBusy as error:
            asked.last = str(error)
        except NameTaken:
            if not self._is_trained or not asked.name.endswith(".trained"):
                return  # its latency does not depend on who uploaded it: the next poll finds it
            content = sha256(asked.request.files[MODEL].read_bytes()).hexdigest()
            asked.name = f"{asked.name}.{content[:12]}"
        except (EdgeloopError, OSError) as error:
            self._settle(failure(asked.arch_id, error))

    def _file(self, asked: _Asked, folder: Path) -> Path:
        files, arch = asked.request.files, asked.request.arch
        if MODEL in files:
            return files[MODEL]
        if self._is_trained:
            reason = f"{arch.id} is not trained: {MODEL} is needed for its F1"
            raise BadInput(reason=reason)
        return (
            files[UNTRAINED]
            if UNTRAINED in files
            else self._builder.build(arch, folder / f"{arch.id}.onnx")
        )

    def _judge(self, asked: _Asked, row: Values) -> None:
        asked.is_uploaded = True
        asked.last = f"status {row.get('status')}" + (
            f", error {row['error']}" if row.get("error") else ""
        )
        if all(stage.is_done(row) for stage in self._stages):
            self._settle(self._measured(asked, row))
        elif row.get("status") == "error":
            sentence = f"{asked.name} failed on the farm: {row.get('error') or 'no reason given'}"
            self._settle(failure(asked.arch_id, sentence, is_final=True))

    def _measured(self, asked: _Asked, row: Values) -> Evaluation:
        device = str(row.get("device") or "")
        if self._device is not None and not ran_on(row, self._device):
            sentence = f"{asked.name} was measured on {device}, not on {self._device}"
            return failure(asked.arch_id, sentence, is_final=True)
        values: dict[str, float] = {}
        for name, stage in zip(self.gives, self._stages, strict=True):
            value = mean_latency_ms(row) if name == LATENCY else row.get(stage.fills[0])
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value):  # type: ignore[arg-type]
                sentence = f"{asked.name} has no number in {stage.fills[0]}"
                return failure(asked.arch_id, sentence, is_final=True)
            values[name] = float(value)  # type: ignore[arg-type]
        return Evaluation(asked.arch_id, values, {}, time.monotonic() - asked.request.sent)

    def _stop(self) -> None:
        self._join(self._builder.kill)
        self._builder.close()
