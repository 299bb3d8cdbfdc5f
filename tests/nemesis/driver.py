"""The nemesis: does all kinds of things to workers, their network, their disk and their server,
lets them finish, collects the garbage, and has the history judged.

`run_round` does this in a process of its own, in a mount and process namespace: the small disk is
seen by nobody else, and whatever the round started ends with it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edgeloop.errors import EdgeloopError, StoreError
from edgeloop.models.plan import records_of
from edgeloop.operate.gc import GcOptions, find_leftovers, remove_leftovers
from edgeloop.settings import Settings
from edgeloop.store import Values
from edgeloop.workspace import Workspace
from tests.nemesis import checker, history
from tests.nemesis.arena import EXPERIMENT, MARGIN_S, MAX_ATTEMPTS, ROOT, Arena, Round
from tests.nemesis.faults import YEAR_S, Fault, faults_of
from tests.nemesis.person import UPLOADED
from tests.nemesis.priorities import Window

STRIKERS = 2  # so that faults overlap
STUCK_S = 60.0
SETTLED = ("complete", "error", "uploading", "deleting")  # people may leave things half done
PAUSE_S = 0.2
NAMESPACE = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass
class Report:
    """What the nemesis did, what workers and people saw, and what should not have been possible."""

    deeds: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    inversions: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    unlocked: list[str] = field(default_factory=list)
    orphans_before: int = 0
    orphans_after: int = 0


def run_round(plan: Round) -> Report:
    home = Path(plan.home)
    home.mkdir(parents=True, exist_ok=True)
    (home / "plan.json").write_text(json.dumps(asdict(plan)))
    ended = subprocess.run(
        ["unshare", *NAMESPACE, sys.executable, "-m", "tests.nemesis.driver", str(home)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        log = home / "errors.log"
        said = log.read_text()[-3_000:] if log.exists() else ""
        raise RuntimeError(f"the nemesis itself failed:\n{ended.stderr}\n{said}")
    found = json.loads((home / "report.json").read_text())
    found["deeds"], found["seen"] = Counter(found["deeds"]), Counter(found["seen"])
    return Report(**found)


class Nemesis:
    def __init__(self, plan: Round) -> None:
        self._plan = plan
        self._report = Report()
        self._lock = threading.Lock()

    def run(self) -> Report:
        plan, report = self._plan, self._report
        with Arena(plan) as arena:
            os.environ.update(arena.environ())
            self._torment(arena)
            self._heal(arena)
            workspace = Workspace(Settings.load(arena.project))
            self._let_them_finish(arena, workspace)
            for slot in arena.slots:
                with slot.lock:
                    arena.kill(slot)
            self._collect(workspace)
            final = checker.Final(_rows(workspace), _files(workspace))
            events = history.read(arena.histories)
            window = _window(plan.kind)
            verdict = checker.judge(workspace.plan, final, events, MAX_ATTEMPTS, window)
            report.violations += [*arena.ended, *verdict.violations]
            report.inversions, report.unfinished = verdict.inversions, verdict.unfinished
            report.seen = Counter(event.kind for event in events)
            if arena.ended:
                report.violations.append((arena.home / "errors.log").read_text()[-3_000:])
            workspace.store.close()
        return report

    def _torment(self, arena: Arena) -> None:
        """Every kind once, in an order that the seed decides; then by lot until the time is up."""
        deadline = time.monotonic() + self._plan.seconds
        dice = random.Random(self._plan.seed)
        todo = dice.sample(kinds := faults_of(self._plan.kind), len(kinds))
        locks = {fault.name: threading.Lock() for fault in kinds}  # no kind overlaps itself
        errors: list[BaseException] = []

        def strike(dice: random.Random) -> None:
            try:
                while (fault := self._next(todo, dice, deadline)) is not None:
                    with locks[fault.name]:
                        fault.strike(arena, dice)
                    self._report.deeds[fault.name] += 1
                    time.sleep(dice.uniform(0.5, 1.5) * PAUSE_S)
            except BaseException as error:
                errors.append(error)

        strikers = [
            threading.Thread(target=strike, args=(random.Random(self._plan.seed + number),))
            for number in range(STRIKERS)
        ]
        _wait_for(arena.histories / UPLOADED, self._plan.patience_s)
        for thread in strikers:
            thread.start()
        while any(thread.is_alive() for thread in strikers):
            time.sleep(PAUSE_S)
            arena.replace_the_dead()
        if errors:
            raise errors[0]

    def _next(self, todo: list[Fault], dice: random.Random, deadline: float) -> Fault | None:
        with self._lock:
            if todo:
                return todo.pop()
        if time.monotonic() > deadline:
            return None
        return dice.choice(faults_of(self._plan.kind))

    def _heal(self, arena: Arena) -> None:
        arena.dismiss_person(self._plan.patience_s)
        for slot in arena.slots:
            arena.set_clock(slot, 0.0)

    def _let_them_finish(self, arena: Arena, workspace: Workspace) -> None:
        """Until all is done or the patience ends; work that is left then is only unfinished. But
        where nobody accepts anything for long, it is stuck."""
        deadline = time.monotonic() + self._plan.patience_s
        last, since = "", time.monotonic()
        while time.monotonic() < deadline:
            arena.replace_the_dead()
            try:
                rows = _rows(workspace)
                self._unlock(workspace, rows)
            except StoreError:
                continue
            if all(row.get("status") in SETTLED for row in rows.values()):
                return
            now = json.dumps([row.get("stages") for row in rows.values()])
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > STUCK_S:
                self._report.violations.append(f"nothing moves: {_left(rows)}")
                return
            time.sleep(PAUSE_S)

    def _unlock(self, workspace: Workspace, rows: dict[str, Values]) -> None:
        """A machine whose clock was ahead, and that died, holds its work for as long: a person
        takes it away."""
        later = time.time() + 3 * self._plan.lease_s + MARGIN_S
        for name, row in rows.items():
            if any(record.expires > later for record in records_of(row).values()):
                self._report.unlocked.append(name)
                workspace.catalog.unlock(name)

    def _collect(self, workspace: Workspace) -> None:
        """Twice: results that get their names leave hidden copies behind."""
        self._report.orphans_before = len(list(_orphans(workspace)))
        options = GcOptions(older_s=0.0, experiments=(EXPERIMENT,))
        for _ in range(2):
            found = find_leftovers(workspace, options, workspace.store.now() + YEAR_S)
            for finding, result in remove_leftovers(found):
                if isinstance(result, EdgeloopError):
                    self._report.violations.append(f"gc, {finding.kind}: {result}")
        self._report.orphans_after = len(list(_orphans(workspace)))


def _window(kind: str) -> Window:
    """What docs/explanation/leases.md promises of the order of work."""
    if kind == "azurite":
        return Window(seconds=10.0, margin_s=MARGIN_S, of_own_only=True)
    return Window(seconds=1.0, margin_s=MARGIN_S)


def _rows(workspace: Workspace) -> dict[str, Values]:
    return {row.key: row.values for row in workspace.store.models(EXPERIMENT).query()}


def _files(workspace: Workspace) -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {}
    for blob in workspace.store.blobs.list(f"{EXPERIMENT}/"):
        _, model, key = blob.key.split("/", 2)
        found.setdefault(model, {})[key] = workspace.store.blobs.read(blob.key)
    return found


def _orphans(workspace: Workspace) -> Iterator[str]:
    """Files that no row names, and that are of no attempt under way."""
    rows = _rows(workspace)
    for blob in workspace.store.blobs.list(f"{EXPERIMENT}/"):
        _, model, key = blob.key.split("/", 2)
        if model not in rows or not checker.is_wanted(key, rows[model]):
            yield blob.key


def _left(rows: dict[str, Values]) -> str:
    left = [f"{name}: {row.get('status')}" for name, row in rows.items()]
    return ", ".join(text for text in left if not text.endswith(("complete", "error")))


def _wait_for(file: Path, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not file.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{file.name} did not happen")
        time.sleep(0.05)


def main(home: str) -> None:
    plan = Round(**json.loads((Path(home) / "plan.json").read_text()))
    report = Nemesis(plan).run()
    (Path(home) / "report.json").write_text(json.dumps(vars(report)))


if __name__ == "__main__":
    main(sys.argv[1])
