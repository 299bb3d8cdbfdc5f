"""Microsoft Archai and Edgeloop on one table: Archai's side is its own package from PyPI.

`ArchaiStore` is used as it is; only its address is Azurite's. Its runner is not in the package, so
its steps (list, take the first ONNX file, lock, merge, unlock) are done with `ArchaiStore`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeloop.errors import LeaseLost, ModelBusy
from edgeloop.models.catalog import Candidates
from edgeloop.models.leases import Outcome
from edgeloop.runner.stages.base import Result
from edgeloop.runner.worker import store_and_commit
from edgeloop.workspace import Workspace
from tests.nets import save_tiny
from tests.runner.conftest import NETS, Farm

pytestmark = pytest.mark.server

EXPERIMENT = "facesynthetics"
CONVERTED = {
    "quantized": True,
    "macs": 5_120_000_000,
    "params": 2_200_111,
    "shape": "[64, 64, 3]",
    "output_shape": "[64, 64, 19]",
    "status": "converted",
}
ONNX = (r".*\.onnx$", r".*\.onnx")  # what its runner asks for


@pytest.fixture(scope="module")
def archai(archai_package: Path) -> Iterator[type[Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(archai_package))
        from archai.common.store import ArchaiStore  # type: ignore[import-not-found]

        yield ArchaiStore


@pytest.fixture
def farm(make_farm: Callable[[str], Farm], monkeypatch: pytest.MonkeyPatch) -> Farm:
    farm = make_farm("azure")
    farm.environ["EDGELOOP_EXPERIMENT"] = EXPERIMENT
    monkeypatch.delenv("EDGELOOP_NODE", raising=False)
    return farm


@pytest.fixture
def theirs(archai: type[Any], farm: Farm) -> Any:
    address = farm.environ["MODEL_STORAGE_CONNECTION_STRING"]
    store = archai(*archai.parse_connection_string(address), table_name=EXPERIMENT)
    store.storage_connection_string = address
    return store


@pytest.fixture
def ours(farm: Farm) -> Iterator[Workspace]:
    with farm.workspace() as workspace:
        yield workspace


def upload(theirs: Any, name: str, path: Path, folder: Path, **columns: object) -> None:
    """As `archai.common.store upload` does it."""
    file = folder / name / "model.onnx"
    file.parent.mkdir()
    shutil.copy(path, file)
    theirs.upload(name, str(file), False, **columns)


def converted_by_archai(theirs: Any, name: str, path: Path, folder: Path) -> None:
    """What its quantizer leaves, its runner's folder and all."""
    upload(theirs, name, path, folder, **CONVERTED)
    for file in ("model.dlc", "model.quant.dlc"):
        (folder / file).write_bytes(file.encode())
        theirs.upload_blob(f"{EXPERIMENT}/{name}", str(folder / file))
    theirs.upload_blob(f"{EXPERIMENT}/{name}", str(folder / name / "model.onnx"))


def float_models(theirs: Any, name: str, folder: Path) -> list[list[bytes]]:
    """The contents of the files that its runner takes for the float model: the first of those that
    it downloads, if there is one."""
    found = (theirs.download(f"{EXPERIMENT}/{name}", str(folder), pattern) for pattern in ONNX)
    return [[Path(path).read_bytes() for path in paths[:1]] for paths in found]


def test_models_of_archai_are_evaluated_and_those_it_converted_are_left_to_it(
    theirs: Any, farm: Farm, ours: Workspace, tmp_path: Path
):
    net = NETS / "unet-w8.onnx"
    upload(theirs, "from-archai", net, tmp_path)
    converted_by_archai(theirs, "converted", net, tmp_path)
    assert [file.name for file in ours.model("from-archai").files()] == ["model.onnx"]
    farm.edgeloop("upload", str(net), "--name", "from-edgeloop")
    farm.drain("--benchmark-only", device="host")
    farm.drain("--no-quantize", device="host")

    rows = {str(row["name"]): row for row in ours.status()}
    assert not [name for name, row in rows.items() if "error" in row]
    assert rows["from-archai"]["status"] == rows["from-edgeloop"]["status"] == "complete"
    assert rows["converted"]["status"] == "waiting" and "mean" not in rows["converted"]
    assert float(rows["converted"]["f1_onnx"]) > 0  # the float model is there for anybody
    for name in ("from-archai", "from-edgeloop"):
        entity = theirs.get_existing_status(name)
        height, width, channels = json.loads(entity["shape"])  # as its runner unpacks it
        assert (height, width, channels) == (64, 64, 3)
        assert json.loads(entity["output_shape"]) == [64, 64, 19]
        assert isinstance(entity["macs"], int) and len(json.loads(entity["total_inference_avg"]))
    for what in float_models(theirs, "from-edgeloop", tmp_path / "taken"):
        assert what == [net.read_bytes()]
    assert float_models(theirs, "from-archai", tmp_path / "none") == [[], []]
    for kind in ("model.dlc", "model.quant.dlc"):  # where its runner looks for its own conversions
        assert not theirs.list_blobs(f"{EXPERIMENT}/from-archai/{kind}")
        assert kind in {file.name for file in ours.model("from-archai").files()}

    stored = {blob.removeprefix(f"{EXPERIMENT}/from-edgeloop/") for blob in theirs.list_blobs()}
    assert {"unet-w8.onnx", "unet-w8.quant.onnx", "unet-w8.layers.csv"} <= stored
    assert not [name for name in stored if ".attempts" in name]
    files = {file.name for file in ours.model("from-edgeloop").files()}
    assert "unet-w8.quant.onnx" in files and not [name for name in files if "~" in name]

    farm.edgeloop("delete", "from-archai", "--yes")
    assert not [blob for blob in theirs.list_blobs() if "from-archai" in blob]


def test_an_attempt_under_way_shows_archai_no_onnx_file(
    theirs: Any, ours: Workspace, tmp_path: Path
):
    net = save_tiny(tmp_path / "model.onnx")
    ours.upload(net, "busy")
    quantized = tmp_path / "model.quant.onnx"
    quantized.write_bytes(b"quantized")
    keys = ours.catalog.stored.put_attempt("busy", "token", {quantized.name: quantized})
    assert float_models(theirs, "busy", tmp_path / "taken") == [[net.read_bytes()]] * 2
    lease = ours.leases().claim(["quantize"], "bench-1:runner")
    assert lease is not None
    ours.leases().commit(lease, Outcome({**CONVERTED, "toolchain": "qnn"}, keys))
    assert float_models(theirs, "busy", tmp_path / "taken") == [[net.read_bytes()]] * 2
    paths = ours.model("busy").download(tmp_path / "out", "*.quant.onnx")
    assert [path.read_bytes() for path in paths] == [b"quantized"]


def test_a_lock_of_either_holds_for_the_other_on_the_same_host(
    theirs: Any, farm: Farm, ours: Workspace, tmp_path: Path
):
    ours.upload(save_tiny(tmp_path / "net.onnx"), "shared")
    leases = ours.leases()
    node = f"{ours.settings.node}:runner"  # as a runner names itself
    lease = leases.claim(["onnx"], node)
    assert lease is not None
    assert ours.settings.node == theirs._get_node_id()
    assert theirs.lock("shared", "busy") is None

    leases.release(lease)
    assert theirs.lock("shared", "Running f1_onnx") is not None
    assert leases.claim(["onnx", "quantize"], node) is None
    with pytest.raises(ModelBusy, match="another tool works on it"):
        ours.catalog.reset("shared")
    ours.upload(save_tiny(tmp_path / "free.onnx", 2), "free")
    for names in (("shared",), ("*", "--yes")):
        said = farm.edgeloop("reset", *names, check=False)
        assert said.returncode == 1 and "edgeloop unlock shared" in said.stderr
        assert ("free: reset" in said.stdout) == ("*" in names)
    assert theirs.is_locked_by_self("shared")

    theirs.unlock("shared")
    leases.sweep()  # as an idle runner does every few seconds
    lease = leases.claim(["onnx"], node)
    assert lease is not None
    ours.catalog.reset("shared")


def test_a_lease_ends_when_archai_takes_the_row(theirs: Any, ours: Workspace, tmp_path: Path):
    ours.upload(save_tiny(tmp_path / "net.onnx"), "shared")
    leases = ours.leases()
    lease = leases.claim(["onnx"], "bench-1:runner")
    assert lease is not None
    theirs.unlock("shared")  # by a person who thinks that bench-1 is dead
    assert theirs.lock("shared", "Running f1_onnx") is not None
    for late in (
        lambda: leases.renew(lease),
        lambda: store_and_commit(ours, leases, lease, Result({"f1_onnx": 0.5}, {}, "")),
    ):
        with pytest.raises(LeaseLost):
            late()
    assert theirs.is_locked_by_self("shared") and "f1_onnx" not in ours.model("shared").row


def test_archai_leaves_the_candidates_of_a_search_alone(theirs: Any, ours: Workspace):
    """Its runner looks for the model of every row that nobody holds, and fails those without."""
    table = ours.store.models(EXPERIMENT)
    candidates = Candidates(table, EXPERIMENT)
    candidates.note("id_1", "{}", "here", {"val_iou": 0.5})
    name = candidates.name_of("id_1")
    assert [row["name"] for row in ours.status()] == [name]
    assert theirs.is_locked_by_other(name)
    assert ours.catalog.unlock(name) == []
