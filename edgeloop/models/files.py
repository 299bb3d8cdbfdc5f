"""Where the files of a model are in the store, under names that people and other tools can read.

    <experiment>/<model>/<file>                       the upload, and accepted results
    <experiment>/<model>/.attempts/<token>/<file>     what an attempt has made so far
    <model>/<file>                                    what `ArchaiStore.upload` of Archai writes

The row says which files count. A result becomes visible in steps, and a machine may die after each:

1. The attempt stores its files in its hidden folder, which no other attempt writes to.
2. The row is committed while the lease holds, and names the hidden files.
3. Each file is created under its plain name. Creating never overwrites: an old attempt that wakes
   up late cannot replace a newer result. A name that is taken gets a number (`net~2.dlc`).
4. The row is changed to name the plain files, if it still names those of this attempt.
5. The hidden files are deleted.

After every step the row names complete files. What a dead machine leaves over is named by no row,
and does not show.

Archai's runner takes the first file that matches `.*\\.onnx` for the float model, and `model.dlc`
and `model.quant.dlc` for conversions by SNPE. A result such as `net.quant.onnx` keeps its name,
since it is listed behind `net.onnx`; one that would be listed before it becomes `net.abc~onnx`. So
do all in the hidden folder, which comes first. Conversions by SNPE get the names that Archai
expects, and those of other toolchains never do.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from edgeloop._util.files import sha256_of
from edgeloop.errors import (
    BadName,
    BlobMissing,
    FileDamaged,
    FilesAway,
    LocalFileError,
    ModelBusy,
)
from edgeloop.models.columns import CANDIDATE, change_row, matches, natural_key
from edgeloop.models.plan import (
    ARCHAI_TOOLCHAIN,
    UPLOAD,
    StageRecord,
    is_foreign,
    records_of,
    with_records,
)
from edgeloop.models.trash import DELETED
from edgeloop.store import BlobInfo, Changes, Record, Store, check_blob_key

ATTEMPTS_FOLDER = ".attempts"
ARCHITECTURE = "architecture.json"
MOST_OF_A_NAME = 50
_FRESH = ".edgeloop-"
READINGS = 5  # of a row that changes while its files are listed
_OF_ARCHAI = ("model.dlc", "model.quant.dlc")
_HALF_MADE = ("uploading", "deleting", CANDIDATE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"~\d+(?=\.|$)")
_CHUNK = 1 << 20

FileGroup = Literal["deploy", "result", "other"]


@dataclass(frozen=True)
class FileRole:
    """What a file is for. Lists show files to deploy first, the most specific ones before others,
    then results, then the rest. `about` is a few words for people; empty where there are none."""

    group: FileGroup
    rank: int
    about: str = ""


OTHER_FILE = FileRole("other", 30)


@dataclass(frozen=True)
class ModelFile:
    """A file of a model.

    Attributes:
        name: The name that users see.
        key: The key under which the store has it.
        size: Bytes.
        modified: When it was written.
        version: Changes when the file does; empty if the store does not say.
        sha256: Its content as the row says it; empty for what other tools and older versions of
            Edgeloop stored.
        role: What it is for, as its name says.
    """

    name: str
    key: str
    size: int
    modified: datetime
    version: str = ""
    sha256: str = ""
    role: FileRole = OTHER_FILE

    def damaged(self) -> FileDamaged:
        """The error that the store has something else than this file."""
        return FileDamaged(file=self.name, key=self.key, model=_model_of(self.key))


@dataclass(frozen=True)
class Leftovers:
    """Orphaned files of a model: of attempts that never counted, and results under names
    that the row does not use. `unpublished` are results whose row names their hidden places, since
    the machine that committed them died; `tokens` are those of their attempts."""

    attempts: Sequence[BlobInfo]
    results: Sequence[BlobInfo]
    unpublished: Sequence[BlobInfo]
    tokens: frozenset[str]


class ModelFiles:
    """The files of one experiment's models."""

    def __init__(self, store: Store, experiment: str) -> None:
        self._store = store
        self._models = store.models(experiment)
        self._experiment = experiment

    def of(self, row: Record) -> list[ModelFile]:
        """Those that the row names, and those that another tool put beside them: files to deploy
        first, then results.

        A result may get its plain name between the reading of the row and the listing. So where a
        file that the row names is not listed, the row is read again."""
        for _ in range(READINGS):
            files, is_whole = self._listed(row)
            now = None if is_whole else self._models.get(row.key)
            if now is None or now.version == row.version:
                break
            row = now
        return files

    def _listed(self, row: Record) -> tuple[list[ModelFile], bool]:
        """And whether all files that the row names are among them."""
        self.check_place(row)
        folder = self._folder(row.key)
        records = records_of(row.values)
        named = {key: file for record in records.values() for file, key in record.files.items()}
        names, contents = set(named.values()), contents_of(row)
        by_name: dict[str, ModelFile] = {}
        for blob in self._store.blobs.list(f"{folder}/"):
            key = blob.key.removeprefix(f"{folder}/")
            if key in named:
                by_name[named[key]] = _file(named[key], blob, contents.get(key, ""))
            elif (
                key != DELETED
                and not key.startswith(f"{ATTEMPTS_FOLDER}/")
                and _plain_name(key) not in names
            ):
                by_name.setdefault(_shown_name(key), _file(_shown_name(key), blob))
        for blob in self._of_archai(row):
            name = blob.key.removeprefix(f"{row.key}/")
            by_name.setdefault(name, _file(name, blob))
        uploaded = records.get(UPLOAD, StageRecord()).files
        files = [replace(f, role=file_role(f.name, f.name in uploaded)) for f in by_name.values()]
        files.sort(key=lambda file: (file.role.rank, natural_key(file.name), file.name))
        return files, names <= by_name.keys()

    def check_place(self, row: Record) -> None:
        """Raises FilesAway where the row names files and the place of all files is not
        there: they are not gone, but on a disk or a share that is not mounted."""
        if _named(row) and not self._store.blobs.is_there():
            reason = "their folder is missing, and may be on a disk or a share that is not mounted:"
            reason = f"{reason} check that it is mounted, then try again"
            raise FilesAway(store=self._store.description, reason=reason)

    def download(self, row: Record, files: Sequence[ModelFile], to: Path) -> list[Path]:
        """Place files of a model in a folder: all of them, whole and what the row says, or none."""
        targets = [to / check_blob_key(file.name) for file in files]
        is_new = not to.exists()
        try:
            to.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=_FRESH, dir=to) as fresh:
                self._fetch(row, files, Path(fresh))
                for file, target in zip(files, targets, strict=True):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    (Path(fresh) / file.name).replace(target)
        except OSError as error:
            path, reason = error.filename2 or error.filename or to, error.strerror or str(error)
            raise LocalFileError(path=_destination(path, to), reason=reason) from None
        except LocalFileError as error:
            path = _destination(str(error.fields["path"]), to)
            raise LocalFileError(path=path, reason=error.fields["reason"]) from None
        finally:
            if is_new:
                with contextlib.suppress(OSError):
                    to.rmdir()  # unless it holds what was asked for
        return targets

    def _fetch(self, row: Record, files: Sequence[ModelFile], folder: Path) -> None:
        """What arrives damaged is asked for once more: the connection may be to blame."""
        missing = list(files)
        for is_last in (False, True):
            self._store.blobs.get_many({file.key: folder / file.name for file in missing})
            missing = [f for f in missing if f.sha256 and sha256_of(folder / f.name) != f.sha256]
            if is_last and missing:
                raise missing[0].damaged()
            if not missing:
                break
        check_upload(row, {file.name: folder / file.name for file in files})

    def put_attempt(
        self, model: str, token: str, files: Mapping[str, Path], toolchain: str = ""
    ) -> dict[str, str]:
        """Step 1; returns each file's key below the model's folder, for the row."""
        folder = f"{ATTEMPTS_FOLDER}/{token}"
        keys = {name: f"{folder}/{stored_name(name, toolchain)}" for name in files}
        folder = self._folder(model)
        self._store.blobs.put_many({f"{folder}/{keys[name]}": path for name, path in files.items()})
        return keys

    def publish(self, model: str, token: str, files: Mapping[str, Path]) -> None:
        """Steps 3 to 5, after the commit. Repeating them does no harm."""
        self._publish(model, token, files, lambda name, key: files[name].read_bytes())

    def finish_publishing(self, model: str, token: str) -> None:
        """Steps 3 to 5 for a machine that died after its commit, from the files that it stored."""
        row = self._models.get(model)
        names = _hidden(row, token).values() if row else ()
        self._publish(model, token, tuple(names), lambda _, key: self._store.blobs.read(key))

    def _publish(
        self,
        model: str,
        token: str,
        names: Collection[str],
        content_of: Callable[[str, str], bytes],
    ) -> None:
        """`content_of` gets a file's name and its whole key."""
        row = self._models.get(model)
        hidden_names = (
            {k: name for k, name in _hidden(row, token).items() if name in names} if row else {}
        )
        hidden, folder = f"{ATTEMPTS_FOLDER}/{token}/", self._folder(model)
        uploaded = _upload_key(row) if row else ""
        taken = _named(row)
        created = {}
        for key, name in hidden_names.items():
            place = f"{folder}/{key}"
            content = content_of(name, place)
            stored = _published_name(key.removeprefix(hidden), uploaded)
            created[key] = self._create(model, stored, content, taken, place)
        plain = {key: created_key for key, created_key in created.items() if created_key}

        def rename(row: Record) -> Changes | None:
            before = records_of(row.values)
            after = {
                stage: replace(
                    record, files={name: plain.get(key, key) for name, key in record.files.items()}
                )
                for stage, record in before.items()
            }
            return with_records(after) if after != before else None

        if plain:
            with contextlib.suppress(ModelBusy):  # the row still names the hidden files
                change_row(self._models, model, rename, row)
        self.clear_attempt(model, token)

    def leftovers(self, row: Record, blobs: Iterable[BlobInfo]) -> Leftovers:
        """Which of these files of a model are orphaned. The row must have been read after the files
        were listed: an attempt stores its files while its token is in the row, and a token never
        comes back. So what a token stored that the row neither holds nor names can never count."""
        records = records_of(row.values)
        held = {record.token for record in records.values() if record.is_held}
        named, folder = _named(row), self._folder(row.key)
        names = {name for record in records.values() for name in record.files}
        unfinished = {_token(key) for key in named if _token(key)} - held
        is_free = not held and not is_foreign(row.values, records)
        is_quiet = is_free and not unfinished and row.values.get("status") not in _HALF_MADE
        attempts, unpublished, results = [], [], []
        for blob in blobs:
            key = blob.key.removeprefix(f"{folder}/")
            token = _token(key)
            if token in unfinished and key in named:
                unpublished.append(blob)
            elif token and token not in held and key not in named:
                attempts.append(blob)
            elif is_quiet and not token and key not in named and is_copy(key, names):
                results.append(blob)
        return Leftovers(attempts, results, unpublished, frozenset(unfinished))

    def clear_attempt(self, model: str, token: str) -> None:
        """Delete what an attempt left, except what the row names; and what attempts before it left,
        whose machines died."""
        folder = f"{self._folder(model)}/{ATTEMPTS_FOLDER}"
        listed = list(self._store.blobs.list(f"{folder}/"))
        row = self._models.get(model) if listed else None
        if row is None:
            left = [blob for blob in listed if blob.key.startswith(f"{folder}/{token}/")]
        else:
            left = list(self.leftovers(row, listed).attempts)
        self._store.blobs.delete([blob.key for blob in left])

    def stale(
        self, row: Record, stages: Collection[str], patterns: Collection[str]
    ) -> list[BlobInfo]:
        """The files that these stages made: those in their records, what lies over from
        earlier attempts at them, and other tools' by their names. Never the upload's own."""
        folder = self._folder(row.key)
        records = records_of(row.values)
        uploaded = set(records[UPLOAD].files) if UPLOAD in records else set()
        others = [record for stage, record in records.items() if stage not in stages]
        named_elsewhere = {key for record in others for key in record.files.values()}
        made = {name: key for s in stages if s in records for name, key in records[s].files.items()}
        stale = {f"{folder}/{key}" for key in made.values()}
        blobs = self.all_of(row)
        for blob in blobs:
            is_ours = blob.key.startswith(f"{folder}/")
            place = blob.key.removeprefix(f"{folder if is_ours else row.key}/")
            name = _plain_name(place)
            if "/" in place or place in uploaded or place in named_elsewhere:
                continue
            if name in made or any(matches(name, pattern) for pattern in patterns):
                stale.add(blob.key)
        return [blob for blob in blobs if blob.key in stale]

    def all_of(self, row: Record) -> list[BlobInfo]:
        """Everything, wherever it is."""
        return [*self._store.blobs.list(f"{self._folder(row.key)}/"), *self._of_archai(row)]

    def is_elsewhere(self, row: Record) -> bool:
        """Whether other tools keep files of the model outside its folder."""
        return bool(self._of_archai(row))

    def _of_archai(self, row: Record) -> list[BlobInfo]:
        """Files directly in `<model>/`, of a row that Edgeloop did not upload. Deeper ones belong
        to an experiment that has the name of the model."""
        is_ours = UPLOAD in records_of(row.values) or "content" in row.values
        if is_ours or row.values.get("status") == CANDIDATE:
            return []
        folder = f"{row.key}/"
        return [b for b in self._store.blobs.list(folder) if "/" not in b.key.removeprefix(folder)]

    def _create(
        self, model: str, stored: str, content: bytes, named: Collection[str], hidden: str = ""
    ) -> str:
        """Store a file under its plain name or, if that is taken, the name with a number. One with
        this content that no record names and that is newer than the hidden one is from a
        publication of it that broke off, and will do. An older one may be about to be deleted, by a
        reset or a clean-up that has seen it before. Empty: all were taken, and the file stays where
        it is."""
        for number in range(1, MOST_OF_A_NAME + 1):
            key = stored if number == 1 else _numbered(stored, number)
            place = f"{self._folder(model)}/{key}"
            if self._store.blobs.create(place, content):
                return key
            if key not in named and hidden and self._is_copy_of(hidden, place, content):
                return key
        return ""

    def _is_copy_of(self, hidden: str, key: str, content: bytes) -> bool:
        original, copy = self._store.blobs.info(hidden), self._store.blobs.info(key)
        if original is None or copy is None or copy.size != len(content):
            return False
        with contextlib.suppress(BlobMissing):
            return copy.modified > original.modified and self._store.blobs.read(key) == content
        return False

    def _folder(self, model: str) -> str:
        return f"{self._experiment}/{model}"


def check_upload(row: Record, files: Mapping[str, Path]) -> None:
    """Raises FileDamaged if these are all files of an upload and together not what the row says.
    For rows of older versions, which say no content of single files."""
    record = records_of(row.values).get(UPLOAD, StageRecord())
    if not set(record.files) <= files.keys() or set(_models_of(record)) <= record.sha256.keys():
        return
    if is_as_uploaded(row, lambda name: file_chunks(files[name])) is False:
        model, content = str(row.values["model_name"]), str(row.values["content"])
        raise FileDamaged(file=model, key=f"content {content[:12]}…", model=row.key)


def is_as_uploaded(row: Record, read: Callable[[str], Iterable[bytes]]) -> bool | None:
    """Whether the files of an upload, read by name, are together what the row says; None if it does
    not say. Given shapes are part of what it says, and may have been edited since."""
    record = records_of(row.values).get(UPLOAD, StageRecord())
    model, content = str(row.values.get("model_name", "")), str(row.values.get("content", ""))
    names = _models_of(record)
    if row.values.get("shapes") or model not in names or not _SHA256.fullmatch(content):
        return None
    for chosen in (names, record.files):  # a file of that name may be data of the model
        digest = ContentDigest(model, {})
        for name in sorted(chosen, key=lambda name: (name != model, name)):
            digest.add(name, read(name))
        if digest.content == content:
            return True
    return False


def _models_of(record: StageRecord) -> list[str]:
    return [name for name in record.files if name != ARCHITECTURE]


def stored_name(name: str, toolchain: str = "") -> str:
    """The name of a result in an attempt's folder: one that Archai takes for what it is, or for
    nothing."""
    stored = name.replace(".onnx", "~onnx")
    if not stored.endswith(".dlc") or ".classes." in stored:
        return stored
    if toolchain == ARCHAI_TOOLCHAIN:
        return "model.quant.dlc" if stored.endswith(".quant.dlc") else "model.dlc"
    return stored.replace(".dlc", "~dlc") if stored in _OF_ARCHAI else stored


def _upload_key(row: Record) -> str:
    """Where the model's own file is, below its folder."""
    name = str(row.values.get("model_name") or "")
    return records_of(row.values).get(UPLOAD, StageRecord()).files.get(name, name)


def _published_name(stored: str, uploaded: str) -> str:
    """The name of a result beside the upload. Archai takes the first ONNX file that is listed."""
    readable = stored.replace("~onnx", ".onnx")
    return readable if uploaded.endswith(".onnx") and readable > uploaded else stored


def _named(row: Record | None) -> set[str]:
    """Keys below the model's folder."""
    records = records_of(row.values).values() if row else ()
    return {key for record in records for key in record.files.values()}


def _hidden(row: Record, token: str) -> dict[str, str]:
    """Names of the files that an attempt stored and the row names, by their hidden keys."""
    return {
        key: name
        for record in records_of(row.values).values()
        for name, key in record.files.items()
        if key.startswith(f"{ATTEMPTS_FOLDER}/{token}/")
    }


def _token(key: str) -> str:
    """That of the attempt in whose folder a file is; empty: in no attempt's."""
    parts = key.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == ATTEMPTS_FOLDER else ""


def is_copy(key: str, names: Collection[str]) -> bool:
    """Whether it is another copy of a file that the row names elsewhere. Archai's are its own."""
    return "/" not in key and key not in _OF_ARCHAI and _plain_name(key) in names


def _shown_name(stored: str) -> str:
    return stored.replace("~onnx", ".onnx").replace("~dlc", ".dlc")


def _plain_name(stored: str) -> str:
    """The name that users see, of a file whose name may have been taken."""
    return _shown_name(_NUMBER.sub("", stored))


def _destination(path: str | Path, to: Path) -> Path:
    """Where a file of a download should go that failed in its temporary folder."""
    with contextlib.suppress(ValueError):
        first, *others = Path(path).absolute().relative_to(to.absolute()).parts
        if first.startswith(_FRESH):
            return to.joinpath(*others)
    return Path(path)


def _numbered(name: str, number: int) -> str:
    stem, dot, suffixes = name.partition(".")
    return f"{stem}~{number}{dot}{suffixes}"


def _file(name: str, blob: BlobInfo, sha256: str = "") -> ModelFile:
    return ModelFile(name, blob.key, blob.size, blob.modified, blob.version, sha256)


def contents_of(row: Record) -> dict[str, str]:
    """The content of each file that the row says it of, by key below the model's folder. Rows of
    older versions say it of the upload alone: with one file and no shapes it is that file's."""
    records = records_of(row.values)
    digests = {
        record.files[name]: sha256
        for record in records.values()
        for name, sha256 in record.sha256.items()
        if name in record.files and _SHA256.fullmatch(sha256)
    }
    uploaded = records.get(UPLOAD, StageRecord()).files
    models = [key for name, key in uploaded.items() if name != ARCHITECTURE]
    content = str(row.values.get("content", ""))
    if len(models) == 1 and not row.values.get("shapes") and _SHA256.fullmatch(content):
        digests.setdefault(models[0], content)
    return digests


def _model_of(key: str) -> str:
    """Which model a file belongs to: `<experiment>/<model>/…`, or `<model>/<file>` of Archai."""
    parts = key.split("/")
    return parts[1] if len(parts) > 2 else parts[0]


# Ending, place in lists, words. Longer endings come first: `.dlc` is also how `.quant.dlc` ends.
_DEPLOYED = (
    (".classes.quant.dlc", 5, "quantized, for Qualcomm's tools, ends in classes"),
    (".classes.dlc", 6, "float, for Qualcomm's tools, ends in classes"),
    (".quant.dlc", 2, "quantized, for Qualcomm's tools"),
    (".dlc", 3, "float, for Qualcomm's tools"),
    (".quant.onnx", 4, "quantized, for ONNX Runtime"),
    (".ctx.onnx", 1, "loads the context binary in ONNX Runtime"),
    (".bin", 0, "context binary"),
)


_FOR_A_CHIP = (".ctx.onnx", ".bin")
_RESULTS = (
    ("perf_results", "latency and times of layers"),
    ("test_results", "scores"),
    ("pr_curve", "precision and recall"),
    ("examples_", "images of the test"),
)
_DETAILS = (".json", ".yaml", ".yml", ".csv", ".html", ".txt")


def file_role(name: str, is_uploaded: bool = False) -> FileRole:
    """By the names that stages give, see docs/reference/rows.md. What was uploaded is the model
    itself or belongs to it, whatever it is called."""
    if name.endswith(".onnx") and (is_uploaded or not name.endswith((".quant.onnx", ".ctx.onnx"))):
        return FileRole("deploy", 7, "float, as uploaded" if is_uploaded else "float")
    if is_uploaded:
        is_detail = name.endswith(_DETAILS)
        return OTHER_FILE if is_detail else FileRole("deploy", 8, "weights, as uploaded")
    for suffix, rank, about in _DEPLOYED:
        if name.endswith(suffix):
            chip = name.removesuffix(suffix).rpartition(".")[2] if suffix in _FOR_A_CHIP else ""
            is_known = chip and chip != name.removesuffix(suffix)
            return FileRole("deploy", rank, f"{about}, for {chip}" if is_known else about)
    for rank, (prefix, about) in enumerate(_RESULTS, start=10):
        if name.startswith(prefix):
            return FileRole("result", rank, about)
    if name.endswith((".layers.csv", ".layers.html")):
        return FileRole("result", 20, "table of layers")
    return OTHER_FILE


def check_file_name(name: str) -> str:
    """A model's file keeps its own name; it only may not be a path or hide control characters."""
    unprintable = any(ord(char) < 32 or ord(char) == 127 for char in name)
    if not name or name in (".", "..") or "/" in name or "\\" in name or unprintable:
        reason = "a file's name may not hold slashes or control characters"
        raise BadName(what="file", name=name, reason=reason)
    if len(name.encode(errors="surrogateescape")) > 240:
        raise BadName(what="file", name=f"{name[:20]}…", reason="it is longer than 240 bytes")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadName(what="file", name=name, reason="it is not valid UTF-8") from None
    return name


def file_chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None


class ContentDigest:
    """One hash over a model, its external data and shapes that were given for it, as rows have it
    in `content`: the model first, then the others by name. The model's own name does not count."""

    def __init__(self, model: str, shapes: Mapping[str, Sequence[int]]) -> None:
        self._model = model
        self._shapes = shapes
        self._total = hashlib.sha256()
        self.sha256: dict[str, str] = {}

    def add(self, name: str, chunks: Iterable[bytes]) -> int:
        """The next file; its size."""
        file_digest, size = hashlib.sha256(), 0
        if name != self._model:
            self._total.update(f"\0{name}\0".encode())
        for chunk in chunks:
            file_digest.update(chunk)
            self._total.update(chunk)
            size += len(chunk)
        self.sha256[name] = file_digest.hexdigest()
        return size

    @property
    def content(self) -> str:
        total = self._total.copy()
        for name, shape in sorted(self._shapes.items()):
            total.update(f"\0{name}={tuple(shape)}".encode())
        return total.hexdigest()
