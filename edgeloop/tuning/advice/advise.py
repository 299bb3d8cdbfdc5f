"""Advice for a model file: what would make it faster on a device, and the file with all of that."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edgeloop._util.files import replacing
from edgeloop._util.system import announced_memory, available_cpus
from edgeloop.errors import BadInput, ModelFailed
from edgeloop.graph import GraphInfo, find_rewrite
from edgeloop.isolation import as_file
from edgeloop.platforms import calibration_runs, platform_of
from edgeloop.settings import Settings, cache_folder
from edgeloop.tasks import Samples, TensorsTask
from edgeloop.tuning.advice.quantized import QuantizedAgreement, QuantizedCheck
from edgeloop.tuning.advice.search import (
    AdviceSearch,
    AdvisedRewrite,
    FoundRewrites,
    Progress,
)
from edgeloop.tuning.advice.trials import GraphEstimate, TrialRoom

_COMPARED_SAMPLES = 4
_SAME = 1e-6


@dataclass(frozen=True)
class AdviceOptions:
    """`names` restricts the rewrites. `dataset` has inputs, on which outputs are compared and a
    quantized model is calibrated and simulated, `images` of them; what costs it more than a decibel
    is not offered then. The search begins nothing new
    after `limit_s` or `most_compiles`; one compile may take `call_limit_s`."""

    names: Sequence[str] = ()
    dataset: Path | None = None
    images: int = 16
    workers: int | None = None
    limit_s: float = 900.0
    most_compiles: int = 120
    call_limit_s: float = 300.0
    uses_cache: bool = True


@dataclass(frozen=True)
class Advice:
    """What was found. `written` is the file that `apply` asked for; `quantized` is None where no
    dataset was given. `others` change what the model returns; with `applies_others` they were
    named, and are part of `after_ms` and of the file. `before` and `after` are the estimates with
    their intervals."""

    device: str
    before_ms: float
    after_ms: float
    rewrites: tuple[AdvisedRewrite, ...]
    others: tuple[AdvisedRewrite, ...]
    tried: tuple[str, ...]
    rejected: Mapping[str, str]
    compiles: int
    is_cut_short: bool
    missing_ops: int
    quantized: QuantizedAgreement | None = None
    written: Path | None = None
    applies_others: bool = False
    before: GraphEstimate | None = None
    after: GraphEstimate | None = None

    @property
    def gain_percent(self) -> float:
        return 100 * (1 - self.after_ms / self.before_ms)

    def to_fields(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        fields = asdict(self)
        for name in ("rewrites", "others"):
            fields[name] = [
                {**asdict(one), "gain_percent": one.gain_percent} for one in getattr(self, name)
            ]
        fields["gain_percent"] = self.gain_percent
        fields["written"] = str(self.written) if self.written else None
        return fields


def advise_model(
    path: Path,
    device: str,
    options: AdviceOptions | None = None,
    settings: Settings | None = None,
    apply: Path | None = None,
    progress: Progress | None = None,
) -> Advice:
    """Raises UnusableModel or ModelFailed where the compiler does not take the model as it is, and
    BadInput where the device has no estimate. `apply` is where the rewritten model is written."""
    options = options or AdviceOptions()
    settings = settings or Settings.load()
    for name in options.names:
        find_rewrite(name)
    platform = platform_of(device)
    with closing(platform.open_device(device, settings)) as opened:
        device = opened.name
    platform.check_benchmark(device, settings)
    with ExitStack() as stack:
        stack.enter_context(announced_memory(settings.native_memory))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="edgeloop-advise-")))
        room = stack.enter_context(
            closing(
                TrialRoom(
                    lambda: platform.open_estimator(device, settings, options.call_limit_s),
                    folder,
                    workers=options.workers or max(1, available_cpus()),
                    limit_s=options.limit_s,
                    most_compiles=options.most_compiles,
                    call_limit_s=options.call_limit_s,
                    cache=cache_folder() / "estimates" if options.uses_cache else None,
                )
            )
        )
        info, before = room.begin(path)
        samples = _samples(info, options, path)
        compared = _arrays(info, samples, folder) if samples is not None else None
        check = None
        if samples is not None:
            check = QuantizedCheck(room.base, info, samples, device, settings, folder)
            stack.callback(check.close)
        refused: dict[str, str] = {}
        while True:
            found = AdviceSearch(room, options.names, compared, progress, refused).run(before)
            lossy = check.first_loss(found.equal_paths) if check is not None else None
            if lossy is None:
                break
            place, lost_db = lossy
            name = found.steps[place].name
            refused[name] = f"it costs {lost_db:.1f} dB of the quantized model's SQNR"
        if apply is not None and found.steps:
            _write(room, found, apply, compared)
        quantized = check.agreement(found.equal_paths[-1]) if check is not None else None
        return Advice(
            device,
            found.before.latency_ms,
            found.after.latency_ms,
            found.rewrites,
            found.others,
            found.tried,
            found.rejected,
            room.compiles,
            room.is_cut_short,
            found.after.missing_ops,
            quantized,
            apply if apply is not None and found.steps else None,
            found.applies_others,
            found.before,
            found.after,
        )


def _samples(info: GraphInfo, options: AdviceOptions, model: Path) -> Samples | None:
    if options.dataset is None:
        return None
    if options.images < 1:
        raise BadInput(reason="the number of images must be 1 or more")
    task = TensorsTask(options.dataset)
    return task.inputs(info, options.images * info.batch, "calibration", model)


def _arrays(info: GraphInfo, samples: Samples, folder: Path) -> dict[str, Any]:
    """A few samples as the model takes them, one in each row, in files."""
    import numpy as np

    rows: dict[str, list[Any]] = {}
    for index, feeds in enumerate(calibration_runs(info, samples)):
        if index == _COMPARED_SAMPLES:
            break
        for name, values in feeds.items():
            rows.setdefault(name, []).append(values)
    return {
        name: as_file(np.ascontiguousarray(np.concatenate(values)), folder, f"sample-{number}.bin")
        for number, (name, values) in enumerate(rows.items())
    }


def _write(
    room: TrialRoom, found: FoundRewrites, target: Path, samples: Mapping[str, Any] | None
) -> None:
    """The file as it lies there afterwards is read, compared and estimated again."""
    with replacing(target) as draft:
        shutil.copyfile(found.paths[-1], draft)
        compared = room.compare(draft, samples)
        estimate = room.estimate_file(draft)
        if not compared.is_equal:
            reason = compared.problem or f"outputs differ by {compared.difference:.2g}"
            raise ModelFailed(reason=f"the rewritten model is not the same model: {reason}")
        if abs(estimate.latency_ms - found.after.latency_ms) > _SAME * found.after.latency_ms:
            reason = f"{estimate.latency_ms:.4g} ms and not {found.after.latency_ms:.4g} ms"
            raise ModelFailed(reason=f"the estimate of the written model is {reason}")
