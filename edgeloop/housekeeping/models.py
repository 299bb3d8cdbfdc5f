"""What is left over of models: attempts that never counted, uploads and deletes that broke off,
files and hints of models that are gone, runners that died."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from edgeloop.errors import BadName, BlobMissing
from edgeloop.fleet import FleetRecord, Fleets
from edgeloop.housekeeping.findings import SAFETY_S, ReportDraft
from edgeloop.models import (
    ATTEMPTS_FOLDER,
    UPLOAD,
    Catalog,
    Leftovers,
    Queue,
    Registry,
    check_model_name,
    default_plan,
    is_copy,
    records_of,
)
from edgeloop.settings import Settings
from edgeloop.store import BlobInfo, Condition, Record, Store, Table

STORE = "store"
FORGET_RUNNERS_S = 86_400.0
RECLAIMED = "!reclaimed"  # the note of when somebody last did
_NOTHING: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
_OF_MODELS = (".onnx", "~onnx", ".dlc", "~dlc")


class ModelLeftovers:
    """Those of one experiment; what is younger than `older_s` at the time `now` stays."""

    def __init__(
        self,
        store: Store,
        experiment: str,
        settings: Settings,
        older_s: float,
        now: float,
        attempts_at_once: bool = False,
    ) -> None:
        """`attempts_at_once`: files of attempts that never counted go whatever their age. Rows
        alone say which these are; an age only keeps `gc` to what it was asked for."""
        self._store = store
        self._experiment = experiment
        self._models: Table = store.models(experiment)
        self._catalog = Catalog(
            *(store, experiment, default_plan()),
            node=settings.node,
            margin_s=settings.clock_margin_seconds,
            clock=store.now,
        )
        self._queue = Queue(store.queue(experiment), default_plan(), settings.clock_margin_seconds)
        least_s = settings.lease_seconds + settings.clock_margin_seconds + SAFETY_S
        self._before = now - max(older_s, least_s)
        self._attempts_before = math.inf if attempts_at_once else self._before
        self._now = now

    def find(self, draft: ReportDraft) -> None:
        self._find_rows(draft)
        suspects = self._suspects()
        self._find_files(draft, suspects)
        orphans = [record.key for record in self._queue.orphans(self._models)]
        draft.add(
            *("hints", STORE, [], "of models that are gone", self._remove_hints, orphans),
        )

    def reclaim(self, interval_s: float) -> None:
        """What idle runners do: remove what was found, one of them for all."""

        def remove() -> None:
            draft = ReportDraft()
            self.find(draft)
            for finding in draft.findings:
                finding.remove()

        self._queue.in_turn(RECLAIMED, self._now, interval_s, remove)

    def _find_rows(self, draft: ReportDraft) -> None:
        uploads = [row.key for row in self._rows("uploading") if self._is_dead_upload(row)]
        deletes = [row.key for row in self._rows("deleting") if self._is_dead_delete(row)]
        for kind, names in (("uploads", uploads), ("deletes", deletes)):
            sizes = [self._size_of(name) for name in names]
            why = "that broke off" if kind == "uploads" else "that broke off: they are finished"
            remove = self._clears(names)
            draft.add(f"unfinished {kind}", STORE, sizes, why, remove, self._named(names))

    def _find_files(self, draft: ReportDraft, suspects: Mapping[str, Sequence[BlobInfo]]) -> None:
        attempts: list[BlobInfo] = []
        results: list[BlobInfo] = []
        unpublished: list[BlobInfo] = []
        gone: dict[str, Sequence[BlobInfo]] = {}
        strange: list[str] = []
        for name, blobs in suspects.items():
            row = self._models.get(name)
            if row is None:
                if not _is_model(blobs):
                    strange.append(name)
                elif all(self._is_old(blob) for blob in blobs):
                    gone[name] = blobs
                continue
            found = self._catalog.stored.leftovers(row, blobs)
            attempts += filter(self._is_old_attempt, found.attempts)
            results += filter(self._is_old, found.results)
            unpublished += filter(self._is_old, found.unpublished)
        self._add(
            *(draft, "orphaned attempts", attempts, "files of attempts that never counted"),
            lambda found: filter(self._is_old_attempt, found.attempts),
        )
        self._add(
            *(draft, "replaced results", results, "copies that no row names"),
            lambda found: filter(self._is_old, found.results),
        )
        why = "committed by a runner that died: they get their names"
        keys, sizes = [blob.key for blob in unpublished], [blob.size for blob in unpublished]
        models = sorted({self._model_of(blob.key) for blob in unpublished})
        draft.add(
            *("unpublished results", STORE, sizes, why, lambda: self._publish(models), keys),
            verb="publish",
        )
        if strange:
            what = f"{self._experiment}/{strange[0]}" + (" and others" if strange[1:] else "")
            draft.notes.append(f"{what}: no model has that name, and the files are of none")
        sizes = [sum(blob.size for blob in blobs) for blobs in gone.values()]
        names = self._named(gone)
        why = "models whose rows are gone"
        draft.add("files of models", STORE, sizes, why, lambda: self._clear(gone), names)

    def _add(
        self,
        draft: ReportDraft,
        kind: str,
        blobs: Sequence[BlobInfo],
        why: str,
        which: Callable[[Leftovers], Iterable[BlobInfo]],
    ) -> None:
        keys, sizes = [blob.key for blob in blobs], [blob.size for blob in blobs]
        models = sorted({self._model_of(key) for key in keys})

        def remove() -> int:
            return sum(self._remove_files(model, which) for model in models)

        draft.add(kind, STORE, sizes, why, remove, keys)

    def _remove_files(self, model: str, which: Callable[[Leftovers], Iterable[BlobInfo]]) -> int:
        """Listed and judged again: the row right before the files go."""
        listed = list(self._store.blobs.list(f"{self._experiment}/{model}/"))
        row = self._models.get(model)
        if row is None:
            return 0
        found = which(self._catalog.stored.leftovers(row, listed))
        return self._store.blobs.delete_unchanged(found)

    def _publish(self, models: Iterable[str]) -> int:
        done = 0
        for model in models:
            listed = list(self._store.blobs.list(f"{self._experiment}/{model}/"))
            row = self._models.get(model)
            found = self._catalog.stored.leftovers(row, listed) if row else None
            for token in found.tokens if found else ():
                own = [b for b in found.unpublished if f"/{token}/" in b.key] if found else []
                if own and all(self._is_old(blob) for blob in own):
                    with contextlib.suppress(BlobMissing):  # its runner lives after all
                        self._catalog.stored.finish_publishing(model, token)
                        done += len(own)
        return done

    def _clear(self, names: Iterable[str]) -> int:
        return sum(self._catalog.clear_orphans(name, self._before) for name in names)

    def _clears(self, names: Sequence[str]) -> Callable[[], int]:
        def clear() -> int:
            done = 0
            for name in names:
                row = self._models.get(name)
                if row is not None and (self._is_dead_upload(row) or self._is_dead_delete(row)):
                    done += self._catalog.clear_half_made(row)
            return done

        return clear

    def _remove_hints(self) -> int:
        return sum(self._queue.remove(record) for record in self._queue.orphans(self._models))

    def _suspects(self) -> dict[str, list[BlobInfo]]:
        """Files that may be left over, by model; whether they are, the row says later."""
        known: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        for row in self._models.query():
            records = records_of(row.values).values()
            keys = frozenset(key for record in records for key in record.files.values())
            known[row.key] = keys, frozenset(name for record in records for name in record.files)
        found: dict[str, list[BlobInfo]] = {}
        for blob in self._store.blobs.list(f"{self._experiment}/"):
            _, model, key = (*blob.key.split("/", 2), "", "")[:3]
            if not key or not _is_model_name(model):
                continue
            keys, names = known.get(model, _NOTHING)
            is_hidden = key.startswith(f"{ATTEMPTS_FOLDER}/")
            if model not in known or is_hidden or (key not in keys and is_copy(key, names)):
                found.setdefault(model, []).append(blob)
        return found

    def _rows(self, status: str) -> list[Record]:
        return list(self._models.query(where=[Condition("status", "==", status)]))

    def _is_dead_upload(self, row: Record) -> bool:
        upload = records_of(row.values).get(UPLOAD)
        expired = upload is None or upload.expires < self._before
        return row.values.get("status") == "uploading" and expired and self._is_silent(row)

    def _is_dead_delete(self, row: Record) -> bool:
        return row.values.get("status") == "deleting" and self._is_silent(row)

    def _is_silent(self, row: Record) -> bool:
        """By when its status changed; a row that does not say it is left alone."""
        try:
            since = datetime.fromisoformat(str(row.values.get("since")))
        except ValueError:
            return False
        return since.replace(tzinfo=since.tzinfo or UTC).timestamp() < self._before

    def _is_old(self, blob: BlobInfo) -> bool:
        return blob.modified.timestamp() < self._before

    def _is_old_attempt(self, blob: BlobInfo) -> bool:
        return blob.modified.timestamp() < self._attempts_before

    def _size_of(self, model: str) -> int:
        return sum(b.size for b in self._store.blobs.list(f"{self._experiment}/{model}/"))

    def _named(self, models: Iterable[str]) -> list[str]:
        return [f"{self._experiment}/{name}" for name in models]

    def _model_of(self, key: str) -> str:
        return key.split("/", 2)[1]


def find_runners(store: Store, older_s: float, draft: ReportDraft) -> None:
    """Entries of runners that were killed; the others remove theirs when they end."""
    registry = Registry(store)
    age_s = min(older_s, FORGET_RUNNERS_S)
    dead = [entry.id for entry in registry.forgettable(age_s)]
    why = "entries of runners that died"
    draft.add("dead runners", STORE, [], why, lambda: registry.prune(age_s), dead)


def find_fleets(store: Store, older_s: float, draft: ReportDraft) -> None:
    """Records of fleets whose supervisor has been silent for that long: one that is briefly away
    comes back to its record."""
    fleets, now = Fleets(store), store.now()
    age_s = max(older_s, SAFETY_S)

    def dead() -> list[FleetRecord]:
        found = [record for record in fleets.all() if not record.is_supervised]
        return [record for record in found if now - max(record.beat, record.started) > age_s]

    def remove() -> int:
        return sum(fleets.remove(record) for record in dead())

    names = [record.name for record in dead()]
    draft.add("dead fleets", STORE, [], "without a supervisor", remove, names)


def _is_model(blobs: Sequence[BlobInfo]) -> bool:
    """Whether a folder without a row is what is left of a model: people keep other files there."""
    keys = [blob.key for blob in blobs]
    return any(key.endswith(_OF_MODELS) or f"/{ATTEMPTS_FOLDER}/" in key for key in keys)


def _is_model_name(name: str) -> bool:
    with contextlib.suppress(BadName):
        check_model_name(name)
        return True
    return False
