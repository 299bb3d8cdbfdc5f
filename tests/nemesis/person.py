"""People in between: they upload, reset, delete, unlock and change priorities while workers work.

A person whose command fails says it again until it is answered, as people do; the whole time is one
operation. What they see afterwards is written down, too.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from edgeloop.errors import Conflict, EdgeloopError, ModelBusy, NoSuchModel
from edgeloop.models.queue import Queue
from edgeloop.models.upload import UploadOptions
from edgeloop.settings import Settings
from edgeloop.testing.models import save_classification_model
from edgeloop.workspace import Workspace
from tests.nemesis.history import Operation, Writer
from tests.nemesis.worker import ready_stages

PATIENCE_S = 100.0  # an upload of the same file that broke off is waited for
PRIORITIES = (None, 0, 5, 25, 45, 150, 1_000)
UPLOADED, STOP = "uploaded", "people-stop"
DEEDS = ("priority", "edit", "reset", "replace", "unlock", "delete", "priority", "reset")


class Person:
    def __init__(self, folder: Path, models: int, seed: int) -> None:
        self._workspace = Workspace(Settings.load())
        experiment, settings = self._workspace.experiment, self._workspace.settings
        self._models = self._workspace.store.models(experiment)
        hints = self._workspace.store.queue(experiment)
        self._queue = Queue(hints, self._workspace.plan, settings.clock_margin_seconds)
        self._history = Writer(folder / "person.jsonl")
        self._file = folder / "net.onnx"
        self._dice = random.Random(seed)
        self._files_made = 0
        self._names = [f"model-{number:03d}" for number in range(models)]
        self._doomed = self._names[-max(1, models // 6) :]

    def upload_all(self) -> None:
        for name in self._names:
            self._upload(name)

    def act(self, deed: str) -> None:
        {
            "priority": self._set_priority,
            "edit": self._edit_priority,
            "reset": self._reset,
            "replace": self._replace,
            "unlock": self._unlock,
            "delete": self._delete_for_good,
        }[deed]()

    def _set_priority(self) -> None:
        name, priority = self._any_model(), self._dice.choice(PRIORITIES)
        doing = self._history.intend("priority", name)
        catalog = self._workspace.catalog
        self._insist(doing, lambda: catalog.set_priority(name, priority), "priority", to=priority)

    def _edit_priority(self) -> None:
        """As another tool does it, which knows no hints. One that is taken out by hand is another
        matter: it counts at the next sweep, or when its hint is met."""
        name, priority = self._any_model(), self._dice.choice(PRIORITIES[1:])
        doing = self._history.intend("priority", name)

        def edit() -> None:
            row = self._models.get(name)
            if row is None:
                raise NoSuchModel(pattern=name, experiment=self._workspace.experiment)
            self._models.update(row, {"priority": str(priority)})

        self._insist(doing, edit, "priority", to=priority)

    def _reset(self) -> None:
        """Of those that are done, so that there is work until the end."""
        name = self._any_model()
        for _ in range(len(self._names)):
            row = self._row(name)
            if row is not None and row.get("status") in ("complete", "error"):
                break
            name = self._any_model()
        stages = [] if self._dice.random() < 0.5 else [self._dice.choice(["convert", "benchmark"])]
        doing = self._history.intend("reset", name)
        found: list[str] = []

        def reset() -> None:
            found[:] = sorted(self._workspace.catalog.reset(name, stages))

        self._insist(doing, reset, "reset", stages=found)

    def _unlock(self) -> None:
        name = self._any_model()
        doing = self._history.intend("unlock", name)
        freed: list[str] = []

        def unlock() -> None:
            freed[:] = self._workspace.catalog.unlock(name)

        self._insist(doing, unlock, "unlocked", stages=freed)

    def _replace(self) -> None:
        name = self._any_model()
        if self._delete(name):
            self._upload(name)

    def _delete_for_good(self) -> None:
        if self._doomed:
            name = self._doomed.pop()
            self._names.remove(name)
            self._delete(name)

    def _delete(self, name: str) -> bool:
        """One that was said before, and whose answer was lost, finds no model any more."""
        doing = self._history.intend("delete", name)

        def delete() -> None:
            try:
                self._workspace.catalog.delete(name)
            except NoSuchModel:
                return

        return self._insist(doing, delete, "deleted")

    def _upload(self, name: str) -> None:
        """An upload that broke off holds its name; its message says what to do."""
        self._files_made += 1
        save_classification_model(self._file, size=8, classes=2, seed=self._files_made)
        doing = self._history.intend("upload", name)
        options = UploadOptions(check=False)
        content: list[str] = []

        def upload() -> None:
            catalog = self._workspace.catalog
            try:
                catalog.upload(self._file, name, options)
            except ModelBusy:
                catalog.delete(name)
                catalog.upload(self._file, name, options)
            content[:] = [str(catalog.get(name).values.get("content"))]

        digest = hashlib.sha256(self._file.read_bytes()).hexdigest()
        self._insist(doing, upload, "uploaded", content=content, file=digest)

    def _insist(
        self, doing: Operation, action: Callable[[], object], done: str, **detail: object
    ) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                action()
                break
            except NoSuchModel:
                doing.ended("refused", of=done)
                return False
            except EdgeloopError as error:
                if time.monotonic() > deadline:
                    doing.ended("unsure", of=done, why=str(error))
                    return False
            time.sleep(0.1)
        doing.ended(done, **detail)
        self._look(doing.model)
        return True

    def _look(self, name: str) -> None:
        began = time.monotonic()
        row = self._row(name)
        if row is not None:
            ready = ready_stages(row, name, self._workspace.plan, self._queue)
            self._history.add("seen", name, began=began, ready=ready)

    def _row(self, name: str) -> object:
        try:
            row = self._models.get(name)
        except (EdgeloopError, Conflict):
            return None
        return None if row is None else row.values

    def _any_model(self) -> str:
        return self._dice.choice(self._names)


def main(folder: str, models: str, seed: str, pause_s: str) -> None:
    home, dice = Path(folder), random.Random(int(seed))
    person = Person(home, int(models), int(seed))
    person.upload_all()
    (home / UPLOADED).touch()
    number = 0
    while not (home / STOP).exists():
        person.act(DEEDS[number % len(DEEDS)])
        number += 1
        time.sleep(dice.uniform(0.5, 1.5) * float(pause_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
