"""What people see in a terminal: lines, JSON, tables that fit, progress, live views, Ctrl-C.

Output to a file or a pipe has every column in full and no colour: it does not depend on the window
that a command was typed in.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop._util.values import close_names, did_you_mean, plural, suggestion

if TYPE_CHECKING:
    from rich.progress import Progress as RichBar
    from rich.progress import ProgressColumn, TaskID
    from rich.status import Status
    from rich.text import Text

    from edgeloop.errors import NoSuchModel
    from edgeloop.node.datasets import Progress
    from edgeloop.store import Value, Values
    from edgeloop.workspace import Workspace


LONGEST_SENTENCE = 1_500
_LONGEST_END = 200
_BATCH = 1_000  # rows of JSON that are written at once


def print_json(rows: Iterable[Mapping[str, object]]) -> None:
    """An array of objects. NaN and infinity, which JSON lacks, become null."""
    separator, texts = "[", (_item(row) for row in rows)
    while batch := ",".join(itertools.islice(texts, _BATCH)):  # a table may be larger than memory
        click.echo(separator + batch, nl=False)
        separator = ","
    click.echo("[]" if separator == "[" else "\n]")


def print_csv(rows: Iterable[Values], target: Path, columns: Sequence[str]) -> None:
    """To a file, which is replaced as a whole, or to stdout, which is `-`."""
    from edgeloop._util.files import replacing
    from edgeloop.errors import LocalFileError
    from edgeloop.models.catalog import write_csv

    if str(target) == "-":
        write_csv(rows, columns, _PrintableLines() if sys.stdout.isatty() else sys.stdout)
        return
    if target.is_dir():
        raise LocalFileError(path=target, reason="is a folder; name a file for the CSV")
    with replacing(target) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        write_csv(rows, columns, file)


class _PrintableLines:
    """A terminal that gets no control characters from rows, as in the table."""

    def write(self, line: str) -> int:
        click.echo(printable(line.removesuffix("\n")))
        return len(line)


def _item(row: Mapping[str, object]) -> str:
    """As a part of an array that is indented."""
    text = json.dumps([_plain(row)], indent=2, ensure_ascii=False)
    return text.removeprefix("[").removesuffix("\n]")


def _plain(item: object) -> object:
    from edgeloop.store import json_safe

    if isinstance(item, Mapping):
        return {name: _plain(inner) for name, inner in item.items()}
    if isinstance(item, list | tuple):
        return [_plain(inner) for inner in item]
    return json_safe(item) if isinstance(item, float) else item


def printable(text: str) -> str:
    """No control characters from a row, a file's name or a board reach the terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)


def one_line(sentence: str) -> str:
    """An error for the terminal. Names of files and tensors are part of it, and may hold anything;
    its end says what to do."""
    line = printable(" ".join(sentence.split("\n")).strip())
    if len(line) <= LONGEST_SENTENCE:
        return line
    return f"{line[: LONGEST_SENTENCE - _LONGEST_END]} … {line[-_LONGEST_END:]}"


def shown(place: str) -> str:
    """A folder below the current one, relative to it."""
    with contextlib.suppress(ValueError):
        return str(Path(place).relative_to(Path.cwd()))
    return place


def short_count(value: Value | None) -> str:
    """`412M`, `1.6G`."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "" if value is None else str(value)
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:g}"


# Tables: which columns stay, what is shortened, and the colours of states.


GAP = 2
_SHORTEST = 12  # of a column that may be shortened
_COLOURS: Mapping[str, tuple[str, ...]] = {
    "cyan": ("running", "busy", "preparing"),
    "red": ("error", "failed", "dead", "unauthorized", "offline", "unplugged", "unsupervised"),
    "green": ("complete", "completed", "idle", "ready", "up", "active", "ok", "pass"),
    "yellow": ("stalled", "hot", "canceled", "missing", "going down", "killing"),
}
_COLOUR_OF = {word: colour for colour, words in _COLOURS.items() for word in words}
_STATE_WORDS = {"error": "failed"}  # of a row: how people say it


@dataclass(frozen=True)
class Screen:
    """The terminal that a text is for; without a width it is none, and nothing is left out."""

    width: int | None = None
    height: int | None = None
    has_colour: bool = False

    @classmethod
    def of_stdout(cls) -> Screen:
        from edgeloop.settings import wants_colour

        if not sys.stdout.isatty():
            return cls()
        size = shutil.get_terminal_size()
        return cls(size.columns, size.lines, wants_colour())

    def clipped(self, line: str) -> str:
        return line if self.width is None else shortened(line, self.width)


@dataclass(frozen=True)
class TableColumn:
    """A column. In a narrow terminal those of the least `weight` are left out first. One with a
    `least` width may be shortened to it; others are shown in full or not at all. The last one may
    continue on the next line instead (`wraps`), where its end is what people must read."""

    heading: str
    weight: int = 50
    least: int | None = None
    right: bool = False
    wraps: bool = False


@dataclass(frozen=True)
class FittedTable:
    """`heading` and `lines` as wide as the screen; `left_out` names the columns without room."""

    heading: str
    lines: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def text(self, screen: Screen, below: Sequence[str] = (), most: int | None = None) -> str:
        """With lines `below` it. At most so many lines of it are shown, and how many are not."""
        hidden = 0 if most is None else max(0, len(self.lines) - max(1, most))
        shown = self.lines[: len(self.lines) - hidden] if hidden else self.lines
        more = [f"… and {hidden} more"] if hidden else []
        return "\n".join([self.heading, *shown, *more, *map(screen.clipped, below)])

    @property
    def remark(self) -> list[str]:
        """For people who look for a column that is not there."""
        names = ", ".join(self.left_out)
        return [f"Not shown for lack of room: {names}"] if names else []


def fit(
    columns: Sequence[TableColumn],
    rows: Iterable[Sequence[str]],
    screen: Screen,
    states: Sequence[str] = (),
    coloured: str = "",
) -> FittedTable:
    """`states` has a word per row, by which its cell in the column `coloured` is coloured."""
    cells = [_printable_texts(texts) for texts in zip(*rows, strict=True)]
    cells = cells or [[] for _ in columns]
    natural = [
        max(_width(column.heading), _widest(texts))
        for column, texts in zip(columns, cells, strict=True)
    ]
    places, widths = _room(columns, natural, screen.width)
    last = places[-1]
    continued: Iterable[list[str]] = itertools.repeat([])
    if columns[last].wraps:
        wrapped = [_wrapped(text, widths[last]) for text in cells[last]]
        cells[last] = [texts[0] for texts in wrapped]
        continued = [texts[1:] for texts in wrapped]
    headings, forms, texts_of = [], [], []
    for place in places:
        width, is_right, texts = widths[place], columns[place].right, cells[place]
        headings.append(_padded(columns[place].heading, width, is_right))
        is_coloured = screen.has_colour and columns[place].heading == coloured and bool(states)
        if not is_coloured and width >= natural[place] and "".join(texts).isascii():
            forms.append(f"{{:{'>' if is_right else '<'}{width}}}")  # quick, for tables of 100,000
        else:
            forms.append("{}")
            texts = [_padded(text, width, is_right) for text in texts]
            texts = list(map(painted, texts, states)) if is_coloured else texts
        texts_of.append(texts)
    gap = " " * GAP
    indent = " " * sum(widths[place] + GAP for place in places[:-1])
    lines = (
        "\n".join([text.rstrip(), *(indent + rest for rest in more)]) if more else text.rstrip()
        for text, more in zip(map(gap.join(forms).format, *texts_of), continued, strict=False)
    )
    left_out = [column.heading for place, column in enumerate(columns) if place not in widths]
    heading = gap.join(headings).rstrip()
    return FittedTable(heading, tuple(lines), tuple(filter(None, left_out)))


def listing(
    columns: Sequence[TableColumn | str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    screen: Screen | None = None,
    states: Sequence[str] = (),
    coloured: str = "state",
    total: str = "",
) -> str:
    """A table for stdout, or for this screen. A heading alone is a column that matters less than
    those before it, and that may be shortened unless it is to the `right`. A terminal also gets the
    `total` and the names of the columns that it has no room for."""
    screen = screen or Screen.of_stdout()
    whole = [
        _usual_column(item, place, item in right) if isinstance(item, str) else item
        for place, item in enumerate(columns)
    ]
    table = fit(whole, rows, screen, states, coloured)
    if screen.width is None:
        return table.text(screen)
    return table.text(screen, [*filter(None, [total]), *table.remark])


def totals(noun: str, states: Sequence[str], order: Sequence[str]) -> str:
    """`24 models: 3 running, 1 failed, 20 complete`, in this order, then other states by name."""
    words = [_STATE_WORDS.get(state, state) for state in states]
    rest = sorted(set(words).difference(order))
    counted = ", ".join(f"{words.count(word)} {word}" for word in (*order, *rest) if word in words)
    return f"{plural(len(words), noun)}: {counted}" if counted else plural(len(words), noun)


def painted(text: str, state: str) -> str:
    colour = _COLOUR_OF.get(state)
    return click.style(text, fg=colour) if colour and text.strip() else text


def shortened(text: str, width: int) -> str:
    """To that many columns of a terminal, with … where something is missing."""
    if _width(text) <= width:
        return text
    room, start = width - 1, ""
    for char in text:
        room -= _width(char)
        if room < 0:
            break
        start += char
    return f"{start.rstrip()}…" if width > 0 else ""


def _usual_column(heading: str, place: int, is_right: bool) -> TableColumn:
    return TableColumn(heading, 100 - place, None if is_right else _SHORTEST, is_right)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of whole words; a word that is wider than a line is cut where that ends."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if _width(longer) <= width:
            lines[-1] = longer
            continue
        lines += [""] if lines[-1] else []
        for char in word:
            if _width(lines[-1] + char) > width:
                lines.append("")
            lines[-1] += char
    return lines


def _room(
    columns: Sequence[TableColumn], natural: Sequence[int], width: int | None
) -> tuple[list[int], dict[int, int]]:
    """The places of the columns that stay, and how wide each is."""
    if width is None:
        return list(range(len(columns))), dict(enumerate(natural))
    least = [
        full if column.least is None else min(full, max(column.least, _width(column.heading)))
        for full, column in zip(natural, columns, strict=True)
    ]
    by_weight = sorted(range(len(columns)), key=lambda place: -columns[place].weight)
    places = list(by_weight)
    while len(places) > 1 and sum(least[place] + GAP for place in places) - GAP > width:
        places.pop()
    spare = width - sum(least[place] + GAP for place in places) + GAP
    widths = {}
    for place in places:
        added = max(0, min(spare, natural[place] - least[place]))
        widths[place] = min(least[place] + added, width)
        spare -= added
    return sorted(places), widths


def _padded(text: str, width: int, right: bool) -> str:
    text = shortened(text, width)
    padding = " " * (width - _width(text))
    return padding + text if right else text + padding


def _printable_texts(texts: Sequence[str]) -> list[str]:
    if "".join(texts).isprintable():
        return list(texts)
    return [printable(text) for text in texts]


def _widest(texts: Sequence[str]) -> int:
    return max(map(len if "".join(texts).isascii() else _width, texts), default=0)


def _width(text: str) -> int:
    """Columns of a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


# Progress on a terminal: bars, lines above them, and the state of what one waits for.
#
# All of it is on stderr, and only where that is a terminal: logs and pipes get whole lines, or
# nothing. A bar appears when something moves, and is gone at the end.


class StepBar:
    """How many steps of how many are done. Where stderr is no terminal, only lines are shown."""

    def __init__(self, title: str, bar: RichBar | None = None) -> None:
        self._title = title
        self._bar = bar
        self._task: TaskID | None = None

    def update(self, done: int, total: int, text: str = "") -> None:
        """The bar appears with the first steps that there are."""
        if self._bar is None or (self._task is None and total <= 0):
            return
        if self._task is None:
            self._task = self._bar.add_task(self._title, total=total, text=text)
        self._bar.update(self._task, completed=done, total=total, text=text)

    def say(self, line: str) -> None:
        """A line that stays, above the bar."""
        if self._bar is None:
            click.echo(line, err=True)
        else:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def step_bar(title: str, is_quiet: bool = False) -> Iterator[StepBar]:
    """`is_quiet`: for output of programs that is followed on a terminal."""
    if is_quiet or not sys.stderr.isatty():
        yield StepBar(title)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with _bar(*columns) as bar:
        yield StepBar(title, bar)


@contextlib.contextmanager
def count_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """For functions that report `done, total`."""
    if not sys.stderr.isatty():
        yield None
        return
    with step_bar(title) as bar:
        yield bar.update


@contextlib.contextmanager
def bytes_bar(title: str) -> Iterator[Progress | None]:
    """With bytes, files and the rate; it appears if there is something to send or to fetch."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[files]}"),
    )
    with _bar(*columns) as bar:
        task = bar.add_task(title, total=None, files="", visible=False)

        def progress(done: int, total: int, done_files: int, files: int) -> None:
            counted = f"{done_files:,} of {files:,} files"
            bar.update(task, completed=done, total=total, files=counted, visible=files > 0)

        yield progress


class StateLine:
    """What one waits for, on the last line of a terminal: `queued on cluster`. Others get none."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._is_over = not sys.stderr.isatty()

    def update(self, text: str) -> None:
        if self._is_over:
            return
        from rich.console import Console
        from rich.text import Text

        if self._status is None:
            self._status = Console(stderr=True).status(Text(text))
            self._status.start()
        else:
            self._status.update(Text(text))

    def close(self) -> None:
        """For good: what comes now speaks for itself."""
        self._is_over = True
        if self._status is not None:
            self._status.stop()


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Says what takes a while."""
    line = StateLine()
    line.update(text)
    try:
        yield
    finally:
        line.close()


def _bar(*columns: ProgressColumn) -> RichBar:
    from rich.console import Console
    from rich.progress import Progress as Bar

    return Bar(*columns, console=Console(stderr=True), transient=True)


# Live views: a text that is drawn again and again until Ctrl-C.


STOPPED_WATCHING = "Stopped watching; nothing was changed and runners continue."


def watch(look: Callable[[Screen], str], interval_s: float, at_end: str = STOPPED_WATCHING) -> None:
    """Redraws a text until Ctrl-C, for the terminal as it then is. An unreachable store is reported
    and tried again. A file or a pipe gets the text whenever it has changed."""
    from edgeloop._util.redact import redact
    from edgeloop.errors import EdgeloopError

    say_on_interrupt(at_end)

    def text() -> str:
        try:
            return look(Screen.of_stdout())
        except EdgeloopError as error:
            return redact(str(error))

    if not sys.stdout.isatty():
        _print_changes(text, interval_s)
        return
    from rich.live import Live

    with Live(as_drawn(text()), auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            live.update(as_drawn(text()), refresh=True)


def as_drawn(text: str) -> Text:
    """With the colours that the text has; lines are cut where the terminal ends."""
    from rich.text import Text

    drawn = Text.from_ansi(text)
    drawn.no_wrap, drawn.overflow = True, "ellipsis"
    return drawn


def _print_changes(text: Callable[[], str], interval_s: float) -> None:
    shown = ""
    while True:
        now = text()
        if now != shown:
            click.echo(now)
            shown = now
        time.sleep(interval_s)


# Hints for empty listings, which are no error: most often the models are in another experiment,
# or a tag or a name is misspelt.


_MOST_NAMES = 5
_MOST_EXPERIMENTS = 20


def say_empty(text: str, as_json: bool = False) -> None:
    """Programs get their empty array on stdout, and people this."""
    click.echo(text, err=as_json)


def say_if_none(rows: Sequence[object], workspace: Workspace, tag: str | None = None) -> None:
    """On stderr, for commands that go on with nothing."""
    if not rows:
        say_empty(no_models(workspace, tag), as_json=True)


def no_models(workspace: Workspace, tag: str | None = None, is_filtered: bool = False) -> str:
    """Why a listing of models is empty, and what to do: `No models in experiment 'default'; 16 in
    'laptop'.` `is_filtered`: by something else than the tag."""
    from edgeloop.workspace import models_elsewhere

    experiment = workspace.experiment
    if any(True for _ in workspace.store.models(experiment).query(limit=1)):
        return _no_match(workspace, tag, is_filtered)
    place = shown(workspace.store.description)
    if not _is_begun(workspace):
        return f"There is no store at {place} yet. Next: edgeloop upload MODEL.onnx"
    others = models_elsewhere(workspace)
    if not others:
        where = f"experiment '{experiment}' ({place})"
        return f"No models yet in {where}. Next: edgeloop upload MODEL.onnx"
    for close in close_names(experiment, others):
        count = f"{others[close]} models" if others[close] != "1" else "1 model"
        return f"No models in experiment '{experiment}'; did you mean '{close}' ({count})?"
    return f"No models in experiment '{experiment}'; {_listed(others)}. Choose with --experiment."


@contextlib.contextmanager
def hinting(workspace: Workspace) -> Iterator[None]:
    """A model that was named and is not there: the nearest name, or where it is instead."""
    from edgeloop.errors import NoSuchModel, StoreError

    try:
        yield
    except NoSuchModel as error:
        hint = ""
        with contextlib.suppress(StoreError):
            hint = _instead(workspace, error)
        if not hint or error.fields["experiment"] != workspace.experiment:
            raise
        fields = {name: error.fields[name] for name in ("pattern", "experiment")}
        raise NoSuchModel(**fields, hint=hint) from None


def _instead(workspace: Workspace, error: NoSuchModel) -> str:
    from edgeloop.models.columns import can_be_key, is_pattern
    from edgeloop.workspace import models_elsewhere

    name = str(error.fields["pattern"])
    names = [row.key for row in workspace.store.models(workspace.experiment).query()]
    hint = did_you_mean(name, names)
    if hint:
        return f"; {hint}"
    if not _is_begun(workspace):
        place = shown(workspace.store.description)
        return f": there is no store at {place} yet. Next: edgeloop upload MODEL.onnx"
    others = models_elsewhere(workspace)
    if not is_pattern(name) and can_be_key(name):
        for other in list(others)[:_MOST_EXPERIMENTS]:
            if workspace.store.models(other).get(name) is not None:
                return f"; there is one in {other!r}: choose it with --experiment {other}."
    if not names and others:
        return f", which has no models; {_listed(others)}."
    return ""


def _no_match(workspace: Workspace, tag: str | None, is_filtered: bool) -> str:
    """There are models, and none is what was asked for."""
    no_match = f"No model matches. 'edgeloop status -e {workspace.experiment}' shows all."
    if tag is None or is_filtered:
        return no_match
    from edgeloop.models.catalog import tags_of

    tags = sorted({str(each) for row in workspace.find(()) for each in tags_of(row.values)})
    start = f"No model of experiment '{workspace.experiment}' has the tag {tag!r}"
    if not tags:
        return f"{start}: none has any."
    if tag in tags:  # it was named beside the tag, and has another
        return no_match
    return f"{start}; {suggestion(tag, tags[:_MOST_EXPERIMENTS], 'there are')}"


def _listed(others: dict[str, str]) -> str:
    named = [f"{count} in '{name}'" for name, count in list(others.items())[:_MOST_NAMES]]
    more = len(others) - len(named)
    return ", ".join([*named, *([f"and {more} more"] if more else [])])


def _is_begun(workspace: Workspace) -> bool:
    from edgeloop.store.location import SqliteLocation

    location = workspace.settings.location
    if not isinstance(location, SqliteLocation):
        return True
    return any((location.folder / name).exists() for name in ("store.db", "blobs"))


# Ctrl-C: every command ends with exit code 130 and a sentence about what it leaves behind.
#
# For most commands the sentence depends on the command alone: `INTERRUPT_SENTENCES`. One that knows
# better while it runs calls `say_on_interrupt`.


INTERRUPTED = 130  # the exit code by which shells report Ctrl-C
NOTHING = "Stopped; nothing was changed."
_SENTENCE = "edgeloop.interrupt_sentence"
_JOBS_CONTINUE = "Stopped; jobs that were submitted continue. See: edgeloop job status"
_JOBS_UNTOUCHED = "Stopped; the jobs continue. See: edgeloop job status"
_SO_FAR = "Stopped; what was changed so far stays. Run it again for the rest."

INTERRUPT_SENTENCES: Mapping[str, str] = {
    "upload": "Stopped; models uploaded so far are kept. Run it again for the others.",
    "status": NOTHING,
    "download": "Stopped; files downloaded so far are kept. Run it again for the others.",
    "reset": _SO_FAR,
    "priority": _SO_FAR,
    "unlock": _SO_FAR,
    "delete": _SO_FAR,
    "restore": _SO_FAR,
    "experiment list": NOTHING,
    "experiment show": NOTHING,
    "experiment set": _SO_FAR,
    "inspect": NOTHING,
    "bench": "Stopped; no result was written.",
    "runner": "Stopped; finished stages are kept, unfinished ones were given back.",
    "compare": "Stopped; no comparison was written, and the models are as they were.",
    "devices": NOTHING,
    "devices calibrate": NOTHING,
    "devices usage": NOTHING,
    "queue": NOTHING,
    "layers": "Stopped; no result was written, and the model is as it was.",
    "advise": "Stopped; no file was written, and the model is as it was.",
    "precision": "Stopped; no plan was written, and the model is as it was.",
    "gate": "Stopped; no verdict and no file was written.",
    "run": _JOBS_CONTINUE,
    "job submit": _JOBS_CONTINUE,
    "job resubmit": _JOBS_CONTINUE,
    "job abort": _JOBS_CONTINUE,
    "job remove": _JOBS_CONTINUE,
    "job list": NOTHING,
    "job logs": _JOBS_UNTOUCHED,
    "job wait": _JOBS_UNTOUCHED,
    "job status": _JOBS_UNTOUCHED,
    "job results": "Stopped; files fetched so far are kept. Run it again for the others.",
    "data list": NOTHING,
    "data verify": NOTHING,
    "data push": "Stopped; files sent so far are kept. Push again to continue.",
    "data pull": "Stopped; files fetched so far are kept. Pull again to continue.",
    "data remove": _SO_FAR,
    "data faces": "Stopped; images drawn so far are kept. Run it again to continue.",
    "search": "Stopped; results so far are kept. Continue with: --resume",
    "search list": NOTHING,
    "search show": NOTHING,
    "search train": "Stopped; models that were trained are kept. Run it again for the others.",
    "arch train": "Stopped; no checkpoint was written yet.",
    "arch export": "Stopped; no file was written.",
    "pareto": "Stopped; a file is written whole or not at all.",
    "report": "Stopped; no report was written.",
    "portal": "Stopped; the portal is closed.",
    "notebook": "Stopped; a file is written whole or not at all.",
    "doctor": NOTHING,
    "health": NOTHING,
    "service install": _SO_FAR,
    "service uninstall": _SO_FAR,
    "service status": NOTHING,
    "fleet up": _SO_FAR,
    "fleet down": _SO_FAR,
    "fleet scale": _SO_FAR,
    "fleet manifest": NOTHING,
    "fleet status": NOTHING,
    "azure setup": _SO_FAR,
    "azure create": _SO_FAR,
    "azure connection-string": NOTHING,
    "azure doctor": NOTHING,
    "azure list": NOTHING,
    "gc": _SO_FAR,
    "secrets scan": NOTHING,
    "store check": NOTHING,
    "store repair": _SO_FAR,
    "store upgrade": _SO_FAR,
    "schema": NOTHING,
    "completion install": "Stopped; run it again: nothing is added twice.",
    "completion show": NOTHING,
}
"""By the words of the command."""


def say_on_interrupt(sentence: str | Callable[[], str]) -> None:
    """Print this instead if Ctrl-C ends the command from now on."""
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[_SENTENCE] = sentence


def sentence_of(context: click.Context, arguments: Sequence[str]) -> str:
    """What the interrupted command line leaves behind."""
    said = context.meta.get(_SENTENCE)
    if said is None:
        return INTERRUPT_SENTENCES.get(" ".join(_words(context, arguments)), "Stopped.")
    return str(said() if callable(said) else said)


def _words(context: click.Context, arguments: Sequence[str]) -> list[str]:
    """`job logs`: the names of the groups and of the command."""
    words: list[str] = []
    command: click.Command | None = context.command
    for argument in arguments:
        if isinstance(command, click.Group):
            inner = command.get_command(context, argument)
            if inner is not None:
                words.append(argument)
                command = inner
    return words
