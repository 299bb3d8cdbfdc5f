"""The time on a chip, predicted from the compiler's estimate: a number with its interval."""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgeloop._util.files import parse_json, read_regular, write_atomic
from edgeloop._util.yaml import read_yaml
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.graph.count import count_layers
from edgeloop.graph.info import Shape
from edgeloop.graph.read import shapes_of
from edgeloop.platforms.base import ErrorInterval, LatencyProfile
from edgeloop.platforms.qnn.chips import DEFAULT_CHIP, Chip, chips, find_chip

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

    from edgeloop.platforms.qnn.toolchain import Estimate


# From the compiler's estimate to a time on the chip, with the interval that data supports.
#
# A profile was fitted to networks with a published latency; its interval is the spread of those
# that were left out of the fit. Where there is no such data, the prediction says so instead of
# guessing: a chip without a profile gets the range of those that have one, a graph of mixed
# precision that of the chip's 8-bit and 16-bit models, and a graph with steps that the compiler has
# no cost for a lower bound only.


ANY_KIND = "any"
_FORMATS = {"w8a8": "8-bit", "w8a16": "16-bit activation", "float": "float"}


@dataclass(frozen=True)
class LatencyPrediction:
    """The time on the chip is expected between `low_us` and `high_us` with the probability
    `coverage`; None: no data supports one. `basis` says where the interval comes from, or why there
    is none. `is_lower_bound`: the estimate leaves out steps, so the chip takes longer."""

    time_us: float
    low_us: float | None
    high_us: float | None
    coverage: float | None
    basis: str
    caveats: tuple[str, ...] = ()
    is_calibrated: bool = False
    is_lower_bound: bool = False


def predict(
    estimate: Estimate,
    chip: Chip,
    profile: LatencyProfile | None,
    form: str = "",
    reference: Estimate | None = None,
) -> LatencyPrediction:
    """`form` is the number format, by default that of the estimated graph. `reference` is the
    estimate of the same graph for the default chip, which is calibrated: a chip that is not gets a
    time relative to it."""
    form = form or estimate.form
    fitted = profile.for_format(form) if profile else None
    nearest = fitted or profile
    time_us = (
        calibrated(estimate.raw_us, nearest, estimate.features) if nearest else estimate.raw_us
    )
    ends = _ends(estimate, profile) if profile and form == MIXED else []
    if ends:
        time_us = _between(estimate, ends)
    if left_out := _left_out(estimate):
        return LatencyPrediction(
            time_us=time_us,
            low_us=None,
            high_us=None,
            coverage=None,
            basis=f"no interval: {left_out}, so the chip takes longer",
            caveats=estimate.caveats,
            is_calibrated=fitted is not None,
            is_lower_bound=True,
        )
    if ends:
        return _mixed(estimate, chip, ends, time_us)
    if fitted is None:
        return _uncalibrated(estimate, chip, profile, form, time_us, reference)
    return _calibrated(estimate, fitted, time_us)


def _left_out(estimate: Estimate) -> str:
    """What the estimate does not contain, in words."""
    parts = []
    if estimate.missing_ops:
        steps = "step" if estimate.missing_ops == 1 else "steps"
        parts.append(f"the compiler has no cost for {estimate.missing_ops} {steps}")
    if estimate.cpu_layers:
        layers = "layer runs" if estimate.cpu_layers == 1 else "layers run"
        parts.append(f"{estimate.cpu_layers} {layers} on the CPU")
    return " and ".join(parts)


def _calibrated(estimate: Estimate, profile: LatencyProfile, time_us: float) -> LatencyPrediction:
    kind = estimate.kind if estimate.kind in profile.intervals else ANY_KIND
    interval = profile.intervals.get(kind)
    caveats = estimate.caveats
    if interval is None:
        basis = f"no interval: the profile {profile.name} has none; calibrate it again"
        return LatencyPrediction(
            time_us=time_us,
            low_us=None,
            high_us=None,
            coverage=None,
            basis=basis,
            caveats=caveats,
            is_calibrated=True,
        )
    low_us, high_us = time_us * interval.low, time_us * interval.high
    basis = _basis(profile, kind, interval)
    coverage = interval.coverage
    if profile.range_us and not profile.range_us[0] <= time_us <= profile.range_us[1]:
        # Below the range, the fitted offset is a guess: the chip may have less of it.
        low_us = min(low_us, interval.low * profile.b * estimate.raw_us)
        fastest, slowest = (f"{limit / 1000:.3g}" for limit in profile.range_us)
        basis = (
            f"outside the {fastest} to {slowest} ms that profile {profile.name} was fitted to, so "
            "the range has no stated coverage"
        )
        coverage = None
    return LatencyPrediction(
        time_us=time_us,
        low_us=low_us,
        high_us=high_us,
        coverage=coverage,
        basis=basis,
        caveats=caveats,
        is_calibrated=True,
    )


def _basis(profile: LatencyProfile, kind: str, interval: ErrorInterval) -> str:
    is_own = kind != ANY_KIND and not interval.widened_by
    networks = f"{interval.networks} {kind + ' ' if is_own else ''}networks left out of the fit"
    if interval.widened_by:
        networks += f", widened to hold {interval.widened_by} {kind} ones"
    if interval.coverage is None:
        networks += ", too few for a stated coverage"
    return f"errors of {networks}, profile {profile.name}"


def _ends(estimate: Estimate, profile: LatencyProfile) -> list[tuple[float, ErrorInterval]]:
    """The time by the profiles of 8-bit and of 16-bit activations, with their intervals."""
    forms = [profile.for_format(form) for form in ("w8a8", "w8a16")]
    return [
        (calibrated(estimate.raw_us, one, estimate.features), one.intervals[ANY_KIND])
        for one in forms
        if one is not None and ANY_KIND in one.intervals
    ]


def _between(estimate: Estimate, ends: list[tuple[float, ErrorInterval]]) -> float:
    """By the share of 16-bit activations, so that a plan of either width alone fits in."""
    first, last = ends[0][0], ends[-1][0]
    return first + estimate.wide_share * (last - first)


def _mixed(
    estimate: Estimate, chip: Chip, ends: list[tuple[float, ErrorInterval]], time_us: float
) -> LatencyPrediction:
    low_us = min(time * interval.low for time, interval in ends)
    high_us = max(time * interval.high for time, interval in ends)
    range_source = "its 8-bit and 16-bit activation models" if len(ends) > 1 else "other models"
    basis = f"no published figures of mixed-precision models for {chip.name}; the range is that of "
    return LatencyPrediction(
        time_us=time_us,
        low_us=low_us,
        high_us=high_us,
        coverage=None,
        basis=basis + range_source,
        caveats=estimate.caveats,
    )


def _uncalibrated(
    estimate: Estimate,
    chip: Chip,
    profile: LatencyProfile | None,
    form: str,
    time_us: float,
    reference: Estimate | None,
) -> LatencyPrediction:
    """What the chips with a profile would take, from the fastest to the slowest."""
    ends = [
        (interval.low * time, interval.high * time)
        for other in built_in_profiles().values()
        if (interval := other.intervals.get(ANY_KIND)) is not None
        for time in [calibrated(estimate.raw_us, other, estimate.features)]
    ]
    low_us = min([time_us, *(low for low, _ in ends)])
    high_us = max([time_us, *(high for _, high in ends)])
    what = _FORMATS.get(form, form)
    why = f"no published figures of {what} models for {chip.name}" if profile else "uncalibrated"
    relative = ""
    if reference is not None and reference.raw_us > 0 and profile is None:
        ratio = estimate.raw_us / reference.raw_us
        relative = f", about {ratio:.2g} × the time on {DEFAULT_CHIP}"
    basis = f"{why}{relative}; the range is that of the calibrated chips"
    return LatencyPrediction(
        time_us=time_us,
        low_us=low_us,
        high_us=high_us,
        coverage=None,
        basis=basis,
        caveats=estimate.caveats,
    )


# What turns the compiler's estimate into the time on a board: latency ≈ a + b · estimate.
#
# `profiles.yaml` has the constants of chips; `fit_profile` finds those of a board of your own.


DEFAULT_COVERAGE = 0.9
FEWEST_MODELS = 5
_LARGEST_FILE = 1_000_000
FEWEST_COVERED = 19  # an interval of fewer has no coverage: one more model may change it
_HUBER = 0.1  # residuals over 10 % count as outliers
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

Pair = tuple[float, float]  # the compiler's estimate, the time measured on the board; both in µs


_PUBLISHED = "{networks} public networks, the chip maker's published latency, 2026-11"


@cache
def built_in_profiles() -> dict[str, LatencyProfile]:
    """Those of `profiles.yaml`."""
    return {name: _built_in(name, forms) for name, forms in _table().items()}


def _table() -> dict[str, dict[str, dict[str, Any]]]:
    document = read_yaml(Path(__file__).with_name("profiles.yaml")).value
    return cast(dict[str, dict[str, dict[str, Any]]], document)


def _built_in(name: str, forms: Mapping[str, Mapping[str, Any]]) -> LatencyProfile:
    """The profile of 8-bit models, which has those of the other formats."""
    by_form = {form: _profile_from(name, form, fields) for form, fields in forms.items()}
    main = by_form.pop("w8a8")
    return replace(main, formats=by_form)


def _profile_from(name: str, form: str, fields: Mapping[str, Any]) -> LatencyProfile:
    networks = int(fields["networks"])
    return LatencyProfile(
        name=name,
        soc=int(fields["soc"]),
        a_us=float(fields["a_us"]),
        b=float(fields["b"]),
        models=networks,
        error_percent=float(fields["median_error_percent"]),
        source=_PUBLISHED.format(networks=networks),
        intervals=_intervals(fields.get("intervals", {})),
        range_us=_range_us(fields.get("range_us")),
        terms={str(feature): float(weight) for feature, weight in fields.get("terms", {}).items()},
        form=form,
    )


def _intervals(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, ErrorInterval]:
    return {
        str(kind): ErrorInterval(
            float(one["low"]),
            float(one["high"]),
            int(one["networks"]),
            None if one.get("coverage") is None else float(one["coverage"]),
            int(one.get("widened_by", 0)),
        )
        for kind, one in fields.items()
    }


def _range_us(limits: Sequence[Any] | None) -> tuple[float, float] | None:
    return None if limits is None else (float(limits[0]), float(limits[1]))


def find_target(device: str, folder: Path | None) -> tuple[str, Chip, LatencyProfile | None]:
    """What `htp:…` stands for: its name after the colon, the chip, and the profile that corrects
    the compiler's estimate for it, if any. A profile of the project that is not a chip's name is a
    board: the chip it was fitted on."""
    name = device.partition(":")[2] or DEFAULT_CHIP
    profile = find_profile(name, folder)
    if profile is not None and name not in chips():
        fitted = [chip for chip in chips().values() if chip.estimate_soc == profile.soc]
        if not fitted:
            reason = f"profile {name!r} belongs to chip number {profile.soc}, which has no estimate"
            raise BadInput(reason=reason)
        return name, fitted[0], profile
    chip = find_chip(name)
    return name, chip, find_profile(chip.name, folder)


def calibrated(
    raw_us: float, profile: LatencyProfile, features: Mapping[str, float] | None = None
) -> float:
    """`features` are those of the estimate; without them the graph counts as an average one."""
    line = profile.a_us + profile.b * raw_us
    return line if features is None else line * correction(profile.terms, raw_us, features)


def constants_text(profile: LatencyProfile, form: str) -> str:
    """What `calibrated` depends on for models of a format: two profiles of the same name that were
    fitted at different times differ in it."""
    used = profile.for_format(form) or profile
    line = f"{used.a_us:.6g} + {used.b:.6g} x"
    if not used.terms:
        return line
    terms = json.dumps(sorted(used.terms.items()))
    return f"{line}, terms {hashlib.sha256(terms.encode()).hexdigest()[:8]}"


def fit_profile(pairs: Sequence[Pair], name: str, soc: int, source: str = "") -> LatencyProfile:
    """A profile from models measured on a board; outliers bend it little.

    Relative errors count, so the fit is of logarithms: log y = log b + log(x + a/b). For a given
    a/b the best b is a robust mean, which leaves a search along one line.
    """
    _check_name(name)
    _check_pairs(pairs)
    a_us, b = _fit(pairs)
    ratios = []
    for index, (raw, measured) in enumerate(pairs):
        left_a, left_b = _fit([*pairs[:index], *pairs[index + 1 :]])
        ratios.append(measured / (left_a + left_b * raw))
    error = round(100 * statistics.median(abs(1 / ratio - 1) for ratio in ratios), 2)
    said = source or f"{len(pairs)} models measured on the board"
    times = [measured for _, measured in pairs]
    return LatencyProfile(
        name=name,
        soc=soc,
        a_us=a_us,
        b=b,
        models=len(pairs),
        error_percent=error,
        source=said,
        intervals={"any": held_out_interval(ratios)},
        range_us=(min(times), max(times)),
    )


def held_out_interval(ratios: Sequence[float], coverage: float = DEFAULT_COVERAGE) -> ErrorInterval:
    """The interval of time over prediction from models that were left out of the fit (split
    conformal: of n + 1 models, the new one is as likely as any other to be the largest). Fewer than
    `FEWEST_COVERED` give their whole range, without a coverage."""
    logarithms = sorted(math.log(ratio) for ratio in ratios)
    count = len(logarithms)
    rank = (count + 1) * (1 - coverage) / 2  # of each end; between two models, between their errors
    ends = (_ranked(logarithms, rank), -_ranked([-value for value in reversed(logarithms)], rank))
    low, high = (math.exp(end) for end in ends)
    is_enough = count >= FEWEST_COVERED and rank >= 1 - 1e-9
    return ErrorInterval(low, high, count, coverage if is_enough else None)


def _ranked(ordered: Sequence[float], rank: float) -> float:
    """The value of a rank, counted from 1; the first for lower ones."""
    below = max(math.floor(rank), 1)
    if below >= len(ordered):
        return ordered[-1]
    part = max(rank - below, 0.0)
    return (1 - part) * ordered[below - 1] + part * ordered[below]


def save_profile(folder: Path, profile: LatencyProfile) -> Path:
    path = folder / f"{_check_name(profile.name)}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(asdict(profile), indent=2) + "\n")
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    return path


def find_profile(name: str, folder: Path | None) -> LatencyProfile | None:
    """A profile of the workspace wins over the built-in one of the same name."""
    if folder is not None and _NAME.fullmatch(name) and (folder / f"{name}.json").is_file():
        return _load(folder / f"{name}.json")
    return built_in_profiles().get(name)


def list_profiles(folder: Path | None) -> dict[str, LatencyProfile]:
    files = sorted(folder.glob("*.json")) if folder is not None and folder.is_dir() else []
    return built_in_profiles() | {path.stem: _load(path) for path in files}


def _load(path: Path) -> LatencyProfile:
    try:
        fields = parse_json(read_regular(path, _LARGEST_FILE), 20 * _LARGEST_FILE)
        profile = LatencyProfile(
            name=path.stem,
            soc=int(fields["soc"]),
            a_us=float(fields["a_us"]),
            b=float(fields["b"]),
            models=int(fields["models"]),
            error_percent=float(fields["error_percent"]),
            source=str(fields["source"]),
            intervals=_intervals(fields.get("intervals", {})),
            range_us=_range_us(fields.get("range_us")),
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
        raise BadInput(reason=f"{path} is not a device profile: calibrate again") from None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    if not _makes_sense(profile):
        raise BadInput(reason=f"{path} has constants that make no sense: calibrate again")
    return profile


def _makes_sense(profile: LatencyProfile) -> bool:
    fastest, slowest = profile.range_us or (0.0, 1.0)
    return (
        0 <= profile.a_us < math.inf
        and 0 < profile.b < math.inf
        and 0 <= profile.error_percent < math.inf
        and 0 <= fastest <= slowest < math.inf
        and all(
            0 < one.low <= one.high < math.inf
            and one.networks >= 1
            and (one.coverage is None or 0 < one.coverage < 1)
            for one in profile.intervals.values()
        )
    )


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        reason = f"a profile cannot be named {name!r}: use lower-case letters, digits and dashes"
        raise BadInput(reason=reason)
    return name


def _check_pairs(pairs: Sequence[Pair]) -> None:
    if not all(math.isfinite(value) and value > 0 for pair in pairs for value in pair):
        raise BadInput(reason="every estimate and every measured time must be above zero")
    different = len({raw for raw, _ in pairs})
    if different < FEWEST_MODELS:
        reason = (
            f"a profile needs {FEWEST_MODELS} or more models of different speed measured on the "
            f"board; there are {different}. Fewer give constants that change with every model"
        )
        raise BadInput(reason=reason)


def _fit(pairs: Sequence[Pair]) -> Pair:
    """a ≥ 0 and b > 0 with the least Huber loss of the logarithms' differences."""
    largest = max(raw for raw, _ in pairs)
    ratios = [0.0, *(largest * 10 ** (step / 20) for step in range(-80, 41))]
    best = min(ratios, key=lambda ratio: _loss(ratio, pairs))
    width = max(best * 0.13, ratios[1])
    for _ in range(40):
        nearby = [max(0.0, best - width), best, best + width]
        best = min(nearby, key=lambda ratio: _loss(ratio, pairs))
        width *= 0.7
    b = math.exp(_centre(_logarithms(best, pairs)))
    return best * b, b


def _logarithms(ratio: float, pairs: Sequence[Pair]) -> list[float]:
    return [math.log(measured) - math.log(raw + ratio) for raw, measured in pairs]


def _loss(ratio: float, pairs: Sequence[Pair]) -> float:
    values = _logarithms(ratio, pairs)
    centre = _centre(values)
    sizes = [abs(value - centre) for value in values]
    return sum(s * s / 2 if s <= _HUBER else _HUBER * (s - _HUBER / 2) for s in sizes)


def _centre(values: Sequence[float]) -> float:
    """Huber's mean: starts at the median, outliers pull with bounded force."""
    centre = statistics.median(values)
    for _ in range(20):
        weights = [1.0 if abs(v - centre) <= _HUBER else _HUBER / abs(v - centre) for v in values]
        centre = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    return centre


# The corrections of a profile: what the compiler's estimate misses, by shares of a graph.
#
# A profile predicts (a + b · estimate) · exp(sum of weight · term). Every term is a share between 0
# and 1, so a graph unlike any of the fit is corrected by no more than the weights allow. The weight
# of the constant makes the correction of an average network of the fit 1.


_BYTES_PER_US = 30_000.0  # of the memory outside the chip: tens of gigabytes per second
_MACS_PER_US = 5_000_000.0  # of the matrix unit
_OPS_PER_US = 1.0
_MAP_BYTES = 2.0**22  # about half of the processor's own memory

TRAFFIC = ("input_fill_bytes", "fill_bytes", "spill_bytes", "output_spill_bytes")


def terms_of(raw_us: float, features: Mapping[str, float]) -> dict[str, float]:
    """By name; `features` are those of the graph and the compiler's own traffic."""

    def bytes_of(*kinds: str) -> float:
        return sum(features.get(f"bytes_{kind}", 0.0) for kind in kinds)

    moved = max(1.0, sum(value for name, value in features.items() if _is_kind(name)))
    macs = max(1.0, features.get("macs", 0.0))
    traffic = sum(features.get(name, 0.0) for name in TRAFFIC)
    return {
        "constant": 1.0,
        "ops": _share(features.get("ops", 0.0), _OPS_PER_US * raw_us),
        "external_traffic": _share(traffic, _BYTES_PER_US * raw_us),
        "weights": _share(features.get("weight_bytes", 0.0), _BYTES_PER_US * raw_us),
        "macs": _share(macs, _MACS_PER_US * raw_us),
        "large_map": _share(features.get("largest_map_bytes", 0.0), _MAP_BYTES),
        "depthwise": bytes_of("depthwise") / moved,
        "grouped": features.get("macs_grouped", 0.0) / macs,
        "few_channels": bytes_of("few_channels") / moved,
        "transposed": bytes_of("transposed") / moved,
        "matmul": bytes_of("matmul") / moved,
        "shuffle": bytes_of("shuffle") / moved,
        "dense_concat": bytes_of("dense_concat") / moved,
        "concat": bytes_of("concat", "cut") / moved,
        "resize": bytes_of("resize_nearest", "resize_linear", "resize_cubic") / moved,
        "normalisation": bytes_of("softmax", "norm", "reduce") / moved,
        "rearranged": bytes_of("transpose", "reshape", "space") / moved,
        "elementwise": bytes_of("elementwise", "activation") / moved,
    }


def correction(weights: Mapping[str, float], raw_us: float, features: Mapping[str, float]) -> float:
    """The factor on a + b · estimate."""
    if not weights or not features:
        return 1.0
    terms = terms_of(raw_us, features)
    return math.exp(sum(weight * terms[name] for name, weight in weights.items()))


def _is_kind(name: str) -> bool:
    """Bytes of a kind of layer: each layer is in one of them, and in no other sum."""
    extra = ("bytes_few_channels", "bytes_shuffle", "bytes_dense_concat")
    return name.startswith("bytes_") and name not in extra


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part > 0 else 0.0


# The number format of a quantized model, by which its profile is chosen.


MIXED = "mixed"
_MOVING = ("QuantizeLinear", "DequantizeLinear", "Transpose", "Reshape", "Squeeze", "Unsqueeze")


def form_of(model: ModelProto) -> str:
    """`w8a8`, `w8a16`, `float` where nothing is quantized, or `mixed` where activations of 8 and of
    16 bits or weights of 4 bits occur: no published figures are of such models."""
    share = wide_share(model)
    if share is None:
        return "float"
    if 0 < share < 1 or _has_narrow_weights(model):
        return MIXED
    return "w8a16" if share else "w8a8"


def wide_share(model: ModelProto) -> float | None:
    """The share of quantized activations with 16 bits; None: there are no quantized ones. Inputs
    count only where there is nothing else: pixels have 8 bits in every format."""
    from onnx import TensorProto

    zero_points = {one.name: one.data_type for one in model.graph.initializer}
    from_inputs = {source.name for source in model.graph.input}
    inputs: list[bool] = []
    inner: list[bool] = []
    for node in model.graph.node:
        is_given = bool(node.input) and node.input[0] in from_inputs
        if is_given and node.op_type in _MOVING:
            from_inputs.update(node.output)
        if node.op_type == "QuantizeLinear":
            kind = zero_points.get(node.input[2]) if len(node.input) > 2 else TensorProto.UINT8
            is_wide = kind in (TensorProto.UINT16, TensorProto.INT16)
            (inputs if is_given else inner).append(is_wide)
    counted = inner or inputs
    return sum(counted) / len(counted) if counted else None


def _has_narrow_weights(model: ModelProto) -> bool:
    from onnx import TensorProto

    narrow = (TensorProto.INT4, TensorProto.UINT4)
    return any(one.data_type in narrow for one in model.graph.initializer)


# What a latency model may know of a graph besides the compiler's estimate.
#
# Counts, MACs and bytes of the graph that is deployed, by what the chip does well or badly. All are
# plain sums over the graph's layers; quantizers are looked through, and weights are no activations.
# Bytes of activations are as deployed: one byte per element, or two where a tensor has 16 bits.


FEW_CHANNELS = 32  # what the chip's matrix unit computes at once

_QUANTIZERS = frozenset(("QuantizeLinear", "DequantizeLinear"))
_LARGEST_SETTING = 4096  # elements; larger constants are weights, which no shape depends on
_LARGE_MAP = 4 * 2**20  # bytes; half of the memory that the chip's processor has of its own
_GROUPS = {
    "elementwise": ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Sum", "Where"),
    "activation": (
        "Clip",
        "Elu",
        "Erf",
        "Exp",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Log",
        "PRelu",
        "Relu",
        "Sigmoid",
        "Softplus",
        "Sqrt",
        "Tanh",
    ),
    "concat": ("Concat",),
    "cut": ("Gather", "GatherElements", "GatherND", "Pad", "Slice", "Split"),
    "pool": ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"),
    "reduce": ("ArgMax", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "TopK"),
    "reshape": ("Expand", "Flatten", "Reshape", "Squeeze", "Tile", "Unsqueeze"),
    "space": ("DepthToSpace", "SpaceToDepth"),
    "softmax": ("LogSoftmax", "Softmax"),
    "norm": (
        "BatchNormalization",
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "LpNormalization",
        "RMSNormalization",
    ),
    "transpose": ("Transpose",),
}
_RESIZES = ("nearest", "linear", "cubic")
_PRODUCTS = ("conv", "depthwise", "grouped", "transposed", "matmul")
_KINDS = (*_PRODUCTS, *_GROUPS, *map("resize_{}".format, _RESIZES), "other")

FEATURES = (
    "ops",
    "depth",
    *map("count_{}".format, _KINDS),
    *map("bytes_{}".format, _KINDS),
    "macs",
    *map("macs_{}".format, _PRODUCTS),
    "macs_few_channels",
    "macs_attention",
    "bytes_few_channels",
    "count_shuffle",
    "bytes_shuffle",
    "bytes_dense_concat",
    "activation_bytes",
    "largest_map_bytes",
    "weight_bytes",
    "input_bytes",
    "output_bytes",
)


def features_of(model: ModelProto) -> dict[str, float]:
    """Every name of `FEATURES` for the graph that is deployed, quantized or float."""
    totals: Counter[str] = Counter()
    for layer in _layers(model):
        totals["ops"] += 1
        totals["depth"] = max(totals["depth"], layer.depth)
        totals[f"count_{layer.kind}"] += 1
        totals[f"bytes_{layer.kind}"] += layer.traffic
        totals["activation_bytes"] += layer.given
        totals["largest_map_bytes"] = max(totals["largest_map_bytes"], layer.given)
        if layer.kind in _PRODUCTS:
            totals["macs"] += layer.macs
            totals[f"macs_{layer.kind}"] += layer.macs
        if layer.has_few_channels:
            totals["macs_few_channels"] += layer.macs
            totals["bytes_few_channels"] += layer.traffic
        if layer.is_attention:
            totals["macs_attention"] += layer.macs
        if layer.is_shuffle:
            totals["count_shuffle"] += 1
            totals["bytes_shuffle"] += layer.traffic
        if layer.concat_chain > 1:
            totals["bytes_dense_concat"] += layer.traffic
    totals["weight_bytes"] = sum(_size(t.data_type, t.dims) for t in _weights(model.graph))
    for end, values in (("input_bytes", model.graph.input), ("output_bytes", model.graph.output)):
        for value in values:
            kind = value.type.tensor_type
            totals[end] += _size(kind.elem_type, [dim.dim_value for dim in kind.shape.dim])
    return {name: float(totals[name]) for name in FEATURES}


def kind_of(features: Mapping[str, float]) -> str:
    """The kind of network by its graph, since an interval may differ by kind: `attention`
    (products of activations), `large-map` (a map that the chip's own memory does not hold),
    `depthwise`, or `convolution`."""
    macs = max(features.get("macs", 0.0), 1.0)
    if features.get("macs_attention", 0.0) > 0.005 * macs:
        return "attention"
    if features.get("largest_map_bytes", 0.0) > _LARGE_MAP:
        return "large-map"
    if features.get("macs_depthwise", 0.0) > 0.02 * macs:
        return "depthwise"
    return "convolution"


@dataclass(frozen=True)
class _Layer:
    """A node that computes something of an input. `taken` and `given` are bytes of activations."""

    kind: str
    macs: int
    taken: int
    given: int
    depth: int
    has_few_channels: bool = False
    is_attention: bool = False
    is_shuffle: bool = False
    concat_chain: int = 0

    @property
    def traffic(self) -> int:
        return self.taken + self.given


def _layers(model: ModelProto) -> Iterator[_Layer]:
    skeleton, weights = _skeleton(model)
    shapes = shapes_of(skeleton.graph)
    makers = {name: node for node in skeleton.graph.node for name in node.output}
    width = _Widths(skeleton.graph)
    depths: dict[str, int] = {}
    chains: dict[str, int] = {}
    for node, counted in zip(skeleton.graph.node, count_layers(skeleton), strict=True):
        depth = max((depths.get(name, 0) for name in node.input), default=0)
        if node.op_type in _QUANTIZERS or node.output[0] in weights:
            depths.update(dict.fromkeys(node.output, depth))
            continue
        depths.update(dict.fromkeys(node.output, depth + 1))
        kind = _kind(node, shapes)
        if kind == "concat":
            before = (chains.get(_made_as(name, makers), 0) for name in node.input)
            chains[node.output[0]] = 1 + max(before, default=0)
        activations = [name for name in node.input if name and name not in weights]
        yield _Layer(
            kind=kind,
            macs=counted.macs,
            taken=width.of(node) * _elements(activations, shapes),
            given=width.of(node) * _elements(node.output, shapes),
            depth=depth + 1,
            has_few_channels=_has_few_channels(node, kind, shapes),
            is_attention=kind == "matmul" and len(activations) > 1,
            is_shuffle=_is_shuffle(node, makers),
            concat_chain=chains.get(node.output[0], 0),
        )


class _Widths:
    """Bytes per element of what a layer computes: by its quantizer; two in a float graph."""

    def __init__(self, graph: GraphProto) -> None:
        from onnx import TensorProto

        wide = (TensorProto.INT16, TensorProto.UINT16)
        kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
        quantizers = [node for node in graph.node if node.op_type in _QUANTIZERS]
        self._default = 1 if quantizers else 2
        self._widths = {
            name: 2 if kinds.get(node.input[2]) in wide else 1
            for node in quantizers
            if len(node.input) > 2
            for name in (node.input[0], node.output[0])
        }

    def of(self, node: NodeProto) -> int:
        """By its outputs; by its first input where nothing quantizes these."""
        for names in (node.output, node.input[:1]):
            widths = [self._widths[name] for name in names if name in self._widths]
            if widths:
                return max(widths)
        return self._default


def _skeleton(model: ModelProto) -> tuple[ModelProto, set[str]]:
    """The graph with the shape of every tensor and without its weights, which may be large; and
    the names of the weights and of what is made of them alone. Quantizers of 16 bits can be an
    extension whose shapes ONNX does not know: here they are the standard ones."""
    import onnx
    from onnx import helper

    source = model.graph
    graph = helper.make_graph(source.node, source.name or "graph", source.input, source.output)
    graph.value_info.extend(source.value_info)
    for tensor in source.initializer:
        if math.prod(tensor.dims) <= _LARGEST_SETTING:
            graph.initializer.append(tensor)
        else:
            stand_in = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(stand_in)
    weights = {"", *(tensor.name for tensor in source.initializer)}
    for node in graph.node:
        if node.op_type in _QUANTIZERS:
            node.domain = ""
        if weights.issuperset(node.input):
            weights.update(node.output)
    made = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return onnx.shape_inference.infer_shapes(made, data_prop=True), weights


def _kind(node: NodeProto, shapes: Mapping[str, Shape]) -> str:
    if node.op_type == "Conv":
        groups = next((a.i for a in node.attribute if a.name == "group"), 1)
        if groups == 1:
            return "conv"
        return "depthwise" if shapes[node.input[1]][1] == 1 else "grouped"
    if node.op_type == "ConvTranspose":
        return "transposed"
    if node.op_type in ("Einsum", "Gemm", "GRU", "LSTM", "MatMul"):
        return "matmul"
    if node.op_type in ("Resize", "Upsample"):
        mode = next((a.s.decode() for a in node.attribute if a.name == "mode"), "nearest")
        return f"resize_{mode}" if mode in _RESIZES else "other"
    return next((group for group, kinds in _GROUPS.items() if node.op_type in kinds), "other")


def _has_few_channels(node: NodeProto, kind: str, shapes: Mapping[str, Shape]) -> bool:
    if kind not in ("conv", "transposed"):
        return False
    return min(shapes[node.input[1]][:2]) < FEW_CHANNELS


def _is_shuffle(node: NodeProto, makers: Mapping[str, NodeProto]) -> bool:
    """Channels in groups, and the groups swapped, between two reshapes."""
    if node.op_type != "Transpose":
        return False
    order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
    before = makers.get(_made_as(node.input[0], makers))
    return order == [0, 2, 1, 3, 4] and before is not None and before.op_type == "Reshape"


def _made_as(name: str, makers: Mapping[str, NodeProto]) -> str:
    """The tensor as its layer made it, before it was quantized."""
    while (node := makers.get(name)) is not None and node.op_type in _QUANTIZERS:
        name = node.input[0]
    return name


def _weights(graph: GraphProto) -> Iterator[TensorProto]:
    """Constants except settings of a few whole numbers: shapes, scales, zero points."""
    return (tensor for tensor in graph.initializer if math.prod(tensor.dims) > 8)


def _elements(names: Iterable[str], shapes: Mapping[str, Shape]) -> int:
    return sum(math.prod(shapes[name]) for name in names if name in shapes)


def _size(kind: int, sides: Iterable[int]) -> int:
    """Bytes as deployed: floats have two on the chip."""
    from onnx import TensorProto, helper

    width = 2 if kind == TensorProto.FLOAT else helper.tensor_dtype_to_np_dtype(kind).itemsize
    return int(math.prod(sides)) * int(width)
