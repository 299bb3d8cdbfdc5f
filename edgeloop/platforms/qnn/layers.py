"""Cost per layer without a board: the compiler's estimate of growing parts of a graph."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import astuple, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from edgeloop._util.files import make_folder, write_atomic
from edgeloop._util.isolation import WorkerProcess
from edgeloop._util.values import plural
from edgeloop.errors import MemoryExceeded, ModelFailed, ModelRefused
from edgeloop.graph.count import count_layers
from edgeloop.graph.read import shapes_of
from edgeloop.platforms.base import LayerCost, LayerCosts, Measurement

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


# The cost of every layer of one model on one chip, with several processes at once.


_MOST_IN_GROUP = 12

MeasuresModel = Callable[[Path], Measurement]
"""The estimate of a whole quantized model."""


@dataclass(frozen=True)
class Workshop:
    """What the work is done with: `borrow` gives a process for exclusive use."""

    device: str
    soc: int
    is_calibrated: bool
    borrow: Callable[[], AbstractContextManager[WorkerProcess]]
    workers: int
    call_limit_s: float


def model_costs(
    model: Path,
    shop: Workshop,
    measure: MeasuresModel,
    cache: Path | None,
    limit_s: float,
    progress: Progress | None = None,
) -> LayerCosts:
    with TemporaryDirectory(prefix="edgeloop-layers-") as name:
        folder = Path(name).resolve()
        quantized, deployed = folder / "quantized.onnx", folder / "deployed.onnx"
        inspected = _call(
            shop,
            "layers",
            model=str(model.resolve()),
            quantized=str(quantized),
            deployed_as=str(deployed),
        )
        layers = [_layer(*fields) for fields in inspected["layers"]]
        whole = measure(quantized)
        names = [layer.name for layer in layers]

        def time_cut(count: int, copies: int) -> float:
            fields = {"model": str(deployed), "names": names, "soc": shop.soc}
            answer = _call(shop, "prefix", **fields, count=count, copies=copies)
            return float(answer["cycles"])

        cut_times = CutTimes.remembered(cache, f"{inspected['digest']}-{shop.soc}-{_compiler()}")
        missing = attribute_layers(layers, time_cut, cut_times, shop.workers, limit_s, progress)
    total_us = 1e6 * whole.seconds
    costs = layer_costs(layers, cut_times.cuts, cut_times.whole, total_us)
    attributed = tuple(cost for cost in costs if len(cost.members) <= _MOST_IN_GROUP)
    left = [cost for cost in costs if len(cost.members) > _MOST_IN_GROUP]
    reasons = [
        f"{cost.time_us:.3g} µs of the {len(cost.members)} layers from {cost.members[0]!r} to "
        f"{cost.members[-1]!r} could not be told apart"
        for cost in left
    ]
    if missing:
        parts = plural(missing, "more part")
        reasons.append(f"{limit_s:g} s were too short for {parts}: run it again for more detail")
    return LayerCosts(
        shop.device,
        total_us,
        whole.raw_us or 0.0,
        attributed,
        unattributed_us=sum(cost.time_us for cost in left),
        is_calibrated=shop.is_calibrated,
        notes=(*_notes(whole), *reasons),
        compiles=cut_times.compiles,
        missing_ops=whole.missing_ops,
        low_us=None if whole.low_s is None else 1e6 * whole.low_s,
        high_us=None if whole.high_s is None else 1e6 * whole.high_s,
        coverage=whole.coverage,
    )


def _notes(whole: Measurement) -> list[str]:
    """Reasons to doubt the total."""
    said = str(whole.conditions.get("note") or "")
    return [text for text in (said, "" if whole.coverage else whole.basis) if text]


def _layer(
    name: str, operator: str, output: list[int], macs: int, cut_bytes: int | None
) -> GraphLayer:
    return GraphLayer(name, operator, tuple(output), macs, cut_bytes)


def _call(shop: Workshop, work: str, **fields: Any) -> dict[str, Any]:
    with shop.borrow() as process:
        return process.call(f"qnn.{work}", limit_s=shop.call_limit_s, **fields)[0]


def _compiler() -> str:
    try:
        return version("onnxruntime-qnn")
    except PackageNotFoundError:
        return "unknown"


# From the times of prefixes to the cost of layers.
#
# A prefix takes the time of its layers and that of writing its outputs. A second copy of the
# outputs says what writing costs, so the layers up to a cut take `once - (twice - once)`. These
# times should grow with every layer. Where they do not, the compiler merged layers, or writing a
# large tensor was hidden behind other work: then cuts are dropped until they grow, those that write
# much first, and the layers between two cuts that remain are one entry. Nothing is clipped, so the
# sum is the whole.


OUTPUT = "(output)"
_DOUBT = 10.0


@dataclass(frozen=True)
class TimedCut:
    """Cycles of a prefix with one copy of its outputs, and with two."""

    once: float
    twice: float

    @property
    def writing(self) -> float:
        return max(0.0, self.twice - self.once)

    @property
    def layers(self) -> float:
        return self.once - self.writing


def kept_cuts(cuts: Mapping[int, TimedCut], whole: float) -> list[int]:
    """The cuts whose times grow from 0 to the whole: as many as possible, each counted by how sure
    it is."""
    numbers = sorted(number for number, cut in cuts.items() if 0.0 <= cut.layers <= whole)
    sure = {number: whole / (whole + _DOUBT * cuts[number].writing) for number in numbers}
    best: dict[int, tuple[float, int]] = {}
    for place, number in enumerate(numbers):
        before = [
            (best[other][0], other)
            for other in numbers[:place]
            if cuts[other].layers <= cuts[number].layers
        ]
        weight, previous = max(before, default=(0.0, -1))
        best[number] = (weight + sure[number], previous)
    chain: list[int] = []
    last = max(best, key=lambda number: best[number][0], default=-1)
    while last >= 0:
        chain.append(last)
        last = best[last][1]
    return chain[::-1]


def layer_costs(
    layers: Sequence[GraphLayer], cuts: Mapping[int, TimedCut], whole: float, total_us: float
) -> list[LayerCost]:
    """In the order of the graph, and last what writing the outputs costs. Cut number n is behind
    the first n layers."""
    bounds = [0, *kept_cuts(cuts, whole), len(layers)]
    times = [*(cuts[number].layers if number else 0.0 for number in bounds[:-1]), whole]
    costs = []
    for (first, last), (start, end) in zip(pairwise(bounds), pairwise(times), strict=True):
        share = (end - start) / whole if whole else 0.0
        costs.append(_entry(layers[first:last], share * total_us, share))
    return costs if costs[-1].members or costs[-1].time_us else costs[:-1]


def _entry(group: Sequence[GraphLayer], time_us: float, share: float) -> LayerCost:
    """Named after the layer that computes most; of those that compute nothing, the largest."""
    if not group:
        return LayerCost(OUTPUT, "", (), time_us, share)
    main = max(group, key=lambda layer: (layer.macs, math.prod(layer.output)))
    names = tuple(layer.name for layer in group)
    return LayerCost(main.name, main.operator, main.output, time_us, share, names)


# Which prefixes are compiled, in which order, and what is remembered of them.
#
# Why prefixes: the compiler's documented profile has times of whole graphs only, and nothing in it
# says which layer a time belongs to. On chains of equal layers, where adding one to the network is
# the truth, differences of prefixes that end in channel-last bytes were exact to 1 %, apart from
# the first layer. Suffixes were worse, and so were prefixes that end in channel-first tensors, a
# slice or a reduction: the compiler moves what ends a graph into the layers before it. On networks
# whose tensors grow and shrink (inverted bottlenecks, U-Nets) writing the cut tensors hid the
# layers, until it was measured by writing them twice.
#
# The first cuts halve the network; then the part that costs most is halved, and so on. A part that
# costs next to nothing is not looked into. So what matters is known first, and a limit on the time
# costs detail, not truth. Times are remembered by the content of the graph: a run that was killed
# continues where it was.


Progress = Callable[[int, int], None]
TimeCut = Callable[[int, int], float]  # of (number of layers, copies of the outputs), in cycles
_NEXT_TO_NOTHING = 0.002  # of the whole
_METHOD = 1  # part of the name of what is remembered


@dataclass
class CutTimes:
    """What is known of the cuts of a graph. The compiler does not take those `refused`; those that
    `failed` did so on this machine, now."""

    whole: float = 0.0
    cuts: dict[int, TimedCut] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    compiles: int = 0
    path: Path | None = None

    @classmethod
    def remembered(cls, folder: Path | None, digest: str) -> CutTimes:
        """A file that cannot be read is as good as none."""
        if folder is None:
            return cls()
        path = folder / f"{digest}-{_METHOD}.json"
        empty = cls(path=path)
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            stored = json.loads(path.read_text(encoding="utf-8"))
            cuts = {
                int(number): TimedCut(*map(float, two)) for number, two in stored["cuts"].items()
            }
            refused = {int(number) for number in stored["refused"]}
            return cls(float(stored["whole"]), cuts, refused, path=path)
        return empty

    def remember(self) -> None:
        """Where it cannot be written, the next run starts afresh."""
        if self.path is None:
            return
        cuts = {str(number): (cut.once, cut.twice) for number, cut in sorted(self.cuts.items())}
        document = {"whole": self.whole, "cuts": cuts, "refused": sorted(self.refused)}
        with suppress(OSError):
            make_folder(self.path.parent)
            write_atomic(self.path, json.dumps(document))


def attribute_layers(
    layers: Sequence[GraphLayer],
    time_cut: TimeCut,
    cut_times: CutTimes,
    workers: int,
    limit_s: float,
    progress: Progress | None = None,
) -> int:
    """Fill `cut_times` until every part is one layer or costs next to nothing. Returns how
    many cuts the time was too short for."""
    end = time.monotonic() + limit_s
    if not cut_times.whole:
        cut_times.whole = time_cut(0, 1)
        cut_times.compiles += 1
        cut_times.remember()
    possible = {n for n, layer in enumerate(layers, start=1) if layer.cut_bytes is not None}
    possible -= cut_times.refused
    running: dict[Future[TimedCut], int] = {}
    pool = ThreadPoolExecutor(workers)
    try:
        while True:
            while len(running) < workers and time.monotonic() < end:
                number = _next_cut(layers, cut_times, possible, set(running.values()))
                if number is None:
                    break
                running[pool.submit(_both, time_cut, number)] = number
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                _take(cut_times, running.pop(future), future)
            cut_times.remember()
            possible -= cut_times.refused | cut_times.failed
            if progress is not None:
                progress(len(cut_times.cuts), len(possible))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if progress is not None:
        progress(len(possible), len(possible))
    return sum(len(part.cuts) for part in _parts(layers, cut_times, possible, set()))


def _both(time_cut: TimeCut, number: int) -> TimedCut:
    return TimedCut(time_cut(number, 1), time_cut(number, 2))


def _take(cut_times: CutTimes, number: int, future: Future[TimedCut]) -> None:
    """The whole compiles, so a part that does not says nothing of the model."""
    try:
        cut_times.cuts[number] = future.result()
        cut_times.compiles += 2
    except ModelRefused:
        cut_times.refused.add(number)
    except (ModelFailed, MemoryExceeded):
        cut_times.failed.add(number)


@dataclass(frozen=True)
class _Part:
    """The layers between two cuts, and the cuts between them that could be tried."""

    cost: float
    cuts: tuple[int, ...]

    def middle(self, layers: Sequence[GraphLayer]) -> int:
        """Of the inner half, the cut that writes least: it is the surest."""
        quarter = len(self.cuts) // 4
        inner = self.cuts[quarter : len(self.cuts) - quarter]
        centre = (inner[0] + inner[-1]) / 2
        return min(inner, key=lambda n: (layers[n - 1].cut_bytes or 0, abs(n - centre)))


def _next_cut(
    layers: Sequence[GraphLayer], cut_times: CutTimes, possible: set[int], running: set[int]
) -> int | None:
    if len(layers) in possible - running - set(cut_times.cuts):
        return len(layers)  # without it the cost of the outputs is not known
    parts = _parts(layers, cut_times, possible, running)
    costliest = max(parts, key=lambda part: part.cost, default=None)
    return None if costliest is None else costliest.middle(layers)


def _parts(
    layers: Sequence[GraphLayer], cut_times: CutTimes, possible: set[int], running: set[int]
) -> list[_Part]:
    """Those worth looking into. A cut that is being compiled stands between its neighbours."""
    end = len(layers) + 1
    times = {0: 0.0, end: cut_times.whole, **{n: cut.layers for n, cut in cut_times.cuts.items()}}
    sure = sorted(times)
    for number in running:
        below = max(n for n in sure if n < number)
        above = min(n for n in sure if n > number)
        ahead = (number - below) / (above - below)
        times[number] = times[below] + ahead * (times[above] - times[below])
    parts = []
    for first, last in pairwise(sorted(times)):
        cost = abs(times[last] - times[first])
        cuts = sorted(n for n in possible if first < n < last)
        if cuts and cost > _NEXT_TO_NOTHING * cut_times.whole:
            parts.append(_Part(cost, tuple(cuts)))
    return parts


# Prefixes of a deployed graph: its first layers, ended so that the compiler takes them.
#
# A cut behind a layer has one output for every tensor that later layers read, so branches need no
# pairing. Only quantized tensors are written: a cut that would write anything else does not exist,
# and neither does one between layers that the quantizer made one. Tensors of images leave channel
# last, as they do from a deployed graph: channel-first outputs cost more than most layers. `copies`
# writes every one of them as often; what a second copy adds is what the first one costs.


_CONVERTING = ("QuantizeLinear", "DequantizeLinear")
_TO_CHANNEL_LAST = (0, 2, 3, 1)
_SPATIAL = (
    "Conv",
    "ConvTranspose",
    "Resize",
    "DepthToSpace",
    "SpaceToDepth",
    "BatchNormalization",
    "AveragePool",
    "MaxPool",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "InstanceNormalization",
)
_RESHAPING = ("MatMul", "Gemm", "Reshape", "Transpose", "Einsum", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class GraphLayer:
    """`cut_bytes` is what a cut behind this layer writes; None where there can be no cut."""

    name: str
    operator: str
    output: tuple[int, ...]
    macs: int
    cut_bytes: int | None = None


class Prefixes:
    """`names` are the layers of the graph before it was deployed: what deployment put before them
    belongs to the first layer, and what it put behind them to the outputs."""

    def __init__(self, model: ModelProto, names: Collection[str]) -> None:
        self._model = model
        self._makers = {name: node for node in model.graph.node for name in node.output}
        self._constants = {tensor.name for tensor in model.graph.initializer}
        self._inputs = {source.name for source in model.graph.input}
        self._outputs = [output.name for output in model.graph.output]
        self._shapes = shapes_with_quantized(model)
        layers = [node for node in model.graph.node if node.op_type not in _CONVERTING]
        self._nodes = [node for node in layers if node.name in names]
        self._ranks = self._ranked()
        self._images = self._found_images()

    def layers(self) -> list[GraphLayer]:
        macs = self._macs()
        layers = []
        for count, node in enumerate(self._nodes, start=1):
            shape = self._shapes.get(node.output[0], ())
            crossing = self._crossing(count)
            size = None if crossing is None else sum(self._bytes(name) for name in crossing)
            layers.append(
                GraphLayer(node.name, node.op_type, shape, macs.get(node.name, 0), size or None)
            )
        return layers

    def cut(self, count: int, copies: int = 1) -> ModelProto:
        """The first `count` layers; there must be a cut behind them."""
        import onnx
        from onnx import helper

        nodes = [node for node in self._model.graph.node if self._ranks[node.output[0]] <= count]
        outputs = []
        for number, tensor in enumerate(self._crossing(count) or ()):
            for copy in range(copies):
                end, shape = self._end(tensor, f"cut_{number}_{copy}")
                nodes.extend(end)
                kind = self._kind(tensor)
                outputs.append(helper.make_tensor_value_info(end[-1].output[0], kind, shape))
        needed = {output.name for output in outputs}
        body = []
        for node in reversed(nodes):
            if needed.intersection(node.output):
                body.append(node)
                needed.update(node.input)
        graph = self._model.graph
        model = onnx.ModelProto()
        model.ir_version = self._model.ir_version
        model.opset_import.extend(self._model.opset_import)
        model.graph.name = "prefix"
        model.graph.node.extend(reversed(body))
        model.graph.input.extend(source for source in graph.input if source.name in needed)
        model.graph.output.extend(outputs)
        model.graph.initializer.extend(t for t in graph.initializer if t.name in needed)
        return model

    def _macs(self) -> dict[str, int]:
        """Counted on a graph without weights: theirs are the shapes of what they are converted to.
        Without all shapes nothing is known."""
        from onnx import TensorProto, helper

        values = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in self._shapes.items()
        ]
        graph = helper.make_graph(self._nodes, "layers", [], [], value_info=values)
        try:
            return {layer.name: layer.macs for layer in count_layers(helper.make_model(graph))}
        except (KeyError, ValueError, IndexError):
            return {}

    def _ranked(self) -> dict[str, int]:
        """How many layers a tensor needs; conversions need what they convert."""
        positions = {node.name: count for count, node in enumerate(self._nodes, start=1)}
        ranks = dict.fromkeys((*self._inputs, *self._constants, ""), 0)
        for node in self._model.graph.node:
            before = max((ranks.get(name, 0) for name in node.input), default=0)
            rank = positions.get(node.name, before) if node.op_type not in _CONVERTING else before
            is_behind = (
                node.op_type not in _CONVERTING and node.name not in positions and before > 0
            )
            for name in node.output:
                ranks[name] = len(self._nodes) + 1 if is_behind else max(rank, before)
        return ranks

    def _crossing(self, count: int) -> list[str] | None:
        """The quantized tensors that leave the first `count` layers; None if others leave too."""
        crossing: dict[str, None] = {}
        for name in self._outputs:
            if self._ranks[name] <= count and name not in self._inputs:
                crossing[name] = None
        for node in self._model.graph.node:
            if self._ranks[node.output[0]] <= count:
                continue
            for name in node.input:
                if self._ranks.get(name, 0) > count or self._is_given(name):
                    continue
                maker = self._makers[name]
                source = maker.input[0] if maker.op_type == "DequantizeLinear" else name
                if not self._is_given(source):
                    crossing[source] = None
        is_possible = all(self._is_quantized(name) for name in crossing)
        return list(crossing) if crossing and is_possible else None

    def _is_given(self, name: str) -> bool:
        """Without any layer: an input, a weight, or what is made of these alone."""
        return name not in self._makers or self._ranks[name] == 0

    def _is_quantized(self, name: str) -> bool:
        maker = self._makers[name]
        return maker.op_type == "QuantizeLinear" and len(maker.input) > 2 and name in self._shapes

    def _end(self, tensor: str, name: str) -> tuple[list[NodeProto], tuple[int, ...]]:
        from onnx import helper

        maker, shape = self._makers[tensor], self._shapes[tensor]
        scales, domain = list(maker.input[1:]), maker.domain
        moved = f"{name}_float"
        nodes = [
            helper.make_node("DequantizeLinear", [tensor, *scales], [moved], moved, domain=domain)
        ]
        if tensor in self._images:
            first, moved = moved, f"{name}_moved"
            nodes.append(
                helper.make_node("Transpose", [first], [moved], moved, perm=_TO_CHANNEL_LAST)
            )
            shape = tuple(shape[axis] for axis in _TO_CHANNEL_LAST)
        nodes.append(
            helper.make_node("QuantizeLinear", [moved, *scales], [name], name, domain=domain)
        )
        return nodes, shape

    def _found_images(self) -> set[str]:
        """Tensors that are images, channel first: what convolutions, poolings and resizes make,
        and what is computed of these value by value."""
        images: set[str] = set()
        for node in self._model.graph.node:
            if len(self._shapes.get(node.output[0], ())) != 4 or node.op_type in _RESHAPING:
                continue
            if node.op_type in _SPATIAL or images.intersection(node.input):
                images.update(node.output)
        return images

    def _bytes(self, tensor: str) -> int:
        from onnx import TensorProto

        wide = self._kind(tensor) in (TensorProto.UINT16, TensorProto.INT16)
        return math.prod(self._shapes[tensor]) * (2 if wide else 1)

    def _kind(self, tensor: str) -> int:
        zero = self._makers[tensor].input[2]
        return next(int(t.data_type) for t in self._model.graph.initializer if t.name == zero)


class PrefixFiles:
    """Prefixes as files, of the model that was asked for last."""

    def __init__(self) -> None:
        self._open: tuple[str, Prefixes] | None = None

    def file(self, model: str, names: list[str], count: int, copies: int) -> str:
        """In the current folder; of no layers: the model itself."""
        import onnx

        if count == 0:
            return model
        if self._open is None or self._open[0] != model:
            self._open = (model, Prefixes(onnx.load_model(model), names))
        onnx.save_model(self._open[1].cut(count, copies), "prefix.onnx")
        return "prefix.onnx"


def cuttable(quantized: ModelProto, deployed: ModelProto, target: str) -> dict[str, Any]:
    """Write a deployed model so that it can be cut: with all shapes. Returns its layers, and a
    digest of its content."""
    import onnx

    graph = deployed.graph
    taken = {value.name for value in (*graph.input, *graph.output, *graph.value_info)}
    ends = (*quantized.graph.input, *quantized.graph.output)
    graph.value_info.extend(value for value in ends if value.name not in taken)
    onnx.save_model(deployed, target)
    layers = Prefixes(deployed, [node.name for node in quantized.graph.node]).layers()
    digest = hashlib.sha256(deployed.SerializeToString(deterministic=True)).hexdigest()
    return {"layers": [astuple(layer) for layer in layers], "digest": digest}


def name_layers(model: ModelProto) -> None:
    """A name for every layer that has none, or one that another has too."""
    taken: set[str] = set()
    for number, node in enumerate(model.graph.node):
        while not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}_{number}"
        taken.add(node.name)


def shapes_with_quantized(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Conversions keep shapes, but only those of floats are in the file."""
    shapes = dict(shapes_of(model.graph))
    for _ in range(2):  # once from each side
        for node in model.graph.node:
            if node.op_type in _CONVERTING:
                pair = (node.input[0], node.output[0])
                either = [shapes[name] for name in pair if name in shapes]
                shapes.update(dict.fromkeys(pair, either[0]) if either else {})
    return shapes
