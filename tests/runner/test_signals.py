"""A runner that is told to stop, has nothing to do, or hangs: real processes and signals."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from edgeloop.models.plan import records_of
from edgeloop.runner.health import health_problem
from edgeloop.settings import Settings
from edgeloop.store import Values
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_segmentation_model
from edgeloop.workspace import Workspace
from tests.conftest import StoreUnderTest
from tests.jobs.waiting import eventually
from tests.runner.conftest import busy_machine

pytestmark = pytest.mark.slow

LIMIT_S = 240
# The program itself, but each stage waits for a file first, and shows progress or not; and a store
# counts as away after two seconds.
SLOW = """
import sys, time
from pathlib import Path
from edgeloop._util.system import show_progress
from edgeloop.cli import main
from edgeloop.runner import presence, worker
presence.BEAT_S, presence.ANSWER_S = 0.5, 2
perform = worker.perform
def waiting(work, equipment):
    while not Path("go").exists():
        time.sleep(0.02)
        if not Path("hang").exists():
            show_progress()
    return perform(work, equipment)
worker.perform = waiting
main()
"""


class Place:
    """A project with one model, and runners in it whose stages wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.health = folder / "probes" / "health"
        (folder / "edgeloop.yaml").write_text("stuck_seconds: 1.5\n")
        self.workspace = Workspace(Settings.load(folder, {}))
        self.workspace.upload(save_segmentation_model(folder / "net.onnx", 32), name="net")
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *options: str, program: str = SLOW) -> subprocess.Popen[str]:
        runner = subprocess.Popen(
            [sys.executable, "-c", program, "runner", "--health", str(self.health), *options],
            cwd=self.folder,
            env={k: v for k, v in os.environ.items() if not k.startswith("EDGELOOP_")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(runner)
        return runner

    def close(self) -> None:
        self.workspace.close()
        for runner in self._started:
            runner.kill()
            runner.communicate()

    @property
    def row(self) -> Values:
        (row,) = self.workspace.status()
        return row

    def is_held(self, stage: str) -> bool:
        record = records_of(self.row).get(stage)
        return record is not None and record.is_held

    def beat_s(self) -> float:
        return float(json.loads(self.health.read_text())["beat_s"])

    def probe(self, *options: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "edgeloop", "health", *options],
            cwd=self.folder,
            env={**os.environ, "EDGELOOP_HEALTH": str(self.health)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stdout.strip() or done.stderr.strip()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def soon(is_true: Callable[[], object]) -> None:
    eventually(is_true, LIMIT_S)


def test_a_hung_stage_is_told_from_a_long_one_and_given_back_uncounted(place: Place) -> None:
    runner = place.start("--grace", "0.5")
    soon(lambda: place.is_held("convert"))
    soon(lambda: health_problem(place.health, ready=True) == "")
    longer_s = time.monotonic() + 2
    soon(lambda: place.beat_s() > longer_s and health_problem(place.health) == "")
    assert place.probe("--ready") == (0, "ready"), "it shows progress for longer than that takes"

    (place.folder / "hang").touch()
    soon(lambda: "no progress" in health_problem(place.health))
    code, text = place.probe()
    assert code == 1 and text.endswith("(convert net)"), text

    runner.send_signal(signal.SIGTERM)
    output, _ = runner.communicate(timeout=LIMIT_S)
    assert runner.returncode == 0, output
    assert not place.is_held("convert") and records_of(place.row)["convert"].attempts == 0
    code, text = place.probe()
    assert code == 1 and text.startswith("there is no"), text


def test_a_stage_that_ends_in_the_grace_period_counts_and_an_idle_runner_ends(place: Place) -> None:
    runner = place.start("--grace", "200")
    soon(lambda: place.is_held("convert"))
    soon(lambda: health_problem(place.health, ready=True) == "")
    with closing(sqlite3.connect(place.folder / ".edgeloop/store.db")) as other:
        other.execute("BEGIN EXCLUSIVE")  # nobody else can write to it now
        soon(lambda: "does not answer" in health_problem(place.health, ready=True))
        assert health_problem(place.health) == "", "a restart would not bring the store back"
    soon(lambda: health_problem(place.health, ready=True) == "")
    runner.send_signal(signal.SIGINT)
    soon(lambda: health_problem(place.health, ready=True) == "it is stopping")
    assert health_problem(place.health) == "", "what is told to stop is well"
    (place.folder / "go").touch()
    output, _ = runner.communicate(timeout=LIMIT_S)
    assert runner.returncode == 130 and "1 stage done." in output, output
    assert "Models: 0 done, 0 failed, 1 left: 1 ready for f1_onnx" in output
    assert place.row["quantized"] is True and "f1_onnx" not in place.row

    idle = place.start("--idle", "0.2")
    output, _ = idle.communicate(timeout=LIMIT_S)
    assert idle.returncode == 0 and "1 stage done." in output, output
    assert place.row["f1_onnx"] == "n/a", "the task tensors has none"


def test_a_drain_without_the_optional_package_says_so_at_once(place: Place) -> None:
    fake = place.folder / "fake" / "onnxruntime"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("raise ImportError('not installed')")
    done = subprocess.run(
        [sys.executable, "-m", "edgeloop", "runner", "--drain"],
        cwd=place.folder,
        env={**os.environ, "PYTHONPATH": str(fake.parent)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "edgeloop: Conversion for Qualcomm chips needs an optional package: "
        "pip install 'edgeloop[qnn]'."
    ]
    assert done.stdout.count("Trying again") <= 1, done.stdout
    assert records_of(place.row)["convert"].attempts == 0


# The program itself, whose stages last until its end; it notes what it does with its leases, and
# which heartbeats there are when it closes the store.
NOTING = """
import threading
from pathlib import Path
from edgeloop.cli import main
from edgeloop.models.leases import Leases
from edgeloop.runner import worker
from edgeloop.workspace import Workspace
def noted(kind, name):
    made = getattr(kind, name)
    def call(self, *arguments):
        with Path("notes").open("a") as notes:
            beats = sum(t.name == "heartbeat" for t in threading.enumerate())
            notes.write(f"{name} {beats}\\n")
        return made(self, *arguments)
    setattr(kind, name, call)
for kind, name in ((Leases, "renew"), (Leases, "release"), (Workspace, "close")):
    noted(kind, name)
worker.perform = lambda work, equipment: threading.Event().wait()
main()
"""


def test_heartbeats_end_before_leases_are_released_and_the_store_closes_last(place: Place) -> None:
    settings = place.folder / "edgeloop.yaml"
    settings.write_text("lease_seconds: 0.6\nclock_margin_seconds: 0.2\n")
    place.workspace.upload(save_segmentation_model(place.folder / "b.onnx", 48), name="other")
    notes = place.folder / "notes"
    runner = place.start("--grace", "0.3", program=NOTING)
    soon(lambda: notes.exists() and notes.read_text().count("renew") > 3)
    runner.send_signal(signal.SIGTERM)
    output, _ = runner.communicate(timeout=0.3 + 15)

    assert runner.returncode == 0 and "given back" in output, output
    events = [line.split() for line in notes.read_text().splitlines()]
    names = [name for name, _ in events]
    first = names.index("release")
    assert set(names[:first]) == {"renew"}, names
    assert set(names[first:-1]) == {"release"} and names[-1] == "close", "no renewal after that"
    assert int(events[-1][1]) == 0, "a heartbeat would use the closed store"
    for row in place.workspace.status():
        assert not any(record.is_held for record in records_of(row).values()), row


@pytest.mark.server
@pytest.mark.parametrize(
    ("device", "stage", "calibration"),
    [
        pytest.param("htp:qcs8550", "f1_1k", 2, id="htp"),
        pytest.param("htp:qcs8550", "convert", 600, id="convert"),
        pytest.param("host", "f1_onnx", 2, id="host", marks=pytest.mark.soak),
    ],
)
def test_a_long_stage_is_given_back_in_time_on_a_busy_machine(
    tmp_path: Path,
    make_place: Callable[[str], StoreUnderTest],
    device: str,
    stage: str,
    calibration: int,
) -> None:
    """The real program on Azurite, with real inference that takes much longer than --grace."""
    make_faces(tmp_path / "faces", 600, 64, seed=3)
    (tmp_path / "edgeloop.yaml").write_text("lease_seconds: 1.5\nclock_margin_seconds: 0.5\n")
    # Its own locks: it would wait for its turn while another test quantizes, and begin nothing.
    state = {"EDGELOOP_STATE": str(tmp_path / "state")}
    environ = {**os.environ, **make_place("azure").environ, **state}
    words = [
        "--dataset",
        "faces",
        "--device",
        device,
        "--grace",
        "0.5",
        "--calibration-images",
        str(calibration),
    ]
    with (
        Workspace(Settings.load(tmp_path, environ)) as workspace,
        ExitStack() as running,
        busy_machine(),
    ):
        workspace.upload(save_segmentation_model(tmp_path / "net.onnx", 384), name="net")
        workspace.upload(save_segmentation_model(tmp_path / "wide.onnx", 416), name="wide")
        runner = subprocess.Popen(
            [sys.executable, "-m", "edgeloop", "runner", *words],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.callback(runner.kill)

        def is_at_work() -> bool:
            assert runner.poll() is None, runner.communicate()
            return any(row["status"] == f"running {stage}" for row in workspace.status())

        soon(is_at_work)
        children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
        runner.send_signal(signal.SIGTERM)
        output, _ = runner.communicate(timeout=0.5 + 15)

        assert runner.returncode == 0, output
        assert "Traceback" not in output and "Exception" not in output, output
        assert "cannot be used" not in output and "SIGKILL" not in output, output
        lost = [line for line in output.splitlines() if line.startswith("!")]
        assert stage in [line.split()[1] for line in lost], output
        assert all(line.endswith("given back") for line in lost), output
        assert f"{len(lost)} given back." in output, output
        for row in workspace.status():
            records = records_of(row).values()
            assert row["status"] in ("waiting", "new") and row["node"] == "", row
            assert not any(record.is_held or record.attempts for record in records), row
        plan, rows = workspace.plan, workspace.status()
        can = {plan.capability(row, each) for row in rows for each in plan.stages}
        assert workspace.leases().claim(can, "another:runner") is not None, "at once"
        eventually(lambda: not any(Path(f"/proc/{child}").exists() for child in children), 30)
