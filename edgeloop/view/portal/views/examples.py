"""Examples of a model: test images with their labels, what the float and the quantized model make
of them, and where these two differ. From the files that the tests of some tasks leave.

Nothing of these files reaches a page: they are decoded, checked, and drawn again.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from edgeloop._util.redact import redact
from edgeloop.errors import BadInput, BlobMissing, EdgeloopError, NotFound
from edgeloop.models.files import ModelFile
from edgeloop.store import Blobs
from edgeloop.view.portal.state import Portal
from edgeloop.workspace import Workspace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgeloop.tasks import Examples

    Maps = NDArray[np.uint8]

FLOAT, QUANTIZED = ("f1_onnx", "f1_1k_f"), ("f1_1k", "f1_10k")  # the first ones that fit are shown
TITLES = {
    "input": "Input",
    "label": "Label",
    "float": "Float",
    "quantized": "Quantized",
    "difference": "Difference",
}
_NAMED = 6  # classes in a description
# Where the two differ, on a pale image: lost, won, and wrong both times.
_LOST, _WON, _OTHER = "#D55E00", "#0072B2", "#1B1F24"
_MARKS = (
    ("only float is right", _LOST),
    ("only quantized is right", _WON),
    ("both are wrong", _OTHER),
)
_HATCH = ("#8C8C8C", "#B4B4B4")
_OTHER_IMAGES = (
    "Float and quantized were tested on different images: reset the older test to compare them."
)


@dataclass(frozen=True)
class ExampleColumn:
    """`source` is the stage that the images come from, and what it ran on."""

    name: str
    title: str
    source: str


@dataclass(frozen=True)
class ExampleImage:
    """A PNG at `address`; `note` is what can be said of it in a few words."""

    column: str
    address: str
    text: str
    note: str


@dataclass(frozen=True)
class ClassColour:
    name: str
    colour: str
    is_hatched: bool = False


@dataclass(frozen=True)
class ExamplesView:
    """One row of images per test image, with an image for each column. `classes` are those that
    are in them, `marks` the colours of the difference, with shares of all pixels; `notes` are
    sentences on what is missing."""

    columns: tuple[ExampleColumn, ...]
    rows: tuple[tuple[ExampleImage, ...], ...]
    width: int
    height: int
    classes: tuple[ClassColour, ...]
    marks: tuple[ClassColour, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ExampleSet:
    """Decoded: `answers` and `sources` are by column, float or quantized, and all of the same
    images. `images` are None where a model has no file of them."""

    version: str
    names: Mapping[int, str]
    truth: Maps
    images: Maps | None
    answers: Mapping[str, Maps]
    sources: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """In the order in which they are shown."""
        has_both = len(self.answers) == 2
        there = {"label", *self.answers, *(("difference",) if has_both else ())}
        return tuple(n for n in TITLES if n in there or (n == "input" and self.images is not None))


def examples_view(portal: Portal, experiment: str | None, name: str) -> ExamplesView | None:
    """None for a model without examples. What cannot be read is said in `notes`."""
    try:
        examples = _example_set(portal, experiment, name)
    except EdgeloopError as error:
        return ExamplesView(
            columns=(),
            rows=(),
            width=0,
            height=0,
            classes=(),
            marks=(),
            notes=(redact(str(error)),),
        )
    if examples is None:
        return None
    if isinstance(examples, tuple):
        return ExamplesView(
            columns=(), rows=(), width=0, height=0, classes=(), marks=(), notes=examples
        )
    query = {"experiment": experiment} if experiment else {}
    place = f"/api/v1/models/{quote(name, safe='')}/examples"
    ending = urlencode({**query, "version": examples.version})
    rows = tuple(
        tuple(
            ExampleImage(
                column, f"{place}/{n + 1}/{column}.png?{ending}", *_words(examples, n, column)
            )
            for column in examples.columns
        )
        for n in range(len(examples.truth))
    )
    _, height, width = examples.truth.shape
    return ExamplesView(
        columns=tuple(
            ExampleColumn(c, TITLES[c], examples.sources.get(c, "")) for c in examples.columns
        ),
        rows=rows,
        width=width,
        height=height,
        classes=_legend(examples),
        marks=_used_marks(examples),
        notes=examples.notes,
    )


def example_image(
    portal: Portal, experiment: str | None, name: str, number: int, column: str
) -> tuple[bytes, str]:
    """A PNG, and the version of the examples that it is of. Raises NotFound."""
    examples = _example_set(portal, experiment, name)
    if (
        not isinstance(examples, ExampleSet)
        or number > len(examples.truth)
        or column not in examples.columns
    ):
        raise NotFound(reason=f"{name} has no example {number} with the image {column!r}.")
    return _png(_DRAWN[column](examples, number - 1, column)), examples.version


def _example_set(
    portal: Portal, experiment: str | None, name: str
) -> ExampleSet | tuple[str, ...] | None:
    """Read once as long as the files are the same; only notes where none of them can be used."""
    workspace = portal.workspace_of(experiment)
    files = {
        file.name: file
        for file in workspace.catalog.files(name)
        if file.name.startswith("examples_")
    }
    content = sorted((f.key, f.size, f.modified.timestamp(), f.version) for f in files.values())
    version = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    key = ("examples", workspace.experiment, name, version)
    return portal.examples.get(key, lambda: _read_set(workspace, files, version))


def _read_set(
    workspace: Workspace, files: Mapping[str, ModelFile], version: str
) -> ExampleSet | tuple[str, ...] | None:
    from edgeloop.tasks import example_files, read_examples

    notes: dict[str, str] = {}
    by_stage: dict[str, Examples | None] = {}

    def read(stage: str) -> Examples | None:
        if stage not in by_stage:
            file = example_files(stage)[0]
            by_stage[stage] = _tried(workspace.store.blobs, files.get(file), read_examples, notes)
        return by_stage[stage]

    chosen = _chosen(read)
    if not chosen:
        return tuple(notes.values()) or None
    _, first = next(iter(chosen.values()))
    if len(chosen) == 1 and sum(one is not None for one in by_stage.values()) > 1:
        stages = [stage for stage, one in by_stage.items() if one is not None]
        if {*stages} & {*FLOAT} and {*stages} & {*QUANTIZED}:
            notes["other"] = _OTHER_IMAGES
    names: dict[int, str] = {}
    for _, one in chosen.values():
        names |= one.names
    return ExampleSet(
        version=version,
        names={number: redact(name) for number, name in sorted(names.items())},
        truth=first.truth,
        images=_images(workspace.store.blobs, files, first, notes),
        answers={what: one.answers for what, (_, one) in chosen.items()},
        sources={what: _source(stage, one) for what, (stage, one) in chosen.items()},
        notes=tuple(notes.values()),
    )


def _chosen(read: Callable[[str], Examples | None]) -> dict[str, tuple[str, Examples]]:
    """Float and quantized on the same images, else the better one alone."""
    import numpy as np

    for stage in FLOAT:
        for other in QUANTIZED:
            one, two = read(stage), read(other)
            if one and two and one.key == two.key and np.array_equal(one.truth, two.truth):
                return {"float": (stage, one), "quantized": (other, two)}
    for what, stages in (("quantized", QUANTIZED), ("float", FLOAT)):
        for stage in stages:
            if one := read(stage):
                return {what: (stage, one)}
    return {}


def _images(
    blobs: Blobs, files: Mapping[str, ModelFile], examples: Examples, notes: dict[str, str]
) -> Maps | None:
    """Those of any test with the same ones: a store may have kept them once."""
    from edgeloop.tasks import example_files, read_example_images

    problems: dict[str, str] = {}
    for stage in (*FLOAT, *QUANTIZED):
        file = files.get(example_files(stage)[1])
        read = _tried(blobs, file, lambda content: read_example_images(content, examples), problems)
        if read is not None:
            images: Maps = read
            return images
    notes |= problems
    return None


def _tried(
    blobs: Blobs, file: ModelFile | None, read: Callable[[bytes], Any], notes: dict[str, str]
) -> Any:
    """None without the file, or where it cannot be read: then with a note."""
    from edgeloop.tasks import LARGEST_EXAMPLES_BYTES

    if file is None:
        return None
    try:
        return read(blobs.read_range(file.key, 0, LARGEST_EXAMPLES_BYTES + 1))
    except BlobMissing:
        return None
    except BadInput as error:
        notes[file.name] = redact(f"{file.name}: {error}")
        return None


def _source(stage: str, examples: Examples) -> str:
    return redact(f"{stage} on {examples.device}" if examples.device else stage)


# In words


def _words(examples: ExampleSet, number: int, column: str) -> tuple[str, str]:
    """What an image shows, for those who do not see it, and a short note below it."""
    image = f"test image {number + 1}"
    if column == "input":
        return f"Input: {image}", ""
    if column == "label":
        return f"Label of {image}: {_classes_in(examples, examples.truth[number])}", ""
    if column == "difference":
        share = difference_share(examples, number)
        note = "no pixel differs" if share == 0 else f"{_percent(share)} of pixels"
        return f"Where float and quantized differ in {image}: {note}", note
    answers = examples.answers[column][number]
    note = f"{_percent(_share(answers == examples.truth[number], examples, number))} as labelled"
    return f"{TITLES[column]} model on {image}: {_classes_in(examples, answers)}; {note}", note


def difference_share(examples: ExampleSet, number: int) -> float:
    """How much of the pixels that count got another class by quantization."""
    one, two = examples.answers["float"][number], examples.answers["quantized"][number]
    return _share(one != two, examples, number)


def _share(which: Any, examples: ExampleSet, number: int) -> float:
    from edgeloop.tasks import IGNORE

    counted = examples.truth[number] != IGNORE
    return float((which & counted).sum() / max(1, counted.sum()))


def _percent(share: float) -> str:
    return "under 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def _classes_in(examples: ExampleSet, maps: Maps) -> str:
    """The classes of an image, the largest first."""
    import numpy as np

    numbers, counts = np.unique(maps, return_counts=True)
    order = [int(n) for n in numbers[np.argsort(-counts)] if int(n) in examples.names]
    more = f" and {len(order) - _NAMED} more" if len(order) > _NAMED else ""
    return ", ".join(examples.names[n] for n in order[:_NAMED]) + more or "no class"


def _legend(examples: ExampleSet) -> tuple[ClassColour, ...]:
    import numpy as np

    from edgeloop.tasks import IGNORE, class_colour

    present = np.unique(np.concatenate([examples.truth, *examples.answers.values()])).tolist()
    names = {**examples.names, IGNORE: "not counted"}
    return tuple(
        ClassColour(names.get(n, f"class {n}"), class_colour(n), n == IGNORE) for n in present
    )


def _used_marks(examples: ExampleSet) -> tuple[ClassColour, ...]:
    if "difference" not in examples.columns:
        return ()
    from edgeloop.tasks import IGNORE

    counted = max(1, int((examples.truth != IGNORE).sum()))
    return tuple(
        ClassColour(f"{name}, {_percent(float(which.sum()) / counted)}", colour)
        for (name, colour), which in zip(_MARKS, _differences(examples), strict=True)
        if which.any()
    )


# As images


def _input(examples: ExampleSet, number: int, _: str) -> Maps:
    assert examples.images is not None
    pixels: Maps = examples.images[number]
    return pixels


def _coloured(examples: ExampleSet, number: int, column: str) -> Maps:
    """Pixels that do not count are hatched: grey alone could be a class."""
    import numpy as np

    from edgeloop.tasks import IGNORE, class_colours

    maps = (examples.truth if column == "label" else examples.answers[column])[number]
    drawn: Maps = class_colours()[maps]
    rows, columns = np.indices(maps.shape)
    stripes = np.array([_rgb(text) for text in _HATCH], np.uint8)[(rows + columns) // 2 % 2]
    drawn[maps == IGNORE] = stripes[maps == IGNORE]
    return drawn


def _difference(examples: ExampleSet, number: int, _: str) -> Maps:
    """Where the classes differ, on a pale and grey image of what there is to see."""
    import numpy as np

    shape = (*examples.truth.shape[1:], 3)
    grey = np.full(shape, 128.0) if examples.images is None else examples.images[number] * 1.0
    drawn = np.broadcast_to(205 + 0.3 * (grey.mean(axis=2, keepdims=True) - 128), shape)
    drawn = drawn.astype(np.uint8)
    for which, (_name, colour) in zip(_differences(examples), _MARKS, strict=True):
        drawn[which[number]] = _rgb(colour)
    return drawn


_DRAWN: dict[str, Callable[[ExampleSet, int, str], Maps]] = {
    "input": _input,
    "difference": _difference,
    "label": _coloured,
    "float": _coloured,
    "quantized": _coloured,
}


def _differences(examples: ExampleSet) -> tuple[Any, Any, Any]:
    """Of all images, in the order of `_MARKS`; pixels that do not count are in none."""
    from edgeloop.tasks import IGNORE

    truth, one, two = examples.truth, examples.answers["float"], examples.answers["quantized"]
    differs = (one != two) & (truth != IGNORE)
    lost, won = differs & (one == truth), differs & (two == truth)
    return lost, won, differs & ~lost & ~won


def _rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour.removeprefix("#")))


def _png(pixels: Maps) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
