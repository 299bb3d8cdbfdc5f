"""A submitted job: its ticket, order and progress, and where its files are in the store.

`_jobs/<id>/ticket.json`   what to run, written once before the job is given to a compute
`_jobs/<id>/order.json`    access to the store, for a compute that passes it as a file
`_jobs/<id>/access.json`   newer access to the store, for a job that outlives its first one
`_jobs/<id>/state.json`    its progress; only the wrapper writes it
`_jobs/<id>/cancel`        asks it to end, also where its compute no longer knows it
`_jobs/<id>/log/<n>`       its output, in pieces of LOG_PIECE bytes; only the last one grows
`_jobs/<id>/outputs/…`     the files of `outputs/`
`_jobs/<id>/kept/…`        files that it created elsewhere in its folder, for KEPT_DAYS
`_code/<hash>.tar.gz`      a snapshot of code, shared by jobs
`_wrapper/<hash>.pyz`      the program that runs inside every job

No experiment or model has such a name: theirs begin with a letter or a digit.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from datetime import datetime, timezone
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qs

from edgeloop._util.values import size_text
from edgeloop.errors import BadInput, BadSetting
from edgeloop.store.base import Access, Blobs

State = Literal["queued", "preparing", "running", "completed", "failed", "canceled"]
FINAL_STATES: frozenset[State] = frozenset({"completed", "failed", "canceled"})
LOG_PIECE = 1 << 20
KEPT_DAYS = 7  # how long files are kept that a job created outside outputs/
KEPT_BYTES = 5_000_000_000  # and how much of them
MOST_CODE_BYTES = 2 << 30
CODE_DIGEST_BYTES = 20
_FORMAT = b"edgeloop code 1\n"  # part of every digest: another layout is another digest
CODE_FOLDER = "_code/"
WRAPPER_FOLDER = "_wrapper/"
REFRESH_S = 86_400.0  # code that is found in the store and older than this is sent again
ORDER_VARIABLE = "EDGELOOP_ORDER"
PLACE_PREFIX = "EDGELOOP_PLACE_"  # of variables with the paths of what a compute mounts
NODE_CACHE = "EDGELOOP_NODE_CACHE"  # a folder for data that outlives the job on its node


@dataclass(frozen=True)
class Input:
    """A dataset that the job reads, at one version: `working/faces128` and 4."""

    name: str
    version: int


@dataclass(frozen=True)
class TicketPlace:
    """Data at a URL that the job reads or writes. The compute provides it at a path, which it puts
    into the variable of that name, or the wrapper transfers it with this access."""

    name: str
    url: str
    mode: str = ""
    variable: str = ""
    path: str = ""  # below the root of the access; empty: all of it
    make: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def access(self) -> Access:
        return Access(self.make, self.options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Environment:
    """What the command runs in. `file` is a path inside the code, the name of an image, or that of
    an environment which the compute knows."""

    kind: Literal["here", "requirements", "conda", "image", "name"] = "here"
    file: str = ""


@dataclass(frozen=True)
class Resources:
    """What one job requires of one machine. `custom` names other things that a cluster counts, for
    example boards. A job of several `nodes` requires it of each."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)
    nodes: int = 1


@dataclass(frozen=True)
class EarlierOutputs:
    """Outputs of another job that this one continues: those in `folder` there, to `into` here; both
    are below `outputs/`, and empty for all of it."""

    job: str
    folder: str = ""
    into: str = ""


@dataclass(frozen=True)
class Ticket:
    """All that the wrapper needs to know. Placeholders in `command` are not yet filled in, and text
    that looks like one is escaped."""

    id: str
    name: str
    experiment: str
    command: tuple[str, ...]
    code: str
    inputs: tuple[Input, ...] = ()
    writes: tuple[str, ...] = ()
    environment: Environment = Environment()
    variables: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1
    retries: int = 0
    timeout_s: float | None = None
    grace_s: float = 30.0
    previous: str | None = None  # an earlier job whose outputs this one starts from
    outputs: tuple[str, ...] = ()  # patterns of files to collect beside those in outputs/
    sources: tuple[TicketPlace, ...] = ()
    targets: tuple[TicketPlace, ...] = ()
    package: str = ""  # the snapshot of Edgeloop itself, for a command that runs it
    earlier: tuple[EarlierOutputs, ...] = ()  # files of the first ones take precedence
    data_root: str = "data"  # where the project has its data, relative to the code
    secrets: tuple[str, ...] = ()  # names of the variables whose values are masked
    kept_bytes: int = KEPT_BYTES  # most that is kept of what it creates outside outputs/

    def secret_values(self) -> tuple[str, ...]:
        return tuple(self.variables[name] for name in self.secrets if name in self.variables)

    def to_json(self) -> bytes:
        return to_json(self, indent=2)

    @classmethod
    def from_json(cls, content: bytes) -> Ticket:
        try:
            return from_json(cls, content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(reason=f"The job's ticket cannot be read: {error}") from None


@dataclass(frozen=True)
class CreatedFile:
    """A file that a job created outside outputs/; `name` is relative to the job's folder."""

    name: str
    size: int


@dataclass(frozen=True)
class JobFiles:
    """What a job left in its folder: files that were collected, files that it created elsewhere and
    that are kept for a while, and those that are gone with its folder."""

    collected: int = 0
    collected_bytes: int = 0
    left: int = 0
    left_bytes: int = 0
    largest: tuple[CreatedFile, ...] = ()  # of those that are gone
    kept: int = 0
    kept_bytes: int = 0
    largest_kept: tuple[CreatedFile, ...] = ()

    def note(self, most: int = 3, name: str = "NAME") -> str:
        """A sentence about files outside outputs/; empty if there are none. `name` is the job's on
        the machine that reads it, which a node does not know."""
        parts = []
        if self.kept:
            fate = f"{'is' if self.kept == 1 else 'are'} kept for {KEPT_DAYS} days"
            parts.append(_created(self.kept, self.kept_bytes, fate, self.largest_kept[:most]))
            parts.append(f"'edgeloop job results --all {name}' fetches them")
        if self.left:
            fate = "was not kept" if self.left == 1 else "were not kept"
            parts.append(_created(self.left, self.left_bytes, fate, self.largest[:most]))
        if not parts:
            return ""
        files = (*self.largest_kept, *self.largest)
        places = dict.fromkeys(file.name.partition("/")[0] for file in files)
        options = " ".join(f"--outputs {shlex.quote(place)}" for place in [*places][:3])
        empty = "outputs/ is empty, but " if not self.collected else ""
        return f"{empty}{'; '.join(parts)}; to collect them with outputs/: {options}"


def _created(count: int, size: int, fate: str, named: Sequence[CreatedFile]) -> str:
    """`2 files (5 MB) created outside outputs/ are kept for 7 days: a.ckpt (4 MB) and 1 more`."""
    total = "1 file" if count == 1 else f"{count} files"
    names = ", ".join(f"{ascii(file.name)[1:-1]} ({size_text(file.size)})" for file in named)
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return f"{total} ({size_text(size)}) created outside outputs/ {fate}: {names}{more}"


@dataclass(frozen=True)
class JobProgress:
    """What the wrapper reports about its job; times are seconds since 1970, by the node's clock."""

    state: State
    attempt: int
    node: str
    heartbeat: float
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""  # one sentence, when it failed or was canceled
    metrics: Mapping[str, object] = field(default_factory=dict)  # last of outputs/metrics.jsonl
    published: Mapping[str, int] = field(default_factory=dict)  # datasets and their versions
    log_bytes: int = 0
    outputs_complete: bool = False  # every file of outputs/ is in the store
    files: JobFiles = JobFiles()  # known when the job has ended
    compute_stores: bool = False  # what it wrote to URLs is only there when its compute is done

    def to_json(self) -> bytes:
        return to_json(self)

    @classmethod
    def from_json(cls, content: bytes) -> JobProgress:
        try:
            return from_json(cls, content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(reason=f"The job's state cannot be read: {error}") from None


@dataclass(frozen=True)
class Pace:
    """Intervals and limits of the wrapper."""

    log_s: float = 1.0
    outputs_s: float = 2.0
    heartbeat_s: float = 10.0
    patience_s: float = 600.0  # how long a store may be unavailable before and after the command
    install_s: float = 3600.0  # limit for pip or conda


@dataclass(frozen=True)
class WrapperOrder:
    """What a compute passes to the wrapper: a job's id, the access to its store, and which wrapper
    to run. A job of several nodes has a wrapper on each.

    It goes into one environment variable, which may hold secrets: it is read once, not passed to
    the command, and never shown.
    """

    job: str
    wrapper: str
    access: Access = field(repr=False)
    pace: Pace = Pace()
    nodes: int = 1

    def to_variables(self) -> dict[str, str]:
        """The variable to set for the wrapper's process. It holds secrets: never log it."""
        return {ORDER_VARIABLE: to_json(self).decode()}

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> WrapperOrder:
        if ORDER_VARIABLE not in variables:
            reason = f"{ORDER_VARIABLE} is missing: start jobs with 'edgeloop job submit'"
            raise BadSetting(where=ORDER_VARIABLE, reason=reason)
        try:
            return from_json(cls, variables[ORDER_VARIABLE])
        except (ValueError, TypeError, KeyError, AttributeError):
            reason = "it cannot be read"  # the decoder's own message would quote the secret
        raise BadSetting(where=ORDER_VARIABLE, reason=reason)


def folder_key(job: str) -> str:
    return f"_jobs/{job}"


def ticket_key(job: str) -> str:
    return f"_jobs/{job}/ticket.json"


def order_key(job: str) -> str:
    return f"_jobs/{job}/order.json"


def access_key(job: str) -> str:
    return f"_jobs/{job}/access.json"


def expires_at(access: Access) -> float | None:
    """When a signature of Azure ends, in seconds since 1970; None for other kinds of access."""
    ends = parse_qs(access.options.get("sas_key", "")).get("se", [""])[0]
    try:
        moment = datetime.strptime(ends, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None
    return moment.replace(tzinfo=timezone.utc).timestamp()


def state_key(job: str) -> str:
    return f"_jobs/{job}/state.json"


def cancel_key(job: str) -> str:
    return f"_jobs/{job}/cancel"


def log_key(job: str, piece: int) -> str:
    return f"_jobs/{job}/log/{piece:08d}"


def outputs_folder(job: str) -> str:
    return f"_jobs/{job}/outputs/"


def kept_folder(job: str) -> str:
    return f"_jobs/{job}/kept/"


def code_key(digest: str) -> str:
    return f"{CODE_FOLDER}{digest}.tar.gz"


def wrapper_key(digest: str) -> str:
    return f"{WRAPPER_FOLDER}{digest}.pyz"


def is_fresh(blobs: Blobs, key: str) -> bool:
    """Whether a file that all jobs share is in the store, and so young that no clean-up will take
    it before the job that wants it has its record. One that is older is to be sent again."""
    stored = blobs.info(key)
    return stored is not None and time.time() - stored.modified.timestamp() < REFRESH_S


def content_digest(content: bytes) -> str:
    return blake2b(content, digest_size=CODE_DIGEST_BYTES).hexdigest()


class CodeDigest:
    """Over the paths, contents and executable bits of files, in order, and nothing else."""

    def __init__(self) -> None:
        self._total = blake2b(_FORMAT, digest_size=CODE_DIGEST_BYTES)

    def add(self, path: str, digest: str, executable: bool) -> None:
        line = f"{digest} {'x' if executable else '-'} {path}\0"
        self._total.update(line.encode(errors="surrogateescape"))

    def hexdigest(self) -> str:
        return self._total.hexdigest()


def check_apart(datasets: Sequence[str]) -> None:
    """The datasets that a job reads and writes may not overlap: one inside another would be written
    into the cache that the jobs of a machine share."""
    for number, name in enumerate(datasets):
        for other in (*datasets[:number], *datasets[number + 1 :]):
            if f"{name}/".startswith(f"{other}/"):
                both = f"{name} and {other} overlap" if name != other else f"{name} comes twice"
                raise BadInput(reason=f"{both} among the datasets of this job: rename one")


# Placeholders in the words of a command: `{outputs}`, `{input:faces}`, and `{lr}` of a param.
#
# Job files have them, and options that say so. With one more pair of braces they stand for
# themselves: `{{outputs}}` arrives as `{outputs}`. That is also how words that are not to be
# touched, such as those after `--`, are written into a specification. All other braces stay as
# they are: they may be JSON or a format.


JOB_PLACEHOLDERS = ("outputs", "data", "job", "attempt")  # filled in where the job runs
_INSIDE = r"(?:input|output):[^{}]+|[A-Za-z_][A-Za-z0-9_.-]*"
_PLACEHOLDER = re.compile(rf"\{{(?:\{{(?P<text>{_INSIDE})\}}|(?P<name>{_INSIDE}))\}}")
_IN_BRACES = re.compile(rf"\{{(?:{_INSIDE})\}}")


def escaped(word: str, stays: Callable[[str], bool] = lambda _: False) -> str:
    """The word as `filled` gives it back unchanged, but for placeholders that are to stay."""

    def replacement(match: re.Match[str]) -> str:
        return match[0] if stays(match[0][1:-1]) else f"{{{match[0]}}}"

    return _IN_BRACES.sub(replacement, word)


def placeholders(word: str) -> list[str]:
    """What is between the braces of a word's placeholders, without escaped ones."""
    return [match["name"] for match in _PLACEHOLDER.finditer(word) if match["name"]]


def filled(word: str, value: Callable[[str], str | None], is_last: bool = True) -> str:
    """The word with its placeholders filled in. Those without a value stay, and so do escaped ones
    unless this is the last time that the word is filled in."""

    def replacement(match: re.Match[str]) -> str:
        if match["text"]:
            return match[0][1:-1] if is_last else match[0]
        found = value(match["name"])
        return match[0] if found is None else found

    return _PLACEHOLDER.sub(replacement, word)


def named_place(placeholder: str, reads: Iterable[str], writes: Iterable[str]) -> str | None:
    """The full name of the dataset or URL that `input:faces` or `output:working/faces` names; None
    if it is a placeholder of another kind. Raises BadInput if it names none, or several."""
    kind, colon, name = placeholder.partition(":")
    if not colon:
        return None
    names = tuple(reads if kind == "input" else writes)
    matches = [full for full in names if full == name]
    matches = matches or [full for full in names if full.rpartition("/")[2] == name]
    if len(matches) == 1:
        return matches[0]
    problem = "could mean several" if matches else "names nothing"
    does, listed = "reads" if kind == "input" else "writes", ", ".join(names) or "nothing"
    reason = f"{{{placeholder}}} in the command {problem}: this job {does} {listed}"
    raise BadInput(reason=reason)


# Dataclasses as JSON and back: nested ones, tuples of them, and times. The standard library alone.


Value = TypeVar("Value")
_LARGEST_NUMBER = 1 << 62
_PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "State": (str,),
    "datetime": (str,),
}


class FieldKind(NamedTuple):
    """A field's annotation, or that of the items of a tuple: as written, and as a type of ours."""

    written: str
    type: Any
    is_tuple: bool


class Accepted(NamedTuple):
    """What a value may be by an annotation as it is written: `str`, `float | None`, `Mapping[str,
    int]`. `types` is empty where any will do; `items` is the annotation of a mapping's values."""

    types: tuple[type, ...]
    kind: str
    or_none: bool
    items: str


def to_json(value: Any, indent: int | None = None) -> bytes:
    def plain(item: object) -> str:
        if isinstance(item, datetime):
            return item.isoformat(timespec="microseconds")
        raise TypeError(f"{type(item).__name__} cannot be written as JSON")

    separators = None if indent else (",", ":")
    text = json.dumps(
        asdict(value), indent=indent, separators=separators, ensure_ascii=False, default=plain
    )
    return text.encode()


def from_json(kind: type[Value], content: bytes | str) -> Value:
    """Raises ValueError, TypeError, KeyError or AttributeError if it is not a `kind`. Others may
    have written it: every text, number and list is one where it has to be."""
    try:
        plain = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    value: Value = from_plain(kind, plain)
    return value


def from_plain(kind: Any, value: Any) -> Any:
    """The same from what `json.loads` returns."""
    if is_dataclass(kind):
        make: Any = kind
        types = _types(make)
        return make(**{name: _read(name, types[name], item) for name, item in value.items()})
    return datetime.fromisoformat(value) if kind is datetime else value


def _read(name: str, kind: FieldKind, value: Any) -> Any:
    if not kind.is_tuple:
        _check(name, kind.written, value)
        return value if kind.type is None else from_plain(kind.type, value)
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list")
    for item in value:
        _check(name, kind.written, item)
    return tuple(from_plain(kind.type, item) for item in value)


def _check(name: str, written: str, value: Any) -> None:
    types, kind, or_none, items = _accepted(written)
    if or_none and value is None:
        return
    if items and isinstance(value, dict):
        for item in value.values():
            _check(name, items, item)
        return
    is_bool = isinstance(value, bool) and kind != "bool"
    if types and (is_bool or not isinstance(value, types)):
        raise TypeError(f"{name} must be {kind}, not {type(value).__name__}")
    if kind in ("int", "float") and not abs(value) < _LARGEST_NUMBER:
        raise ValueError(f"{name} is too large")


@lru_cache(maxsize=None)
def _accepted(written: str) -> Accepted:
    kind, _, none = written.partition(" | ")
    mapping = re.fullmatch(r"Mapping\[str, (\w+)\]", kind)
    types = _PLAIN.get(kind, () if mapping is None else (dict,))
    return Accepted(types, kind, none == "None", mapping[1] if mapping else "")


@lru_cache(maxsize=None)
def _types(kind: Any) -> dict[str, FieldKind]:
    """What each field is, or what it is a tuple of. Read as it is written and not evaluated, since
    the Python of a node may be too old for `str | None`."""
    names = vars(sys.modules[kind.__module__])
    kinds = {}
    for each in fields(kind):
        several = re.fullmatch(r"tuple\[(\w+), \.\.\.\]", str(each.type))
        written = several[1] if several else str(each.type)
        kinds[each.name] = FieldKind(written, names.get(written), several is not None)
    return kinds


# Patterns of files that a job creates beside `outputs/`: `results`, `logs/*/best`, `**/*.ckpt`.
# Needs only the standard library: nodes match them too.
#
# A pattern is relative to the folder that the command starts in. `*`, `?` and `[a-z]` stay within
# one name, `**` stands for any number of folders, and a folder means everything in it.


if TYPE_CHECKING:
    Test = Callable[[int], bool]
    Part = str | Test  # one of the names below, or whether a character may stand here


LONGEST_PATTERN = 200
MOST_PATTERNS = 50
_STAR = "[^/]*"


def check_pattern(text: str) -> str:
    """The pattern in its plain form; raises ValueError if it could lead out of the job's folder."""
    plain = text
    while plain.startswith("./"):
        plain = plain[2:].lstrip("/")
    plain = plain.rstrip("/") if plain.strip("/") else plain
    if not plain or plain == ".":
        raise ValueError(
            f"must name files below the job's folder, for example 'results', not {text!r}"
        )
    if len(plain) > LONGEST_PATTERN:
        raise ValueError(f"has more than {LONGEST_PATTERN} characters: {plain[:40]!r}…")
    if not plain.isprintable() or "\\" in plain:
        raise ValueError(f"has a backslash or an unprintable character: {text!r}")
    if plain.startswith(("/", "~")) or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", plain):
        reason = "must be relative to the folder that the command starts in"
        raise ValueError(f"{reason}, for example 'results', not {text!r}")
    if any(part in ("", ".", "..") for part in plain.split("/")):
        raise ValueError(f"may not hold '..', '.' or empty parts: {text!r}")
    return plain


class FilePatterns:
    """Several patterns as one."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = tuple(check_pattern(text) for text in patterns)
        self._wild: list[tuple[Part, ...]] = []
        tame: list[str] = []
        for text in self.patterns:
            parts = _parts(text)
            if is_wild(parts):
                self._wild += [parts, (*parts, ord("/").__eq__, ANY)]
            else:
                tame.append(_expression(text))
        joined = "|".join(tame)
        self._regex = re.compile(f"(?:{joined})(?:/.*)?", re.DOTALL) if tame else None

    def matches(self, name: str) -> bool:
        """Whether a file is one of them, or is inside a folder that is; `/` separates folders."""
        if self._regex is not None and self._regex.fullmatch(name) is not None:
            return True
        points = [ord(char) for char in name] if self._wild else []
        return any(matches(parts, points) for parts in self._wild)


def _expression(pattern: str) -> str:
    expression, parts = "", pattern.split("/")
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**":
            expression += ".*" if is_last else "(?:[^/]+/)*"
        else:
            expression += _name(part) + ("" if is_last else "/")
    return expression


def _parts(pattern: str) -> tuple[Part, ...]:
    """The same as `_expression`, for `matches`."""
    compiled: list[Part] = []
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**":
            compiled.append(ANY if is_last else FOLDERS)
            continue
        compiled += [STAR if piece == _STAR else _test(piece) for piece in _pieces(part)]
        compiled += [] if is_last else [ord("/").__eq__]
    return tuple(compiled)


def _test(piece: str) -> Test:
    regex = re.compile(piece, re.DOTALL)
    return lambda point: regex.fullmatch(chr(point)) is not None


def _name(part: str) -> str:
    return "".join(_pieces(part))


def _pieces(part: str) -> list[str]:
    """One name of a path."""
    pieces: list[str] = []
    at = 0
    while at < len(part):
        char = part[at]
        at += 1
        if char == "*":
            if pieces[-1:] != [_STAR]:  # several stars mean the same as one
                pieces.append(_STAR)
        elif char == "?":
            pieces.append("[^/]")
        elif char == "[":
            piece, at = _characters(part, at)
            pieces.append(piece)
        else:
            pieces.append(re.escape(char))
    return pieces


def _characters(part: str, at: int) -> tuple[str, int]:
    """`[abc]`, `[a-z]` or `[!abc]`; a bracket that is never closed stands for itself."""
    end = part.find("]", at + (2 if part[at : at + 1] == "!" else 1))
    if end < 0:
        return re.escape("["), at
    negated, inside = part[at] == "!", part[at:end].lstrip("!") if part[at] == "!" else part[at:end]
    safe = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside)
    try:
        re.compile(f"[{safe}]")
    except re.error:  # a range that runs backwards
        return re.escape(part[at - 1 : end + 1]), end + 1
    return f"(?!/)[{'^' if negated else ''}{safe}]", end + 1


# Patterns of paths with many wildcards, matched in linear time.
#
# As a regular expression, `*a*a*a*a*b` takes hours to find out that a name of sixty letters does
# not match. This keeps all places in the path that a pattern may have reached: none is looked at
# twice.


STAR = "*"  # any part of one name
ANY = "**"  # anything
FOLDERS = "**/"  # any number of folders


def is_wild(parts: Sequence[Part], most: int = 3) -> bool:
    """Whether a regular expression may take too long."""
    return sum(isinstance(part, str) for part in parts) > most


def matches(parts: Sequence[Part], path: Sequence[int]) -> bool:
    """`path` is bytes, or the code points of a text."""
    reached = [0]
    for part in parts:
        reached = _after(part, path, reached)
        if not reached:
            return False
    return reached[-1] == len(path)


def _after(part: Part, path: Sequence[int], reached: list[int]) -> list[int]:
    """The places after this part, in order."""
    end, slash = len(path), ord("/")
    if part == ANY:
        return list(range(reached[0], end + 1))
    if part == FOLDERS:
        behind = {at + 1 for at in range(reached[0], end) if path[at] == slash}
        return sorted(behind.union(reached))
    if isinstance(part, str):
        places: list[int] = []
        for start in reached:
            at = start
            while not places or at > places[-1]:  # what comes after an earlier place is known
                places.append(at)
                if at == end or path[at] == slash:
                    break
                at += 1
        return places
    return [at + 1 for at in reached if at < end and part(path[at])]
