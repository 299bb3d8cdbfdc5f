"""What can be known of an architecture in a moment, before it is trained."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edgeloop.architectures import check_exporter, check_torch
from edgeloop.errors import BadInput
from edgeloop.graph import GraphProcess
from edgeloop.platforms import Estimator, platform_of
from edgeloop.search.base import Answer
from edgeloop.search.evaluators.builder import Builder
from edgeloop.search.evaluators.desk import Crew, Request
from edgeloop.settings import Settings

UNTRAINED = "untrained.onnx"
VALUES = ("params", "macs", "host_latency_ms", "chip_latency_ms")


class Screening(Crew):
    """Counts, host latency and the compiler's estimate, in warm processes: one that builds the
    net, one for the compiler. Latency needs no training: weights change neither.

    A net that crashes a process, does not fit into memory or is over `limit_s` in one of the steps
    has a final error, and the next one gets a new process. Nets are kept in `folder`; in a
    temporary one, which goes with `close`, where none is given.
    """

    cost = 0

    def __init__(
        self,
        wanted: Collection[str] = VALUES,
        device: str = "htp:snapdragon-888",
        *,
        repeats: int = 20,
        warm_up: int = 3,
        limit_s: float = 60.0,
        folder: Path | None = None,
        project: Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.gives = _checked(wanted)
        if repeats < 1 or warm_up < 0 or limit_s <= 0:
            raise BadInput(reason="Screening takes repeats of 1 or more, warm_up of 0 or more")
        check_torch()
        check_exporter()
        super().__init__()
        self._repeats, self._warm_up = repeats, warm_up
        self._estimator: Estimator | None = None
        if "chip_latency_ms" in self.gives:
            settings = settings or Settings.load(project)
            self._estimator = platform_of(device).open_estimator(device, settings, limit_s)
        self._graphs = self._estimator or GraphProcess(limit_s)
        self.conditions = _conditions(self.gives, self._estimator, repeats)
        self._temporary = tempfile.TemporaryDirectory(
            prefix="edgeloop-screen-", ignore_cleanup_errors=True
        )
        self._folder = folder or Path(self._temporary.name)
        self._builder = Builder(limit_s, project)

    @property
    def capacity(self) -> int:
        return 1

    def warm(self) -> None:
        """Load the libraries now, so that the first architecture does not wait for that."""
        self._builder.warm()
        self._graphs.warm()

    def _work(self, request: Request) -> Answer:
        began, arch = time.monotonic(), request.arch
        model = self._builder.build(arch, self._folder / arch.id / UNTRAINED)
        found: dict[str, float] = {}
        if "params" in self.gives or "macs" in self.gives:
            info = self._graphs.inspect(model)
            found |= {"params": float(info.params), "macs": float(info.macs)}
        if "host_latency_ms" in self.gives:
            found["host_latency_ms"] = self._builder.host_latency_ms(
                model, self._warm_up, self._repeats
            )
        if self._estimator is not None:
            found["chip_latency_ms"] = self._estimator.latency_ms(model)
        values = {name: found[name] for name in self.gives}
        return Answer(arch.id, values, {UNTRAINED: model}, time.monotonic() - began)

    def _stop(self) -> None:
        """A call under way is cut off; the thread sees that we are closing and ends."""
        self._join(self._cut_off)
        self._builder.close()
        self._graphs.close()
        self._temporary.cleanup()

    def _cut_off(self) -> None:
        self._builder.kill()
        self._graphs.kill()


def _checked(wanted: Collection[str]) -> tuple[str, ...]:
    unknown = sorted(set(wanted) - set(VALUES))
    if unknown or not wanted:
        said = f"gives no {unknown[0]!r}" if unknown else "was asked for nothing"
        raise BadInput(reason=f"Screening {said}: there are {', '.join(VALUES)}")
    return tuple(name for name in VALUES if name in wanted)


def _conditions(gives: tuple[str, ...], estimator: Estimator | None, repeats: int) -> str:
    parts = ["untrained net"]
    if "host_latency_ms" in gives:
        try:
            installed = version("onnxruntime")
        except PackageNotFoundError:
            installed = "unknown"
        cpu = f"{platform.machine()} {platform.node()}"
        parts.append(f"host {cpu}, 1 thread, onnxruntime {installed}, of {repeats}")
    if estimator is not None:
        parts.append(estimator.conditions)
    return "; ".join(parts)
