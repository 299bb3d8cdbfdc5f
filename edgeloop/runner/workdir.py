"""The runner's working folder: a cache of model files, and a clean folder for each stage.

Everything lies below one folder that the runner created and marked; it touches nothing else. Cached
files serve the next stage of the same model; the oldest are evicted above a size limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from edgeloop._util.locks import ScratchFolder
from edgeloop.errors import BadInput, LocalFileError, StoreUnavailable
from edgeloop.models import Lease, ModelFile
from edgeloop.store import Blobs, check_blob_key
from edgeloop.workspace import Workspace

MARK = ".edgeloop-workdir"
DEFAULT_CAP_BYTES = 20 * 10**9
TRIES = 10


class WorkFolder:
    def __init__(self, root: Path, cap_bytes: int = DEFAULT_CAP_BYTES) -> None:
        self._root = root
        self._cap_bytes = cap_bytes
        self._claim_root()

    @property
    def cache(self) -> Path:
        """For prepared datasets, which are keyed by content and shared by all stages."""
        return self._root / "data"

    def fetch(self, blobs: Blobs, files: Mapping[str, ModelFile], folder: Path) -> dict[str, Path]:
        """Places the files in `folder` under their plain names, using the cache."""
        missing: dict[str, Path] = {}
        kept: dict[str, Path] = {}
        for name, file in files.items():
            kept[name] = self._root / "files" / check_blob_key(file.key) / _version(file)
            if not kept[name].exists():
                missing[file.key] = kept[name]
        blobs.get_many(missing)
        fetched = {}
        for name, path in kept.items():
            target = folder / check_blob_key(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            for _ in range(TRIES):
                if _copied(path, target):
                    break
                blobs.get(files[name].key, path)  # another process made room, or cleaned up
            fetched[name] = target
        self._shrink()
        return fetched

    @contextlib.contextmanager
    def stage_folder(self) -> Iterator[Path]:
        """A temporary folder for one stage, always removed."""
        stages = self._root / "stages"
        scratch = None
        try:
            scratch = ScratchFolder(stages)
            yield scratch.path
        except OSError as error:
            reason = error.strerror or str(error)
            raise LocalFileError(path=error.filename or stages, reason=reason) from None
        finally:
            if scratch is not None:
                scratch.close()

    def _claim_root(self) -> None:
        """Refuses a folder with content that is not ours."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if not (self._root / MARK).exists():
                if any(self._root.iterdir()):
                    reason = (
                        "it is not empty and was not made by Edgeloop; choose another --workdir"
                    )
                    raise LocalFileError(path=self._root, reason=reason)
                (self._root / MARK).touch()
        except OSError as error:
            reason = f"{error.strerror}: choose another folder with --workdir or EDGELOOP_WORKDIR"
            raise LocalFileError(path=self._root, reason=reason) from None

    def _shrink(self) -> None:
        files = [path for path in (self._root / "files").rglob("*") if path.is_file()]
        facts = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in files)
        total = sum(size for _, size, _ in facts)
        for _, size, path in facts:
            if total <= self._cap_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def stored_files(workspace: Workspace, lease: Lease) -> dict[str, ModelFile]:
    """The model's files, by name. Raises StoreUnavailable where the store has no file at all of an
    experiment that has models: most likely the folder of its files is not mounted here."""
    files = {file.name: file for file in workspace.catalog.files(lease.model)}
    uploaded = str(lease.row.values.get("model_name") or "")
    if files and (not uploaded or uploaded in files):
        return files
    blobs, experiment = workspace.store.blobs, workspace.experiment
    places = (experiment, lease.model)
    is_there = blobs.is_there() and any(any(blobs.list(f"{place}/")) for place in places)
    if not is_there:
        reason = (
            f"it has models in {experiment!r} and not one of their files: the folder or container "
            "of its files is another one, or not mounted on this machine"
        )
        raise StoreUnavailable(store=workspace.store.description, reason=reason)
    what = f"its file {uploaded}" if uploaded else "its ONNX file"
    reason = f"{what} is no longer in the store: delete {lease.model} and upload it again"
    raise BadInput(reason=reason)


def _copied(path: Path, target: Path) -> bool:
    """Copies a file of the cache, and says there that it was used; False if it is gone. Not a link:
    onnx refuses external data with several names, and tools may write to it."""
    try:
        os.utime(path)
        shutil.copyfile(path, target)
    except FileNotFoundError:
        return False
    return True


def _version(file: ModelFile) -> str:
    """A file may be replaced by another of the same name and size."""
    text = f"{file.size} {file.modified.isoformat()} {file.version}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
