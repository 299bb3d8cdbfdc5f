"""The parts of the runner: work folder, heartbeat, coordinator, record of device use."""

from __future__ import annotations

import errno
import json
import statistics
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from edgeloop.errors import BadInput, LocalFileError, StoreUnavailable, UnusableModel
from edgeloop.graph.info import shapes_text
from edgeloop.models.columns import run_spread
from edgeloop.models.files import ModelFile
from edgeloop.models.leases import Leases, Outcome
from edgeloop.models.plan import default_plan
from edgeloop.models.runners import DEAD_S, RunnerDevice, RunnerEntry
from edgeloop.models.upload import UploadOptions
from edgeloop.platforms import Measurement, open_device
from edgeloop.platforms.batching import ahead
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from edgeloop.runner.coordinator import Coordinator
from edgeloop.runner.machines import machine_lines, use_today, utilisation
from edgeloop.runner.presence import record_use
from edgeloop.runner.resources import WorkFolder, fetch_files
from edgeloop.runner.stages.accuracy import accuracy
from edgeloop.runner.stages.base import Assignment, Equipment, Sizes
from edgeloop.runner.stages.benchmark import benchmark
from edgeloop.runner.worker import Heartbeat, RunnerContext, Worker
from edgeloop.search.nets.export import export_onnx
from edgeloop.search.nets.spaces import build, find_space
from edgeloop.settings import Settings
from edgeloop.store import Values
from edgeloop.tasks import open_task
from edgeloop.testing import MemoryStore
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_segmentation_model
from edgeloop.workspace import Workspace
from tests.converted import open_htp
from tests.exports import export_everyday
from tests.jobs.waiting import eventually
from tests.nets import save_external
from tests.store.passing import PassingBlobs

NOW = datetime(2026, 11, 15, tzinfo=UTC)


def stored(store: MemoryStore, name: str, content: bytes) -> ModelFile:
    store.blobs.put(f"exp/model/{name}", content)
    return ModelFile(name, f"exp/model/{name}", len(content), NOW)


class TestWorkFolder:
    def test_files_come_under_their_names_and_are_fetched_once(self, tmp_path: Path) -> None:
        store, folder = MemoryStore(), WorkFolder(tmp_path / "work")
        file = stored(store, "net.onnx", b"weights")
        with folder.stage_folder() as first:
            paths = folder.fetch(store.blobs, {"net.onnx": file}, first)
            assert paths["net.onnx"].read_bytes() == b"weights"
        store.blobs.delete([file.key])
        with folder.stage_folder() as second:
            again = folder.fetch(store.blobs, {"net.onnx": file}, second)
            assert again["net.onnx"].read_bytes() == b"weights"

    def test_a_model_with_external_data_is_read_where_it_is_put(self, tmp_path: Path) -> None:
        store, folder = MemoryStore(), WorkFolder(tmp_path / "work")
        net = save_external(tmp_path / "net.onnx", data="net.onnx.data")
        files = {
            path.name: stored(store, path.name, path.read_bytes())
            for path in (net, tmp_path / "net.onnx.data")
        }
        with folder.stage_folder() as inside:
            paths = folder.fetch(store.blobs, files, inside)
            assert onnx.load_model(str(paths["net.onnx"])) == onnx.load_model(str(net))

    def test_a_stage_leaves_nothing_behind_even_when_it_fails(self, tmp_path: Path) -> None:
        folder = WorkFolder(tmp_path / "work")
        with pytest.raises(ValueError, match="oops"), folder.stage_folder() as inside:
            (inside / "scratch").write_text("x")
            raise ValueError("oops")
        assert not inside.exists()

    def test_the_oldest_files_go_first_when_the_cap_is_reached(self, tmp_path: Path) -> None:
        store, folder = MemoryStore(), WorkFolder(tmp_path / "work", cap_bytes=250)
        for number in range(4):
            file = stored(store, f"{number}.bin", bytes([number]) * 100)
            with folder.stage_folder() as inside:
                folder.fetch(store.blobs, {file.name: file}, inside)
        kept = [p.read_bytes()[0] for p in (tmp_path / "work" / "files").rglob("*") if p.is_file()]
        assert sorted(kept) == [2, 3]

    def test_a_folder_that_is_not_ours_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(LocalFileError, match="not made by Edgeloop"):
            WorkFolder(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


class TestHeartbeat:
    def lease(self, store: MemoryStore) -> tuple[Leases, object]:
        models = store.models("exp")
        models.insert("otter", {"name": "otter", "status": "new"})
        leases = Leases(models, store.queue("exp"), default_plan())
        return leases, leases.claim(["quantize"], "bench-1")

    def test_it_notices_that_the_lease_is_lost(self) -> None:
        store = MemoryStore()
        leases, lease = self.lease(store)
        with Heartbeat(leases, lease, 0.01) as heartbeat:
            row = store.models("exp").get("otter")
            store.models("exp").update(row, {"stages": None})
            assert heartbeat.lost.wait(60)

    def test_a_store_that_is_away_for_a_moment_does_not_end_it(self) -> None:
        store = MemoryStore()
        leases, lease = self.lease(store)
        renewed, tries = threading.Event(), []
        renew = leases.renew

        def flaky(held):
            tries.append(1)
            if len(tries) < 3:
                raise StoreUnavailable(store="test", reason="away")
            renewed.set()
            return renew(held)

        leases.renew = flaky
        with Heartbeat(leases, lease, 0.01) as heartbeat:
            assert renewed.wait(60)
        assert not heartbeat.lost.is_set()


class TestShift:
    def test_it_is_over_only_when_all_have_looked_since_the_last_news(self) -> None:
        coordinator = Coordinator(2)
        answers = []
        waiting = threading.Thread(
            target=lambda: answers.append(coordinator.wait("a", 0, drain=True))
        )
        waiting.start()
        coordinator.tell()
        waiting.join()
        assert answers == [True]
        assert coordinator.wait("b", 0, drain=True) is True, "there was news since it looked"
        last = threading.Thread(target=lambda: answers.append(coordinator.wait("a", 1, drain=True)))
        last.start()
        while "a" not in coordinator._looked:
            pass
        assert coordinator.wait("b", 1, drain=True) is False
        last.join()
        assert answers == [True, False]

    @pytest.mark.parametrize("drain", [True, False])
    def test_one_that_may_be_idle_for_a_while_ends_after_that(
        self, drain: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 100.0
        monkeypatch.setattr("edgeloop.runner.coordinator.time.monotonic", lambda: now)
        monkeypatch.setattr("edgeloop.runner.coordinator.IDLE_S", 0.001)
        coordinator = Coordinator(1, idle_s=60)
        now = 159.0
        assert coordinator.wait("a", 0, drain) is True, "more may come"
        coordinator.disturbed()  # the store was away: nobody knows what there was
        now = 218.0
        assert coordinator.wait("a", 0, drain) is True
        coordinator.tell()
        now = 277.0
        assert coordinator.wait("a", 1, drain) is True, "a stage has ended since"
        now = 278.0
        assert coordinator.wait("a", 1, drain) is False

    def test_who_was_idle_for_long_looks_often_again_after_work(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks: list[int] = []

        def no_pause(in_vain: int) -> float:
            looks.append(in_vain)
            return 0.0

        monkeypatch.setattr("edgeloop.runner.coordinator._idle_s", no_pause)
        coordinator = Coordinator(1)
        for _ in range(3):
            coordinator.wait("a", coordinator.look("a"), drain=False)
        coordinator.look("a")
        coordinator.tell()  # it found something and did it
        coordinator.wait("a", coordinator.look("a"), drain=False)
        assert looks == [1, 2, 3, 1]


class TestUsage:
    def test_overlaps_count_once_and_days_are_split_at_midnight(self) -> None:
        usage = MemoryStore().usage()

        def at(day: int, hour: int) -> datetime:
            return datetime(2026, 11, day, hour, tzinfo=UTC)

        record_use(usage, "htp", at(14, 22), at(15, 2), model="m", stage="f1_1k")
        record_use(usage, "htp", at(15, 1), at(15, 3))
        record_use(usage, "adb:1", at(15, 0), at(15, 12))
        usage.insert("broken", {"name": "htp", "start": "yesterday", "end": "now"})
        found = {
            (u.device, u.day): (u.seconds, u.uses)
            for u in utilisation(r.values for r in usage.query())
        }
        assert found == {
            ("htp", date(2026, 11, 14)): (7_200.0, 1),
            ("htp", date(2026, 11, 15)): (10_800.0, 2),
            ("adb:1", date(2026, 11, 15)): (43_200.0, 1),
        }

    def test_the_use_of_today_is_of_a_device_on_its_machine(self) -> None:
        """Rows of older versions name the device alone."""
        usage, hour = MemoryStore().usage(), timedelta(hours=1)
        midnight = datetime(2026, 11, 15, tzinfo=UTC)
        for device, owner in (("htp", "a/htp"), ("htp", "a:runner"), ("htp", "b/htp")):
            start = midnight + (hour if owner == "b/htp" else -hour)
            record_use(usage, device, start, start + 2 * hour, owner=owner)
        record_use(usage, "adb:1", midnight, midnight + 8 * hour)
        today = use_today((row.values for row in usage.query()), midnight + 4 * hour)
        places = [("a", "htp"), ("a", ""), ("b", "htp"), ("b", "adb:1"), ("b", "")]
        assert [today.share(*place) for place in places] == [0.25, 0.25, 0.5, 1.0, 0.0]

    def test_equal_devices_of_several_machines_are_apart(self) -> None:
        """A machine's own stages run on `host`, as do those of its device `host`."""
        usage, hour = MemoryStore().usage(), timedelta(hours=1)
        start = datetime(2026, 11, 15, 6, tzinfo=UTC)
        for owner in ("quant-1:runner", "quant-1/host", "quant-2:runner"):
            record_use(usage, "host", start, start + hour, owner=owner)
        record_use(usage, "host", start, start + 2 * hour)  # by an older version, or Archai
        assert [
            (u.machine, u.device, u.seconds, u.uses)
            for u in utilisation(r.values for r in usage.query())
        ] == [
            ("", "host", 7_200.0, 1),
            ("quant-1", "host", 3_600.0, 2),
            ("quant-2", "host", 3_600.0, 1),
        ]

    def test_the_columns_are_those_of_the_old_table(self) -> None:
        usage = MemoryStore().usage()
        record_use(usage, "htp", NOW, NOW)
        (row,) = usage.query()
        assert {"name", "start", "end"} <= row.values.keys()


class TestMachines:
    """Of runners with names of their own on one host, `vm`, and of another host."""

    def lines(self, *runners: tuple[str, str, tuple[RunnerDevice, ...]], dead: str = "") -> object:
        entries = [
            RunnerEntry(
                id=f"{node}|1",
                node=node,
                experiment="exp",
                host=host,
                devices=devices,
                age_s=DEAD_S + 1 if node == dead else 1.0,
            )
            for node, host, devices in runners
        ]
        return [
            (line.machine, line.device, line.state)
            for line in machine_lines(entries, default_plan(), 100.0)
        ]

    USED = RunnerDevice("adb:1", can=("device", "device@adb:1"))
    PLUGGED = RunnerDevice("adb:1", "plugged")

    def test_a_board_is_shown_where_it_is_used(self) -> None:
        host = RunnerDevice("host", can=("device",))
        assert self.lines(
            ("lab-1", "vm", (self.USED,)),
            ("lab-2", "vm", (self.PLUGGED, host)),
            ("lab-3", "vm", (host,)),
            ("far", "other", (self.PLUGGED,)),
        ) == [
            ("far", "adb:1", "plugged"),
            ("lab-1", "adb:1", "idle"),
            ("lab-2", "host", "idle"),
            ("lab-3", "host", "idle"),
        ]

    def test_a_board_that_no_live_runner_uses_is_shown_once(self) -> None:
        plugged = ("lab-2", "vm", (self.PLUGGED,)), ("lab-3", "vm", (self.PLUGGED,))
        assert self.lines(*plugged) == [("lab-2", "adb:1", "plugged")]
        dead = ("lab-1", "vm", (self.USED,))
        assert self.lines(dead, *plugged, dead="lab-1") == [("lab-2", "adb:1", "plugged")]
        assert self.lines(dead, dead="lab-1") == [("lab-1", "adb:1", "dead")]


class TestAhead:
    def test_what_is_drawn_comes_in_order_and_errors_arrive(self) -> None:
        def outputs():
            yield from (np.array([number]) for number in range(20))
            raise BadInput(reason="broken")

        seen = []
        with pytest.raises(BadInput, match="broken"):
            for item in ahead(outputs()):
                seen.append(int(item[0]))
        assert seen == list(range(20))

    def test_no_more_than_a_few_are_drawn_before_they_are_wanted(self) -> None:
        drawn = []

        def outputs():
            for number in range(100):
                drawn.append(number)
                yield np.array([number])

        stream = ahead(outputs())
        next(stream)
        stream.close()
        assert len(drawn) < 10


def test_a_second_hand_looks_after_the_first_one_of_every_other_board() -> None:
    coordinator = Coordinator(2, {"a2": ["b1"], "b1": []})
    began = threading.Event()

    def second() -> None:
        coordinator.look("a2")
        began.set()

    for _ in range(2):
        thread = threading.Thread(target=second, daemon=True)
        thread.start()
        news = coordinator.look("b1")
        assert not began.wait(0.1)
        coordinator.looked("b1")
        assert began.wait(60)
        thread.join()
        coordinator.looked("a2")
        began.clear()
        waiting = threading.Thread(target=coordinator.wait, args=("b1", news, False), daemon=True)
        waiting.start()
        eventually(lambda: "b1" in coordinator._idle)
        coordinator.tell()  # there may be work for both now, and the first one goes first again
        waiting.join()


def test_an_assignment_finds_its_models_by_what_the_row_says(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("a.onnx", "a.quant.onnx", "w.bin")}
    save_segmentation_model(files["a.onnx"])
    named = Assignment("m", "convert", {"model_name": "a.onnx"}, files, tmp_path)
    old = Assignment("m", "convert", {}, files, tmp_path)
    assert named.onnx == old.onnx == tmp_path / "a.onnx"
    assert named.artefact(".quant.onnx", "qnn") == tmp_path / "a.quant.onnx"
    empty = Assignment("m", "f1_1k", {}, {}, tmp_path)
    with pytest.raises(BadInput, match=r"0 .onnx files"):
        assert empty.onnx
    with pytest.raises(BadInput, match="no quantized model"):
        assert empty.artefact(".quant.onnx", "qnn")


@pytest.mark.parametrize("name", ["image", ""], ids=["named", "the only input"])
def test_an_assignment_hands_out_a_model_with_fixed_sizes(tmp_path: Path, name: str) -> None:
    path = export_everyday("dynamic_size", tmp_path / "in", external=True)
    row = {"model_name": path.name, "shapes": shapes_text({name: (1, 3, 32, 48)})}
    files = {path.name: path, f"{path.name}.data": path.with_name(f"{path.name}.data")}
    work = Assignment("m", "convert", row, files, tmp_path / "out")
    assert work.uploaded == path
    assert work.onnx.name == path.name and work.onnx.is_relative_to(tmp_path / "out")
    assert image_sizes(work.onnx) == [1, 3, 32, 48]
    assert image_sizes(path) != [1, 3, 32, 48], "what was uploaded stays as it is"
    with pytest.raises(UnusableModel, match=r"--shape image=1x3x224x224"):
        assert Assignment("m", "convert", {}, files, tmp_path / "other").onnx


def image_sizes(path: Path) -> list[int]:
    value = onnx.load_model(str(path), load_external_data=False).graph.input[0]
    return [side.dim_value for side in value.type.tensor_type.shape.dim]


def test_the_spread_of_benchmark_runs_is_in_percent_of_their_mean(tmp_path: Path) -> None:
    toolchain = SimpleNamespace(name="qnn", inspect=lambda model: None)
    measured = Measurement(0.003, (0.003,))
    host = SimpleNamespace(name="host", artefacts={}, measure=lambda model, info: measured)
    equipment = Equipment(toolchain, host, None, host)
    net = save_segmentation_model(tmp_path / "net.onnx", 64)
    row = {"total_inference_avg": "[0.001]"}
    work = Assignment("m", "benchmark", row, {net.name: net}, tmp_path)
    columns = benchmark(work, equipment).columns
    assert columns["total_inference_avg"] == "[0.001, 0.003]"
    assert (columns["mean"], columns["stdev"]) == pytest.approx((0.002, 100 * 0.5**0.5))
    assert columns["run_spread"] == columns["stdev"], "this machine is one device"


def run_on(row: Values, name: str, seconds: float, folder: Path) -> Values:
    """The row after one benchmark run on a board with some chip."""
    toolchain = SimpleNamespace(name="snpe", inspect=lambda model: None)
    measured = Measurement(seconds, (seconds,))
    board = SimpleNamespace(
        name=name, device_type="chip", artefacts={}, measure=lambda model, info: measured
    )
    net = folder / "net.onnx"
    if not net.exists():
        save_segmentation_model(net, 64)
    work = Assignment("m", "benchmark", row, {net.name: net}, folder)
    changes = benchmark(work, Equipment(toolchain, board, None, board)).columns
    return {name: value for name, value in {**row, **changes}.items() if value is not None}


def test_runs_that_differ_are_told_from_boards_that_differ(tmp_path: Path) -> None:
    """One board is twice as fast as the other, and each is steady."""
    row = run_on({}, "adb:fast", 0.0100, tmp_path)
    assert row["run_spread"] == "n/a" and "board_spread" not in row
    row = run_on(row, "adb:slow", 0.0200, tmp_path)
    assert row["run_spread"] == "n/a", "no board has two runs yet"
    assert row["board_spread"] == pytest.approx(100 * 0.5**0.5 * 0.010 / 0.015)
    for name, seconds in (("adb:fast", 0.0102), ("adb:slow", 0.0204)):
        row = run_on(row, name, seconds, tmp_path)
    runs = [0.0100, 0.0200, 0.0102, 0.0204]
    assert json.loads(str(row["total_inference_avg"])) == runs
    assert row["mean"] == pytest.approx(statistics.mean(runs))
    assert row["stdev"] == pytest.approx(100 * statistics.stdev(runs) / statistics.mean(runs))
    assert json.loads(str(row["board_runs"])) == {
        "adb:fast": [0.0100, 0.0102],
        "adb:slow": [0.0200, 0.0204],
    }
    assert row["boards"] == "adb:fast, adb:slow"
    within = ((0.0002**2 / 2 + 0.0004**2 / 2) / 2) ** 0.5
    assert row["run_spread"] == pytest.approx(100 * within / statistics.mean(runs))
    assert run_spread(row) < 2 < 30 < float(row["stdev"])
    assert row["board_spread"] == pytest.approx(100 * 0.5**0.5 * 0.0101 / 0.01515)


@pytest.mark.parametrize(
    ("before", "by_board"),
    [
        ({"boards": "adb:a"}, {"adb:a": [0.010, 0.012], "adb:b": [0.020]}),
        ({"boards": "adb:a, adb:c"}, {"adb:b": [0.020]}),
        ({"boards": "adb:b"}, {"adb:b": [0.010, 0.012, 0.020]}),
        ({}, {"adb:b": [0.020]}),
        ({"board_runs": '{"adb:a": [0.010, 0.5]}'}, {"adb:a": [0.010], "adb:b": [0.020]}),
        ({"board_runs": '{"adb:a": 3}'}, {"adb:b": [0.020]}),
        ({"board_runs": "[[["}, {"adb:b": [0.020]}),
    ],
    ids=["one board", "two", "the same", "another tool's", "taken back", "no list", "no JSON"],
)
def test_runs_of_another_version_or_tool_count_for_a_board_only_where_it_is_known(
    before: Values, by_board: dict[str, list[float]], tmp_path: Path
) -> None:
    row = run_on({"total_inference_avg": "[0.010, 0.012]", **before}, "adb:b", 0.020, tmp_path)
    assert json.loads(str(row["board_runs"])) == by_board
    assert json.loads(str(row["total_inference_avg"])) == [0.010, 0.012, 0.020]
    boards = [name for name in str(before.get("boards", "")).split(", ") if name]
    assert set(str(row["boards"]).split(", ")) == {*boards, *by_board}


@pytest.mark.slow
def test_a_float_test_that_the_chip_has_no_precision_for_is_not_available(tmp_path: Path) -> None:
    """Not an error of the model, whose other stages go on."""
    few = {"base_channels": [8, 12], "most_layers": 2, "kernels": ["conv3x3"], "stems": [2, 4]}
    arch = find_space("hourglass", few).sample(1, (1, 3, 64, 64), 19)
    export_onnx(build(arch), arch, tmp_path / "net.onnx")
    make_faces(tmp_path / "faces", 12, 64, 7)
    host, chip = open_device("host"), open_htp("htp:snapdragon-888")
    task = open_task("segmentation", tmp_path / "faces", tmp_path / "cache")
    with QnnToolchain() as toolchain:
        equipment = Equipment(toolchain, host, task, chip, sizes=Sizes(2, 2, 2))
        files = {"net.onnx": tmp_path / "net.onnx"}
        result = accuracy(Assignment("m", "f1_1k_f", {}, files, tmp_path), equipment)
    chip.close()
    assert result.columns == {"f1_1k_f": "n/a"}
    assert "fp16" in result.summary
    assert default_plan()["f1_1k_f"].is_done(result.columns)


def test_a_machine_that_is_out_of_descriptors_for_a_moment_keeps_its_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def claim(*_: object, **__: object) -> None:
        looks.append("look")
        if len(looks) == 1:
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Leases, "claim", claim)
    notes: list[str] = []
    workspace = Workspace(Settings.load(tmp_path, {}), MemoryStore())
    context = RunnerContext(
        workspace,
        WorkFolder(tmp_path / "work"),
        threading.Event(),
        lambda event: notes.append(event.text),
    )
    equipment = SimpleNamespace(device=SimpleNamespace(name="host"))
    worker = Worker(context, equipment, ("quantize",))
    worker.run(Coordinator(1), drain=True)
    assert "Too many open files" in notes[0]
    assert len(looks) > 1


def test_a_result_that_gets_its_name_while_it_is_fetched_is_fetched_under_that_name(
    tmp_path: Path,
) -> None:
    """The one who converted it publishes between another one's listing and its fetching."""
    workspace = Workspace(Settings.load(tmp_path, {}), MemoryStore())
    catalog, leases = workspace.catalog, workspace.leases()
    catalog.upload(save_external(tmp_path / "net.onnx"), "net", UploadOptions(check=False))
    lease = leases.claim(["quantize"], "n")
    assert lease is not None
    result = {"net.dlc": tmp_path / "net.dlc"}
    result["net.dlc"].write_text("converted")
    keys = catalog.stored.put_attempt("net", lease.token, result)
    columns = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}
    row = leases.commit(lease, Outcome(columns, keys))

    class Publishing(PassingBlobs):
        def get_many(self, files: Mapping[str, Path]) -> None:
            catalog.stored.publish("net", lease.token, result)
            super().get_many(files)

    workspace.store.blobs = Publishing(workspace.store.blobs)
    folder = WorkFolder(tmp_path / "work")
    fetched = fetch_files(folder, workspace, replace(lease, row=row), tmp_path / "in")
    assert fetched["net.dlc"].read_text() == "converted"
