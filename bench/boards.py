"""A virtual board behind the real adb: how much of the time a tool runs on it, how many bytes
travel, how long a thousand files take. Beside each, in the same run, the plain way: prepare, push
everything, run, pull, next."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from unittest import mock

import numpy as np
import onnx

from bench.tables import markdown
from edgeloop.graph.variants import DLC_INPUT
from edgeloop.platforms import GraphInfo
from edgeloop.platforms.snpe import BoardOptions
from edgeloop.platforms.snpe.device import AdbDevice, profile_of
from edgeloop.platforms.snpe.files import InputFile
from edgeloop.platforms.snpe.sdk import Sdk, find_sdk
from edgeloop.platforms.snpe.toolchain import SnpeToolchain
from edgeloop.runner.loop import RunnerOptions
from edgeloop.runner.loop import run as run_runner
from edgeloop.runner.machines import utilisation
from edgeloop.runner.stages.base import Assignment, Equipment, Sizes, perform
from edgeloop.settings import Settings
from edgeloop.store import SqliteLocation
from edgeloop.tasks import Images, Task, open_task
from edgeloop.testing.faces import make_faces
from edgeloop.workspace import Workspace
from tests.peers.board import AdbServer, VirtualBoard, make_sdk

NET = Path(__file__).parents[1] / "tests" / "data" / "nets" / "unet-w8.onnx"
SIDE = 64
MODELS = 10
SEQUENTIAL_MODELS = 4
STAGE_S = 2.0
FEW = 40  # images of an F1 stage in the first part, where every inference is slow
IMAGES = 1_000
CURVE = 100
BYTES_MODELS = 5
_PLAIN = "/data/local/tmp/plain"


@dataclass(frozen=True)
class Bench:
    folder: Path
    board: VirtualBoard
    sdk: Sdk
    task: Task
    workspace: Workspace
    options: RunnerOptions


def run() -> str:
    with _bench() as bench:
        return "\n\n".join((_utilisation(bench), _bytes(bench), _files(bench)))


@contextmanager
def _bench() -> Iterator[Bench]:
    with (
        tempfile.TemporaryDirectory(prefix="edgeloop-bench-") as name,
        AdbServer() as server,
        VirtualBoard(Path(name), server, disk_mb=8_192) as board,
        mock.patch.dict(os.environ, board.environ),
    ):
        folder = Path(name)
        sdk = find_sdk(make_sdk(folder))
        make_faces(folder / "faces", 2 * IMAGES, SIDE, seed=5)
        settings = Settings(
            project=folder,
            location=SqliteLocation(folder / "store"),
            toolchain="snpe",
            platform_keys={"snpe_root": str(sdk.root)},
            benchmark_runs=2,
        )
        options = RunnerOptions(
            dataset=folder / "faces",
            drain=True,
            sizes=Sizes(calibration=16, quick=FEW, thorough=FEW, curve=4),
            workdir=folder / "work",
        )
        task = open_task("segmentation", folder / "faces", folder / "cache")
        board.warm_up()
        with Workspace(settings) as workspace:
            for number in range(MODELS):
                workspace.upload(_net(folder, number), name=f"net-{number}")
            convert = replace(options, benchmark_only=True)
            run_runner(workspace, convert, lambda report: None)
            yield Bench(folder, board, sdk, task, workspace, options)


def _net(folder: Path, number: int) -> Path:
    """The same net under another content: it counts as another model."""
    model = onnx.load(NET)
    model.doc_string = f"net {number}"
    path = folder / f"net-{number}.onnx"
    onnx.save(model, path)
    return path


# How busy the board is.


def _utilisation(bench: Bench) -> str:
    """A benchmark and an F1 of each model. Ours does whatever is ready; no stage of the host is
    left but f1_onnx, which goes on beside the board as it always does."""
    inputs = BoardOptions().benchmark_inputs
    bench.board.set_tool(delay_s=STAGE_S / (inputs + 3))
    done = len(bench.board.tool_runs())
    began = time.monotonic()
    plain_stages = _sequentially(bench, inputs)
    plain_s, plain = time.monotonic() - began, _busy(bench.board, done)
    done = len(bench.board.tool_runs())
    stages: list[str] = []
    chosen = replace(bench.options, devices=(f"adb:{bench.board.serial}",))
    began = time.monotonic()
    run_runner(
        bench.workspace,
        chosen,
        lambda report: stages.append(report.stage) if report.state == "done" else None,
    )
    ours_s, ours = time.monotonic() - began, _busy(bench.board, done)
    recorded = _recorded(bench)
    bench.board.set_tool()
    on_board = sum(stage != "f1_onnx" for stage in stages)
    headings = ("way", "stages", "s", "inside a tool, by its own log", "by `usage`", "goal")
    rows = [
        ("sequential", plain_stages, f"{plain_s:.0f}", f"{100 * plain:.1f} %", "", ""),
        (
            *("edgeloop runner", on_board, f"{ours_s:.0f}", f"{100 * ours:.1f} %"),
            *(f"{100 * recorded:.1f} %", "≥ 95 %"),
        ),
    ]
    return markdown(headings, rows)


def _busy(board: VirtualBoard, after: int) -> float:
    """The part of the time between the first start of a tool and the last end."""
    runs = board.tool_runs()[after:]
    covered, reached = 0.0, 0.0
    for run in sorted(runs, key=lambda run: run.started_s):
        begin = max(run.started_s, reached)
        covered += max(0.0, run.ended_s - begin)
        reached = max(reached, run.ended_s)
    return covered / (reached - min(run.started_s for run in runs))


def _recorded(bench: Bench) -> float:
    """The same from our own record, which also counts a tool's start and end."""
    rows = [row.values for row in bench.workspace.store.usage().query()]
    own = [row for row in rows if str(row["name"]).startswith("adb:")]
    times = [datetime.fromisoformat(str(row[name])) for row in own for name in ("start", "end")]
    whole = (max(times) - min(times)).total_seconds()
    return sum(use.seconds for use in utilisation(own)) / whole


def _sequentially(bench: Bench, inputs: int) -> int:
    dice = np.random.default_rng(0)
    noise = dice.integers(0, 256, (inputs, SIDE, SIDE, 3), dtype=np.uint8)
    images = bench.task.test(SIDE, SIDE, FEW).images
    for number in range(SEQUENTIAL_MODELS):
        plain = Plain(bench, f"net-{number}")
        profile_of(plain.run(noise, "--profiling_level", "basic") / "SNPEDiag_0.log", bench.sdk)
        plain.run(images)
    return 2 * SEQUENTIAL_MODELS


@dataclass
class Plain:
    """The way of a script: everything is pushed for every run, and everything pulled."""

    bench: Bench
    model: str
    sent: int = 0
    received: int = 0
    info: GraphInfo = field(init=False)

    def run(self, images: Images, *more: str) -> Path:
        with tempfile.TemporaryDirectory(dir=self.bench.folder) as name:
            folder = Path(name)
            self.bench.workspace.model(self.model).download(folder / "model")
            (dlc,) = [
                path
                for path in (folder / "model").rglob("*.quant.dlc")
                if not path.name.endswith(".classes.quant.dlc")
            ]
            self._adb("shell", f"rm -rf {_PLAIN}; mkdir -p {_PLAIN}/data")
            for remote, path in self.bench.sdk.board_files():
                self._push(path, remote)
            data = folder / "data"
            data.mkdir()
            for number, image in enumerate(images):
                (data / f"{number:04}.raw").write_bytes((image / np.float32(255)).tobytes())
            names = sorted(path.name for path in data.iterdir())
            (data / "list.txt").write_text("".join(f"{_PLAIN}/data/{n}\n" for n in names))
            self._push(data, ".")
            self._push(dlc, "model.dlc")
            self._adb("shell", self._command(*more))
            target = self.bench.folder / "plain-out"
            subprocess.run(["rm", "-rf", str(target)], check=True, timeout=60)
            self._adb("pull", f"{_PLAIN}/out", str(target))
            self.received += _size(target)
            return target

    def _command(self, *more: str) -> str:
        exports = " ".join(
            f"export {name}='{value}'{':$PATH' if name == 'PATH' else ''};"
            for name, value in self.bench.sdk.board_environment(_PLAIN).items()
        )
        tool = "snpe-net-run --container model.dlc --input_list data/list.txt --output_dir out"
        return f"cd {_PLAIN}; {exports} {tool} --use_dsp {' '.join(more)}"

    def _push(self, path: Path, remote: str) -> None:
        self._adb("push", str(path), f"{_PLAIN}/{remote}")
        self.sent += _size(path)

    def _adb(self, *arguments: str) -> None:
        answer = self.bench.board.adb(*arguments, limit_s=600)
        assert answer.returncode == 0, answer.stdout + answer.stderr


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


# How many bytes travel.


def _bytes(bench: Bench) -> str:
    """f1_1k of five models: class maps of all images, full outputs of some; against float outputs
    of all. The SDK travels once for us; it did so before this part, so its size is added."""
    images = bench.task.test(SIDE, SIDE, IMAGES).images
    plain_sent = plain_received = 0
    began = time.monotonic()
    for number in range(BYTES_MODELS):
        plain = Plain(bench, f"net-{number}")
        plain.run(images)
        plain_sent, plain_received = plain_sent + plain.sent, plain_received + plain.received
    plain_s = time.monotonic() - began
    bench.board.shell("rm -rf /data/local/tmp/edgeloop")
    began = time.monotonic()
    sent, received = _f1_bytes(bench)
    ours_s = time.monotonic() - began
    ratio = (plain_sent + plain_received) / (sent + received)
    headings = (
        f"{IMAGES} images of {SIDE}², {BYTES_MODELS} models",
        *("to the board, MB", "from it, MB", "s", "fewer bytes", "goal"),
    )
    rows = [
        (
            "plain",
            f"{plain_sent / 1e6:.1f}",
            f"{plain_received / 1e6:.1f}",
            f"{plain_s:.0f}",
            "",
            "",
        ),
        (
            *("edgeloop", f"{sent / 1e6:.1f}", f"{received / 1e6:.1f}", f"{ours_s:.0f}"),
            *(f"{ratio:.1f} ×", "≥ 20 ×"),
        ),
    ]
    return markdown(headings, rows)


def _f1_bytes(bench: Bench) -> tuple[int, int]:
    device = AdbDevice(bench.board.serial, bench.sdk)
    sizes = Sizes(quick=IMAGES, curve=CURVE)
    with SnpeToolchain(bench.sdk) as toolchain:
        equipment = Equipment(toolchain, device, bench.task, device, sizes=sizes)
        for number in range(BYTES_MODELS):
            folder = bench.folder / f"f1-{number}"
            model = bench.workspace.model(f"net-{number}")
            model.download(folder / "in")
            (folder / "out").mkdir()
            files = {path.name: path for path in (folder / "in").rglob("*") if path.is_file()}
            row = {"model_name": f"net-{number}.onnx", "toolchain": "snpe"}
            work = Assignment(f"net-{number}", "f1_1k", row, files, folder / "out")
            perform(work, equipment)
    adb = device.board.adb
    device.close()
    return adb.sent, adb.received


# A thousand files.


def _files(bench: Bench) -> str:
    rows = []
    bench.board.shell("rm -rf /data/local/tmp/edgeloop")
    device = AdbDevice(bench.board.serial, bench.sdk)
    device.acquire()
    for side in (32, 64):
        images = bench.task.test(side, side, IMAGES).images
        began = time.monotonic()
        with device.board.placed(NET, [{DLC_INPUT: InputFile(image)} for image in images]):
            ours_s = time.monotonic() - began
        with tempfile.TemporaryDirectory(dir=bench.folder) as name:
            for number, image in enumerate(images):
                (Path(name) / f"{number:04}.raw").write_bytes((image / np.float32(255)).tobytes())
            began = time.monotonic()
            bench.board.adb("push", name, "/data/local/tmp/pushed", limit_s=600)
            plain_s = time.monotonic() - began
        size = f"{4 * side * side * 3 / 1e3:.0f} kB"
        rows.append((f"{IMAGES} × {size}", f"{plain_s:.2f}", f"{ours_s:.2f}", "< 1 s"))
    device.close()
    headings = ("test files", "adb push, s", "edgeloop (checked by hash), s", "goal")
    return markdown(headings, rows)
