"""Results under readable names: hidden until accepted, never half-made, never overwritten."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from edgeloop.models.catalog import Catalog
from edgeloop.models.files import file_role
from edgeloop.models.leases import Lease, Leases, Outcome
from edgeloop.models.plan import default_plan
from edgeloop.store import Blobs
from edgeloop.testing import MemoryStore
from tests.cli.running import blobs_of
from tests.models.test_upload import catalog_on
from tests.nets import save_tiny
from tests.store.passing import PassingBlobs

COLUMNS = {"macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}


class DiedError(BaseException):
    """The machine stops here."""


class DyingBlobs(PassingBlobs):
    """Real blobs on a machine that dies at its nth change."""

    def __init__(self, inner: Blobs, changes: int) -> None:
        super().__init__(inner)
        self._left = changes

    def put(self, key: str, source: Path | bytes) -> None:
        self._live()
        super().put(key, source)

    def create(self, key: str, content: bytes) -> bool:
        self._live()
        return super().create(key, content)

    def delete(self, keys: Iterable[str]) -> None:
        self._live()
        super().delete(keys)

    def _live(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise DiedError


class Farm:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore()
        self.now = 1_000_000.0
        models, queue = self.store.models("default"), self.store.queue("default")
        self.leases = Leases(models, queue, default_plan(), clock=lambda: self.now)
        self.catalog: Catalog = catalog_on(self.store)
        self.catalog.upload(save_tiny(folder / "net.onnx"), "net")

    def claim(self) -> Lease:
        lease = self.leases.claim(["quantize"], "n")
        assert lease is not None
        return lease

    def results(self, text: str) -> dict[str, Path]:
        """Two files of equal size, whoever makes them."""
        paths = [self.folder / text / name for name in ("net.quant.onnx", "net.dlc")]
        for path in paths:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return {path.name: path for path in paths}

    def commit(self, lease: Lease, text: str) -> None:
        keys = self.catalog.stored.put_attempt("net", lease.token, self.results(text))
        self.leases.commit(lease, Outcome({**COLUMNS, "quantized": True}, keys))

    def publish(self, lease: Lease, text: str) -> None:
        self.catalog.stored.publish("net", lease.token, self.results(text))

    @property
    def shown(self) -> dict[str, str]:
        """What users see, the upload left out."""
        files = self.catalog.files("net")
        assert len({file.name for file in files}) == len(files)
        read = self.store.blobs.read
        return {file.name: read(file.key).decode() for file in files if file.name != "net.onnx"}


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    return Farm(tmp_path)


def test_an_accepted_result_lies_under_its_name_and_nothing_else_is_left(farm: Farm):
    lease = farm.claim()
    farm.commit(lease, "one")
    assert farm.shown == {"net.quant.onnx": "one", "net.dlc": "one"}
    farm.publish(lease, "one")
    assert set(blobs_of(farm.store)) == {
        *("default/net/net.onnx", "default/net/net.quant.onnx", "default/net/net.dlc")
    }
    assert farm.shown == {"net.quant.onnx": "one", "net.dlc": "one"}


@pytest.mark.parametrize("changes", range(6))
def test_a_machine_that_dies_at_any_step_leaves_all_of_its_result_or_nothing(
    farm: Farm, changes: int
):
    lease = farm.claim()
    real, farm.store.blobs = farm.store.blobs, DyingBlobs(farm.store.blobs, changes)
    died = False
    try:
        farm.commit(lease, "one")
        farm.publish(lease, "one")
    except DiedError:
        died = True
    farm.store.blobs = real
    assert died == (changes < 5)
    is_committed = "quantized" in farm.catalog.get("net").values
    whole = {"net.quant.onnx": "one", "net.dlc": "one"}
    assert farm.shown == (whole if is_committed else {})
    farm.catalog.reset("net")
    assert farm.shown == {}
    again = farm.claim()
    farm.commit(again, "two")
    farm.publish(again, "two")
    assert farm.shown == dict.fromkeys(whole, "two")


def test_a_result_that_gets_its_name_while_files_are_listed_is_among_them(farm: Farm):
    lease = farm.claim()
    farm.commit(lease, "one")
    row = farm.catalog.get("net")
    farm.publish(lease, "one")
    names = {file.name for file in farm.catalog.stored.of(row)}
    assert names == {"net.onnx", "net.quant.onnx", "net.dlc"}


def test_an_attempt_that_wakes_up_late_cannot_replace_a_newer_result(farm: Farm):
    old = farm.claim()
    farm.commit(old, "old")  # and sleeps before it publishes
    farm.catalog.reset("net")
    new = farm.claim()
    farm.commit(new, "new")
    farm.publish(new, "new")
    farm.publish(old, "old")
    assert farm.shown == {"net.quant.onnx": "new", "net.dlc": "new"}


def test_a_name_that_is_taken_is_left_alone_and_the_row_names_another(farm: Farm):
    """What an old attempt created after the reset, before anybody else."""
    for name in ("net.dlc", "net.quant.onnx"):
        farm.store.blobs.put(f"default/net/{name}", b"old")
    lease = farm.claim()
    farm.commit(lease, "new")
    farm.publish(lease, "new")
    farm.publish(lease, "new")  # a repetition after a lost answer
    assert farm.store.blobs.read("default/net/net.dlc") == b"old"
    assert farm.shown == {"net.quant.onnx": "new", "net.dlc": "new"}
    farm.catalog.reset("net")
    assert set(blobs_of(farm.store)) == {"default/net/net.onnx"}


def test_a_reset_of_one_result_keeps_an_equal_file_of_another(farm: Farm):
    convert, score = farm.claim(), farm.leases.claim(["onnx"], "n")
    assert score is not None
    notes = {"notes.txt": farm.folder / "notes.txt"}
    notes["notes.txt"].write_text("equal")
    for lease, columns in ((convert, {**COLUMNS, "quantized": True}), (score, {"f1_onnx": 0.5})):
        keys = farm.catalog.stored.put_attempt("net", lease.token, notes)
        farm.leases.commit(lease, Outcome(columns, keys))
    for lease in (convert, score):
        farm.catalog.stored.publish("net", lease.token, notes)
    farm.catalog.reset("net", ["f1_onnx"])
    assert farm.shown == {"notes.txt": "equal"}


@pytest.mark.parametrize(
    ("toolchain", "keys"),
    [
        ("snpe", ["model.dlc", "model.quant.dlc", "net.classes.dlc", "net.layers.csv"]),
        ("qnn", ["net.dlc", "net.quant.dlc", "net.classes.dlc", "net.layers.csv"]),
    ],
)
@pytest.mark.parametrize("stem", ["net", "model"])
def test_conversions_have_the_names_that_archai_knows_only_if_it_can_use_them(
    farm: Farm, toolchain: str, keys: list[str], stem: str
):
    endings = (".dlc", ".quant.dlc", ".classes.dlc", ".layers.csv")
    files = {f"{stem}{ending}": farm.folder / ending for ending in endings}
    for path in files.values():
        path.write_text(path.name)
    lease = farm.claim()
    stored = farm.catalog.stored.put_attempt("net", lease.token, files, toolchain)
    farm.leases.commit(lease, Outcome({**COLUMNS, "quantized": True}, stored))
    farm.catalog.stored.publish("net", lease.token, files)
    assert farm.shown == {f"{stem}{ending}": ending for ending in endings}
    keys = [key.replace("net.", f"{stem}.") for key in keys]
    if toolchain == "qnn" and stem == "model":
        keys = ["model~dlc", "model.quant~dlc", *keys[2:]]
    expected = {f"default/net/{key}" for key in (*keys, "net.onnx")}
    assert set(blobs_of(farm.store)) == expected


def test_files_that_another_tool_put_beside_them_show(farm: Farm):
    farm.store.blobs.put("default/net/notes.txt", b"by hand")
    assert farm.shown == {"notes.txt": "by hand"}


def test_files_of_an_experiment_that_has_a_models_name_are_not_the_models(farm: Farm):
    """`<model>/<file>` is where Archai uploads to; `<experiment>/<model>/<file>` is deeper."""
    table = farm.store.models("default")
    table.insert("faces", {"name": "faces", "status": "uploaded"})
    for key in ("faces/model.onnx", "faces/other/net.onnx"):
        farm.store.blobs.put(key, b"x")
    assert [file.key for file in farm.catalog.files("faces")] == ["faces/model.onnx"]
    farm.catalog.delete("faces")
    assert "faces/other/net.onnx" in blobs_of(farm.store)
    assert "faces/model.onnx" not in blobs_of(farm.store)


def test_files_to_deploy_come_first_then_results_then_the_rest(farm: Farm):
    results = ("perf_results_10.csv", "perf_results_2.csv", "test_results_f1_1k.csv")
    names = ("net.graph.json", "net.layers.csv", *results, "net.quant.onnx", "net.dlc")
    chips = ("net.sm8550.bin", "net.qcs8550.ctx.onnx", "net.qcs8550.bin", "net.quant.dlc")
    for name in (*names, *chips, "notes.txt"):
        farm.store.blobs.put(f"default/net/{name.replace('.onnx', '~onnx')}", b"x")
    assert [file.name for file in farm.catalog.files("net")] == [
        *("net.qcs8550.bin", "net.sm8550.bin", "net.qcs8550.ctx.onnx", "net.quant.dlc", "net.dlc"),
        *("net.quant.onnx", "net.onnx", "perf_results_2.csv", "perf_results_10.csv"),
        *("test_results_f1_1k.csv", "net.layers.csv", "net.graph.json", "notes.txt"),
    ]


@pytest.mark.parametrize(
    ("name", "is_uploaded", "group", "about"),
    [
        ("net.qcs8550.bin", False, "deploy", "context binary, for qcs8550"),
        ("net.bin", False, "deploy", "context binary"),
        ("net.weights.bin", True, "deploy", "weights, as uploaded"),
        ("net.quant.dlc", False, "deploy", "quantized, for Qualcomm's tools"),
        ("net.classes.dlc", False, "deploy", "float, for Qualcomm's tools, ends in classes"),
        ("a.b.ctx.onnx", False, "deploy", "loads the context binary in ONNX Runtime, for b"),
        ("net.quant.onnx", True, "deploy", "float, as uploaded"),
        ("net.onnx", False, "deploy", "float"),
        ("architecture.json", True, "other", ""),
        ("pr_curve_f1_1k.png", False, "result", "precision and recall"),
        ("", False, "other", ""),
    ],
)
def test_a_name_says_what_a_file_is(name: str, is_uploaded: bool, group: str, about: str):
    role = file_role(name, is_uploaded)
    assert (role.group, role.about) == (group, about)
