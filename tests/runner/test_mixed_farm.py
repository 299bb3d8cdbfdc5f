"""Quantizers without boards, boards without quantizers, and several types of devices: machines that
know nothing of each other share an experiment, whichever of them comes first."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgeloop.models.plan import records_of
from edgeloop.settings import Settings
from edgeloop.store import Values
from edgeloop.workspace import Workspace
from tests.conftest import StoreUnderTest
from tests.jobs.test_full_disk import small_disk
from tests.jobs.waiting import eventually
from tests.machine import machine as machine_of
from tests.nets import save_tiny
from tests.peers.board import VirtualBoard
from tests.runner.conftest import NETS

# Every machine is several processes, some of which start a compiler.
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(900)]

EXPERIMENT = "nets"
PATIENCE_S = 600.0
SETTINGS = f"""
experiment: {EXPERIMENT}
lease_seconds: 60
benchmark_runs: 2
calibration_images: 24
quick_images: 10
thorough_images: 20
curve_images: 4
board_tool_seconds: 300
board_transfer_seconds: 60
board_probe_seconds: 60
"""
YEAR_AHEAD = """
import time
bare, bare_ns, year_s = time.time, time.time_ns, 365 * 86_400
time.time = lambda: bare() + year_s
time.time_ns = lambda: bare_ns() + year_s * 10**9
"""
STEPS = ("models", "quantizers", "boards")
QUICK = (("boards", "quantizers", "models"), ("models", "quantizers", "boards"))
ORDERS = [
    pytest.param(order, marks=() if order in QUICK else pytest.mark.soak, id="-".join(order))
    for order in itertools.permutations(STEPS)
]


@dataclass
class Machine:
    """A project folder, a Python environment, a cache and a name of its own; all it shares with
    others is the store."""

    folder: Path
    python: Path
    environ: dict[str, str]
    cleaning: ExitStack

    def edgeloop(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [self.python, "-m", "edgeloop", *arguments],
            check=False,
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == code, (arguments, done.stdout)
        return done.stdout

    def start_runner(self, *options: str) -> subprocess.Popen[str]:
        log = (self.folder / "runner.log").open("w")
        command = [self.python, "-m", "edgeloop", "runner", *options]
        running = subprocess.Popen(
            command, cwd=self.folder, env=self.environ, stdout=log, stderr=log, text=True
        )
        self.cleaning.callback(log.close)
        self.cleaning.callback(running.wait, 60)
        self.cleaning.callback(running.kill)
        return running

    @property
    def log(self) -> str:
        return (self.folder / "runner.log").read_text()


@pytest.fixture
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, make_place: Callable[[str], StoreUnderTest]
) -> Iterator[Callable[..., Machine]]:
    place = make_place(getattr(request, "param", "azure"))
    with ExitStack() as cleaning:

        def make(name: str, **more: str) -> Machine:
            folder = tmp_path / name
            folder.mkdir()
            (folder / "edgeloop.yaml").write_text(SETTINGS)
            environ = {**place.environ, "EDGELOOP_NODE": name, **more}
            bare = machine_of(folder, tmp_path / "homes" / name, ("azure", "qnn"), environ)
            made = cleaning.enter_context(bare)
            own = {**made.environ, "EDGELOOP_CACHE": str(folder / "cache")}
            return Machine(folder, made.python, own, cleaning)

        yield make


def rows_of(machine: Machine) -> dict[str, Values]:
    with Workspace(Settings.load(machine.folder, machine.environ)) as workspace:
        return {str(row["name"]): row for row in workspace.status()}


def publish(faces: Path, laptop: Machine) -> None:
    shutil.copytree(faces, laptop.folder / "data" / "working" / "faces")
    laptop.edgeloop("data", "push", "working/faces")


@pytest.mark.parametrize("order", ORDERS)
def test_quantizers_and_boards_complete_every_model_whoever_comes_first(
    order: tuple[str, ...],
    machine: Callable[..., Machine],
    boards: Callable[..., VirtualBoard],
    faces: Path,
    sdk: Path,
) -> None:
    laptop = machine("laptop")
    publish(faces, laptop)
    laptop.edgeloop("experiment", "set", "--dataset", "working/faces")
    quantizers = [machine("with-sdk", SNPE_ROOT=str(sdk)), machine("without-sdk")]
    shelf = [boards(name) for name in "abc"]
    lab = machine("lab", SNPE_ROOT=str(sdk), **shelf[0].environ)

    def upload() -> None:
        for name in ("calm-heron", "wise-otter"):
            laptop.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", name)

    def quantize() -> None:
        for quantizer in quantizers:
            quantizer.start_runner()

    def benchmark() -> None:
        attached = (word for board in shelf for word in ("--device", f"adb:{board.serial}"))
        lab.start_runner("--no-quantize", *attached)

    begin = {"models": upload, "quantizers": quantize, "boards": benchmark}
    for step in order:
        begin[step]()

    def is_complete() -> bool:
        rows = rows_of(laptop)
        return len(rows) == 2 and all(row["status"] == "complete" for row in rows.values())

    eventually(is_complete, PATIENCE_S)
    for row in rows_of(laptop).values():
        assert "error" not in row and row["device"] == "snapdragon-888"
        assert row["latency_kind"] == "measured"
        assert row["f1_1k"] == pytest.approx(row["f1_onnx"], abs=0.15)
        assert type(row["f1_10k"]) is float and type(row["f1_1k_f"]) is float
        calibrated = {str(v) for k, v in row.items() if k.startswith("calibration")}
        assert calibrated == {"dataset"}, "no machine fell back on random inputs"
        records = records_of(row)
        assert all(not record.attempts and not record.silent for record in records.values())
    assert "fetched working/faces@1" in lab.log + quantizers[0].log
    eventually(lambda: "Conversion with snpe is left to others" in quantizers[1].log, PATIENCE_S)


def test_each_type_of_device_has_columns_and_binaries_of_its_own(
    machine: Callable[..., Machine], tmp_path: Path
) -> None:
    quantizer, first, second = machine("q"), machine("first"), machine("second")
    net = save_tiny(tmp_path / "net.onnx")
    quantizer.edgeloop("upload", str(net), "--name", "calm-heron")
    assert "waiting for benchmark" in quantizer.edgeloop("runner", "--drain")
    first.edgeloop("runner", "--device", "htp:qcs8550", "--no-quantize", "--drain")
    second.edgeloop("runner", "--device", "htp:x-elite", "--no-quantize", "--drain")
    assert rows_of(quantizer)["calm-heron"]["status"] == "waiting", "binaries are missing"
    assert "compiled for qcs8550, x-elite" in quantizer.edgeloop("runner", "--drain")

    row = rows_of(quantizer)["calm-heron"]
    assert (row["status"], row["device"]) == ("complete", "htp:qcs8550")
    assert row["device_on_htp_x_elite"] == "htp:x-elite"
    assert 0 < float(row["mean"]) != float(row["mean_on_htp_x_elite"]) > 0
    assert row["sqnr_db"] == row["sqnr_db_on_htp_x_elite"], "the arithmetic is the same"
    files = quantizer.edgeloop("download", "--list", "calm-heron")
    for chip in ("qcs8550", "x-elite"):
        assert f"net.{chip}.bin" in files and f"net.{chip}.ctx.onnx" in files
    assert "perf_results_1_on_htp_x_elite.csv" in files

    second.edgeloop("reset", "calm-heron", "--stage", "benchmark htp:x-elite", "--yes")
    row = rows_of(quantizer)["calm-heron"]
    assert "mean" in row and not {name for name in row if name.endswith("_on_htp_x_elite")}
    second.edgeloop("experiment", "set", "--forget", "htp:x-elite")
    assert rows_of(quantizer)["calm-heron"]["status"] == "complete"


def test_a_dataset_that_is_named_later_replaces_random_inputs_also_of_runners_under_way(
    machine: Callable[..., Machine], faces: Path
) -> None:
    laptop, alone = machine("laptop"), machine("alone")
    laptop.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "calm-heron")
    runner = alone.start_runner("--device", "host")
    eventually(lambda: rows_of(laptop)["calm-heron"]["status"] == "complete", PATIENCE_S)
    assert rows_of(laptop)["calm-heron"]["calibration"] == "random"
    publish(faces, laptop)
    said = laptop.edgeloop("experiment", "set", "--dataset", "working/faces")
    assert "1 model calibrated on random inputs: converted again" in said

    def is_scored() -> bool:
        row = rows_of(laptop)["calm-heron"]
        return row["status"] == "complete" and row["calibration"] == "dataset"

    eventually(is_scored, PATIENCE_S)
    row = rows_of(laptop)["calm-heron"]
    assert row["f1_1k"] == pytest.approx(row["f1_onnx"], abs=0.15)
    assert "starting again with it" in alone.log and runner.poll() is None


def test_a_runner_that_cannot_have_the_dataset_leaves_what_needs_it_and_says_so(
    machine: Callable[..., Machine], faces: Path
) -> None:
    laptop, node = machine("laptop"), machine("node")
    publish(faces, laptop)
    laptop.edgeloop("experiment", "set", "--dataset", "working/faces")
    laptop.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "calm-heron")
    cache = node.folder / "cache"
    cache.write_text("in the way")
    said = node.edgeloop("runner", "--device", "host", "--drain", code=1)
    assert "working/faces@1 cannot be had here" in said
    assert "Conversion and accuracy are left to others." in said and "0 stages done" in said
    row = rows_of(laptop)["calm-heron"]
    assert "error" not in row and not records_of(row).get("convert")
    cache.unlink()
    node.edgeloop("runner", "--device", "host", "--drain")
    assert rows_of(laptop)["calm-heron"]["status"] == "complete"


def test_a_full_disk_where_the_dataset_would_be_kept_is_that_machines_and_passes(
    machine: Callable[..., Machine], faces: Path
) -> None:
    laptop, node = machine("laptop"), machine("node")
    publish(faces, laptop)
    laptop.edgeloop("experiment", "set", "--dataset", "working/faces")
    laptop.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "calm-heron")
    with small_disk(node.folder / "cache", size=256 << 10):
        said = node.edgeloop("runner", "--device", "host", "--drain", code=1)
    assert "working/faces@1 cannot be had here: " in said, said
    assert "not enough disk space" in said, said
    assert "Conversion and accuracy are left to others." in said and "0 stages done" in said
    row = rows_of(laptop)["calm-heron"]
    assert row["status"] == "new" and not records_of(row).get("convert")
    node.edgeloop("runner", "--device", "host", "--drain")
    assert rows_of(laptop)["calm-heron"]["status"] == "complete"


def test_a_dataset_that_was_removed_after_it_was_named_is_no_models_failure(
    machine: Callable[..., Machine], faces: Path
) -> None:
    laptop, node = machine("laptop"), machine("node")
    publish(faces, laptop)
    laptop.edgeloop("experiment", "set", "--dataset", "working/faces")
    laptop.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "calm-heron")
    laptop.edgeloop("data", "remove", "working/faces@1", "--yes")
    said = node.edgeloop("runner", "--device", "host", "--drain", code=1)
    assert "working/faces@1 cannot be had here: no dataset 'working/faces'" in said
    assert "1 waiting for convert qnn, which this runner does not do" in said
    assert "No live runner can do convert qnn" in laptop.edgeloop("queue")
    row = rows_of(laptop)["calm-heron"]
    assert row["status"] == "new" and not records_of(row).get("convert")


def test_a_conversion_whose_toolchain_no_machine_has_waits_and_is_named(
    machine: Callable[..., Machine],
) -> None:
    laptop, node = machine("laptop"), machine("node")
    laptop.edgeloop("experiment", "set", "--target", "snpe", "--dataset", "random")
    laptop.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "calm-heron")
    said = node.edgeloop("runner", "--drain", code=1)
    assert "Conversion with snpe is left to others: the Neural Processing SDK cannot be" in said
    assert "1 waiting for convert snpe, which this runner does not do" in said
    assert "No live runner can do convert snpe" in laptop.edgeloop("queue")
    row = rows_of(laptop)["calm-heron"]
    assert row["status"] in ("new", "waiting") and not records_of(row).get("convert")


@pytest.mark.parametrize("machine", ["postgresql"], indirect=True)
def test_a_machine_whose_clock_is_a_year_ahead_makes_no_other_look_dead(
    machine: Callable[..., Machine], tmp_path: Path
) -> None:
    """Azure refuses requests of such a machine; PostgreSQL does not look at its clock."""
    ahead = tmp_path / "ahead"
    ahead.mkdir()
    (ahead / "sitecustomize.py").write_text(YEAR_AHEAD)
    laptop, sound = machine("laptop"), machine("sound")
    wrong = machine("wrong", PYTHONPATH=str(ahead))
    for node in (sound, wrong):
        node.start_runner("--device", "host")

    def states() -> dict[str, set[str]]:
        shown = json.loads(laptop.edgeloop("devices", "--watch", "--json"))
        return {
            name: {str(row["state"]) for row in shown if row["machine"] == name}
            for name in ("sound", "wrong")
        }

    alive = {"busy", "idle"}
    eventually(lambda: all(found and found <= alive for found in states().values()), PATIENCE_S)
    for name in ("calm-heron", "wise-otter"):
        laptop.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", name)
    eventually(
        lambda: [row["status"] for row in rows_of(laptop).values()] == ["complete"] * 2, PATIENCE_S
    )
    assert all(found and found <= alive for found in states().values())
    for row in rows_of(laptop).values():
        assert "error" not in row
        assert len(str(row["total_inference_avg"]).split(",")) == 2, "each run was recorded once"
