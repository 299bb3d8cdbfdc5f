"""The dataset of an experiment: its parts, classes and some of its images, where it is on this
machine.

Files of a dataset are not trusted: images are decoded one at a time, checked by the tasks' own
reader, and drawn again; only those that the page names are ever served. What is counted from the
content of files is counted in a sample.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from edgeloop._util.redact import redact
from edgeloop.errors import BadInput, EdgeloopError, NotFound
from edgeloop.models.catalog import RANDOM_INPUTS, read_settings
from edgeloop.operate.datasets import dataset_root, fetched_copy, local_datasets
from edgeloop.settings import cache_folder
from edgeloop.view.portal.shapes import Frame
from edgeloop.view.portal.state import Portal, frame_of

if TYPE_CHECKING:
    from PIL import Image

    from edgeloop.tasks import CountsPixels, DatasetEntry

SHOWN = 24  # images
SIDE = 160  # of a thumbnail, at most
SAMPLED = 200  # label images whose pixels are counted
SAMPLED_S = 3.0
MOST_CLASSES = 200
MOST_NAMED = 50  # datasets to choose from
FRESH_S = 30.0
OF_SETTINGS = "settings"


@dataclass(frozen=True)
class DatasetClass:
    """`count` is in the unit of the view, `images` those that have the class."""

    name: str
    count: int
    images: int
    share: float


@dataclass(frozen=True)
class Thumbnail:
    address: str
    name: str
    part: str
    about: str


@dataclass(frozen=True)
class DatasetView:
    """`place` says in words where it is, `trouble` why it cannot be shown. `counted` is how many
    images the classes were counted in, `unit` what they are counted in."""

    frame: Frame
    name: str
    names: tuple[str, ...]
    place: str = ""
    task: str = ""
    trouble: str = ""
    images: int = 0
    calibration: int = 0
    test: int = 0
    classes: tuple[DatasetClass, ...] = ()
    left_out: int = 0
    unit: str = ""
    counted: int = 0
    notes: tuple[str, ...] = ()
    thumbnails: tuple[Thumbnail, ...] = ()


@dataclass(frozen=True)
class _Chosen:
    name: str
    names: tuple[str, ...]
    folder: Path | None
    task: str
    place: str
    trouble: str = ""


@dataclass(frozen=True)
class _Content:
    """What is kept of a dataset, which may have a million images: those on the page, by their
    places."""

    version: str
    total: int
    shown: Mapping[int, DatasetEntry]
    classes: tuple[DatasetClass, ...]
    unit: str
    counted: int
    notes: tuple[str, ...]


def dataset_view(portal: Portal, experiment: str | None, name: str = "") -> DatasetView:
    """Without `name`, the dataset that the experiment names, else that of the settings, else the
    first one of the project."""
    frame = frame_of(portal, experiment)
    chosen = _chosen(portal, experiment, name)
    view = DatasetView(frame, chosen.name, chosen.names, chosen.place, chosen.task, chosen.trouble)
    if chosen.folder is None:
        return view
    try:
        content = _content(portal, chosen.folder, chosen.task)
    except EdgeloopError as error:
        trouble = _without(chosen.folder, str(error))
        return DatasetView(frame, chosen.name, chosen.names, chosen.place, chosen.task, trouble)
    from edgeloop.tasks import boundary

    first = boundary(content.total)
    query = {"experiment": experiment or "", "name": chosen.name, "version": content.version}
    told = urlencode({key: text for key, text in query.items() if text})
    return DatasetView(
        frame=frame,
        name=chosen.name,
        names=chosen.names,
        place=chosen.place,
        task=chosen.task,
        images=content.total,
        calibration=first,
        test=content.total - first,
        classes=content.classes[:MOST_CLASSES],
        left_out=max(0, len(content.classes) - MOST_CLASSES),
        unit=content.unit,
        counted=content.counted,
        notes=content.notes,
        thumbnails=tuple(
            Thumbnail(
                f"/api/v1/dataset/images/{number}.jpg?{told}",
                _relative(chosen.folder, entry.image),
                "calibration" if number < first else "test",
                _about(content, entry),
            )
            for number, entry in content.shown.items()
        ),
    )


def thumbnail(portal: Portal, experiment: str | None, name: str, number: int) -> tuple[bytes, str]:
    """A JPEG of one of the images that the page shows, and the version of the dataset. One that
    cannot be decoded is a grey field with a cross. Raises NotFound."""
    chosen = _chosen(portal, experiment, name)
    content = _content(portal, chosen.folder, chosen.task) if chosen.folder else None
    if content is None or number not in content.shown:
        raise NotFound(reason=f"The page shows no image {number} of this dataset.")
    path = content.shown[number].image
    key = ("thumbnail", str(path), content.version)

    def made() -> bytes:
        with portal.decoding:  # one at a time: a decoded image may take 320 MB
            return _drawn(path)

    return portal.thumbnails.get(key, made), content.version


# Which dataset


def _chosen(portal: Portal, experiment: str | None, name: str) -> _Chosen:
    workspace = portal.workspace_of(experiment)
    key = ("dataset", workspace.experiment, name, int(time.monotonic() / FRESH_S))
    return portal.cache.get(key, lambda: _choose(portal, experiment, name))


def _choose(portal: Portal, experiment: str | None, name: str) -> _Chosen:
    workspace = portal.workspace_of(experiment)
    settings = workspace.settings
    of_experiment = read_settings(workspace.store, workspace.experiment)
    task = of_experiment.task or settings.task
    named = of_experiment.dataset
    own = OF_SETTINGS if settings.dataset else ""
    local = local_datasets(settings.project)[:MOST_NAMED]
    names = tuple(dict.fromkeys(text for text in (named, own, *local) if text))
    if name and name not in names:
        raise NotFound(reason=f"There is no dataset {name!r} here.")
    chosen = name or (names[0] if names else "")
    if not chosen:
        trouble = "This experiment names no dataset, and the project has none."
        return _Chosen("", names, None, task, "", trouble)
    if chosen == RANDOM_INPUTS:
        trouble = "The experiment asks for random inputs, so there are no images."
        return _Chosen(chosen, names, None, task, "", trouble)
    if chosen == named:
        return _of_store(portal, named, names, task)
    folder = Path(settings.dataset).expanduser() if chosen == OF_SETTINGS else None
    if folder is not None:
        folder = settings.project / folder
        place = f"the folder {folder.name}, which the settings of the portal name"
    else:
        folder = dataset_root(settings.project) / chosen
        place = f"the folder {chosen} of the project"
    if not folder.is_dir():
        trouble = f"The dataset is not on this machine: {folder.name} is no folder here."
        return _Chosen(chosen, names, None, task, place, trouble)
    return _Chosen(chosen, names, folder, task, place)


def _of_store(portal: Portal, named: str, names: tuple[str, ...], task: str) -> _Chosen:
    """The copy that runners here fetched, else the folder of the same name in the project."""
    fetched = fetched_copy(named)
    if fetched is not None:
        return _Chosen(named, names, fetched, task, "as runners of this machine fetched it")
    project = portal.workspace.settings.project
    name, _, version = named.partition("@")
    if name in local_datasets(project):
        place = f"the folder {name} of the project, which may differ from version {version}"
        return _Chosen(named, names, dataset_root(project) / name, task, place)
    remedy = f"'edgeloop data pull {named}' fetches it"
    trouble = f"The dataset {named} is not on this machine: {remedy}."
    return _Chosen(named, names, None, task, "", trouble)


# Its content


def _content(portal: Portal, folder: Path, task_name: str) -> _Content:
    """Read once as long as its folder does not change, and again from time to time."""
    try:
        state = folder.stat()
    except OSError as error:
        raise BadInput(reason=f"the dataset cannot be read: {error.strerror}") from None
    key = ("dataset", str(folder), task_name, state.st_mtime_ns, int(time.monotonic() / 600))
    return portal.cache.get(key, lambda: _read(folder, task_name))


def _read(folder: Path, task_name: str) -> _Content:
    from edgeloop.tasks import Browsable, CountsPixels, open_task

    task = open_task(task_name, folder, cache_folder() / "prepared")
    if not isinstance(task, Browsable):
        raise BadInput(reason=f"datasets for the task {task_name} hold no images to show")
    entries = task.entries()
    names = [redact(str(name)) for name in task.classes]
    if isinstance(task, CountsPixels):
        classes, counted, notes = _pixels(folder, task, entries, names)
    else:
        classes, counted, notes = _classes(entries, names), len(entries), ()
    content = repr((str(folder), task_name, [entry.image.name for entry in entries[:1000]]))
    version = hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return _Content(
        version=version,
        total=len(entries),
        shown={place: entries[place] for place in _shown(len(entries))},
        classes=classes,
        unit=task.counts_what,
        counted=counted,
        notes=notes,
    )


def _shown(total: int) -> list[int]:
    """Places of the images on the page: half from each part."""
    from edgeloop.tasks import boundary

    if total <= SHOWN:
        return list(range(total))
    first = boundary(total)
    calibration = list(range(min(first, SHOWN // 2)))
    return [*calibration, *range(max(first, total - SHOWN + len(calibration)), total)]


def _classes(entries: Sequence[DatasetEntry], names: Sequence[str]) -> tuple[DatasetClass, ...]:
    if not names:
        return ()
    counts, images = Counter[int](), Counter[int]()
    for entry in entries:
        counts.update(entry.classes)
        images.update(set(entry.classes))
    return _listed(names, counts, images)


def _pixels(
    folder: Path, task: CountsPixels, entries: Sequence[DatasetEntry], names: Sequence[str]
) -> tuple[tuple[DatasetClass, ...], int, tuple[str, ...]]:
    """Of label images at even distances, for a few seconds at most."""
    counts, images = Counter[int](), Counter[int]()
    damaged: list[str] = []
    step = max(1, len(entries) // SAMPLED)
    began, counted = time.monotonic(), 0
    for entry in entries[::step][:SAMPLED]:
        if time.monotonic() - began > SAMPLED_S:
            break
        try:
            pixels = task.pixels(entry)
        except EdgeloopError:
            damaged.append(_relative(folder, entry.label or entry.image))
            continue
        counted += 1
        counts.update(dict(enumerate(pixels)))
        images.update(number for number, count in enumerate(pixels) if count)
    notes: tuple[str, ...] = ()
    if damaged:
        looked_at = counted + len(damaged)
        notes = (
            f"{len(damaged)} of {looked_at} label images cannot be read, such as {damaged[0]}.",
        )
    return _listed(names, counts, images), counted, notes


def _listed(
    names: Sequence[str], counts: Counter[int], images: Counter[int]
) -> tuple[DatasetClass, ...]:
    total = sum(counts.values()) or 1
    return tuple(
        DatasetClass(name, counts[number], images[number], counts[number] / total)
        for number, name in enumerate(names)
    )


def _about(content: _Content, entry: DatasetEntry) -> str:
    """The classes of an image, where they are known without decoding it."""
    found = Counter(entry.classes)
    texts = [
        content.classes[n].name + (f" × {count}" if count > 1 else "")
        for n, count in found.most_common(3)
        if n < len(content.classes)
    ]
    return ", ".join(texts) + (" …" if len(found) > len(texts) else "")


def _relative(folder: Path, path: Path) -> str:
    name = path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
    return redact(name.as_posix().encode("utf-8", "replace").decode())


def _without(folder: Path, sentence: str) -> str:
    """An error without where this machine keeps the dataset."""
    return redact(sentence.replace(f"{folder}/", "").replace(str(folder), folder.name))


def _drawn(path: Path) -> bytes:
    from PIL import Image

    from edgeloop.tasks import load

    try:
        picture = load(path)
        picture.thumbnail((SIDE, SIDE))
        drawn = picture.convert("RGB")
    except (EdgeloopError, OSError, ValueError, MemoryError):
        drawn = _cross(Image.new("RGB", (SIDE, SIDE), "#8c8c8c"))
    file = io.BytesIO()
    drawn.save(file, "JPEG", quality=82)  # drawn again: nothing else of the file is kept
    return file.getvalue()


def _cross(picture: Image.Image) -> Image.Image:
    from PIL import ImageDraw

    pen = ImageDraw.Draw(picture)
    for line in (((40, 40), (120, 120)), ((120, 40), (40, 120))):
        pen.line(line, fill="#ffffff", width=6)
    return picture
