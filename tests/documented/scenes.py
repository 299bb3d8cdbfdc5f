"""What pages take for granted, made for their tests: `<!-- setup: scene NAME -->`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper

from edgeloop import Workspace
from edgeloop.models.runners import CurrentStage, RunnerDevice, RunnerEntry, columns_of
from edgeloop.operate.fleet.records import (
    Bounds,
    ExperimentShare,
    FleetObservation,
    Fleets,
    FleetSpec,
)
from tests.store.older import restore_folder

if TYPE_CHECKING:
    from tests.peers.azureml import AzureML

DEMO_MODELS = Path(__file__).parents[1] / "data/nets"


def free_sizes(project: Path) -> None:
    """`net.onnx` takes an image of any size, and `tokens.onnx` two rows of any length."""
    model = onnx.load_model(str(DEMO_MODELS / "unet-w8.onnx"))
    [image] = model.graph.input
    _rename_input(model, image.name, "image")
    for side, name in zip(image.type.tensor_type.shape.dim[2:], ("height", "width"), strict=True):
        side.dim_param = name
    del model.graph.value_info[:]
    for side in model.graph.output[0].type.tensor_type.shape.dim[2:]:
        side.dim_param = "any"
    onnx.save_model(model, str(project / "net.onnx"))
    _tokens(project / "tokens.onnx", "length")


def nets(project: Path) -> None:
    """`nets/` has a classifier, and a model that no task fits."""
    (project / "nets").mkdir()
    pooled = helper.make_node("GlobalAveragePool", ["image"], ["pooled"])
    flat = helper.make_node("Flatten", ["pooled"], ["scores"])
    _save(
        project / "nets/classifier.onnx",
        [pooled, flat],
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 64, 64])],
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 3]),
    )
    _tokens(project / "nets/text.onnx", 128)


def damage(project: Path) -> None:
    """A row that is not JSON, a file that is gone, and a hint that is missing."""
    with sqlite3.connect(project / ".edgeloop/store.db") as database:
        row = "space LIKE 'models%' AND key = 'brave-fox'"
        database.execute(f"UPDATE edgeloop_rows SET data = '{{' WHERE {row}")
        database.execute("DELETE FROM edgeloop_rows WHERE key LIKE '%gentle-owl|convert'")
    (project / ".edgeloop/blobs/default/calm-heron/unet-large.onnx").unlink()


def old_store(project: Path) -> None:
    """The store of a team that used an older version."""
    restore_folder("d379839", project / ".edgeloop")


_CONVERTED = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}


def converted(project: Path) -> None:
    """Three models that wait for a device."""
    row = {"status": "waiting", "benchmark_only": 1, **_CONVERTED, "toolchain": "qnn"}
    with Workspace.open(f"sqlite:{project / '.edgeloop'}", "hands") as workspace:
        models = workspace.store.models("hands")
        models.insert_many((f"net-{number}", row) for number in range(3))


def waiting_work(project: Path) -> None:
    """A table on which many machines work: 64 models to convert, 8 of them under way, and others
    that a simulated chip and two boards have begun with. A runner fell silent."""
    with Workspace.open(f"sqlite:{project / '.edgeloop'}", "faces") as workspace:
        new = {f"net-{number}": {"status": "new", "benchmark_only": 1} for number in range(64)}
        models = workspace.store.models("faces")
        models.insert_many(new.items())
        for number in range(8):
            assert workspace.leases().claim(["quantize"], f"quant-{number}:runner")
        for chip, toolchain, count in (("htp:qcs8550", "qnn", 41), ("snapdragon-888", "snpe", 12)):
            pinned = {
                "status": "waiting",
                "benchmark_only": 1,
                **_CONVERTED,
                "toolchain": toolchain,
                "device": chip,
            }
            models.insert_many((f"{chip.strip('htp:')}-{n}", pinned) for n in range(count))
        _register(workspace, "quant-0", "", ("quantize", "onnx"))
        _register(workspace, "quant-7", "", ("quantize", "onnx"), silent_s=180)
        for board in ("8c2f11d0", "1f00aa42"):
            _register(
                workspace,
                f"lab-{board[0]}",
                f"adb:{board}",
                ("device", "device@snapdragon-888"),
                "snapdragon-888",
            )


def machines(project: Path) -> None:
    """Two machines with runners: one with two boards that cannot work now, and one that is dead."""
    waits = "a benchmark waits until it is below 75 °C"
    refused = "it has not accepted this computer: unlock its screen and accept the dialog"
    with Workspace.open(f"sqlite:{project / '.edgeloop'}") as workspace:
        now = workspace.store.now()
        convert = (CurrentStage("convert", "calm-heron", now - 41),)
        own = (
            RunnerDevice("", "busy", can=("quantize",), doing=convert, since=now - 41),
            RunnerDevice("adb:8c2f11d0", "hot", waits, since=now - 90),
            RunnerDevice("adb:1f00aa42", "unauthorized", refused, since=now - 720),
        )
        alone = (RunnerDevice("", "idle", can=("quantize",)),)
        for node, devices, silent_s in (("lab-1", own, 0.0), ("quant", alone, 180.0)):
            entry = RunnerEntry(f"{node}|4711", node, "default", devices=devices)
            entry = replace(entry, version="0.1.0", pid=4711)
            row = {**columns_of(entry), "beat": now - silent_s}
            workspace.store.runners().insert(entry.id, row)


def _register(
    workspace: Workspace,
    node: str,
    device: str,
    can: tuple[str, ...],
    chip: str = "",
    silent_s: float = 0.0,
) -> None:
    own = RunnerDevice(device, state="idle", can=can, chip=chip)
    entry = RunnerEntry(f"{node}|1", node, workspace.experiment, devices=(own,))
    beat = workspace.store.now() - silent_s
    workspace.store.runners().insert(entry.id, {**columns_of(entry), "beat": beat})


def fleet(project: Path) -> None:
    """A fleet on a cluster that two experiments share, as its supervisor saw it last."""
    shares = {
        "faces": {"ready": 42, "running": 10, "share": 12, "runners": 12},
        "hands": {"ready": 17, "running": 3, "share": 4, "runners": 3},
    }
    experiments = {"faces": ExperimentShare(weight=2), "hands": ExperimentShare(quota=4)}
    spec = FleetSpec(
        name="fleet", compute="cluster", runners=Bounds.parse("2:16"), experiments=experiments
    )
    note = "3 wait: every node that could run it is full, or it is being started"
    with Workspace.open(f"sqlite:{project / '.edgeloop'}") as workspace:
        fleets = Fleets(workspace.store)
        fleets.declare(spec, "ray", "")
        record = fleets.claim("fleet", "head")
        fleets.report(record, FleetObservation(16, 12, 3, 1, 2, note, shares))


def _tokens(file: Path, length: int | str) -> None:
    ids, mask = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, length])
        for name in ("ids", "mask")
    )
    result = helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, length])
    masked = helper.make_node("Mul", ["ids", "mask"], ["masked"])
    scaled = helper.make_node("Mul", ["masked", "scale"], ["features"])
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [1], [0.5])
    _save(file, [masked, scaled], [ids, mask], result, [scale])


def _save(
    file: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    output: onnx.ValueInfoProto,
    weights: list[onnx.TensorProto] | None = None,
) -> None:
    graph = helper.make_graph(nodes, file.stem, inputs, [output], weights or [])
    opset = [helper.make_opsetid("", 17)]
    onnx.save_model(helper.make_model(graph, opset_imports=opset), str(file))


def _rename_input(model: onnx.ModelProto, old: str, new: str) -> None:
    model.graph.input[0].name = new
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new


def azureml_project(project: Path, cloud: AzureML) -> None:
    """A project that submitted with azureml-core, and the cluster and container that it used."""
    from azure.ai.ml.entities import AmlCompute, AzureBlobDatastore

    account = cloud.storage.new_account()
    cluster = AmlCompute(name="gpu-cluster", size="STANDARD_NC4AS_T4_V3", max_instances=4)
    cloud.client().compute.begin_create_or_update(cluster).result()
    lab = AzureBlobDatastore(name="lab", account_name=account, container_name="faces")
    cloud.client().datastores.create_or_update(lab)
    datastore = {
        "datastore_name": "lab",
        "account_name": account,
        "container_name": "faces",
        "account_key": cloud.storage.key,
        "blob_endpoint": cloud.storage.endpoints_of(account)["blob"].rstrip("/"),
    }
    environment = {
        "docker": {"baseImage": "lab/train:7", "shmSize": "2g"},
        "python": {"userManagedDependencies": True},
        "environmentVariables": {"OMP_NUM_THREADS": "2"},
    }
    files = {
        "compute_target.json": json.dumps({"compute_target": "gpu-cluster"}),
        "config.json": cloud.config_file(),
        "datastore.json": json.dumps(datastore),
        "environment.json": json.dumps(environment),
    }
    (project / "examples").unlink()  # a link of ours, which is no code of this project
    (project / ".azureml").mkdir()
    for name, text in files.items():
        (project / ".azureml" / name).write_text(text)
    (project / "train.py").write_text(_TRAIN)


def data_blobs_project(project: Path, cloud: AzureML) -> None:
    """The same workspace, and a project whose data is in `data_blobs/`."""
    azureml_project(project, cloud)
    for kind in ("raw", "working/faces", "outputs"):
        (project / "data_blobs" / kind).mkdir(parents=True)
    (project / "data_blobs/raw/recording.bin").write_bytes(bytes(1000))
    for number in range(3):
        (project / f"data_blobs/working/faces/{number}.txt").write_text(f"face {number}\n")
    (project / "train.py").write_text(_TRAIN_ON_BLOBS)


_TRAIN = """\
import argparse, os, pathlib, time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--wait", type=float, default=0)
options = parser.parse_args()
print(f"lr {options.lr:g}, {os.environ['OMP_NUM_THREADS']} threads", flush=True)
time.sleep(options.wait)
pathlib.Path("outputs/net.pt").write_text(str(options.lr))
"""
_TRAIN_ON_BLOBS = """\
import pathlib, sys, time

faces = sorted(pathlib.Path("data_blobs/working/faces").iterdir())
print(f"{len(faces)} faces", flush=True)
pathlib.Path("data_blobs/outputs/first.pt").write_text("epoch 1")
print("epoch 1", flush=True)
time.sleep(float(sys.argv[1]))
pathlib.Path("data_blobs/outputs/net.pt").write_text("epoch 2")
"""
AZURE_SCENES: dict[str, Callable[[Path, AzureML], None]] = {
    "azureml-project": azureml_project,
    "data-blobs-project": data_blobs_project,
}
SCENES: dict[str, Callable[[Path], None]] = {
    "free-sizes": free_sizes,
    "nets": nets,
    "old-store": old_store,
    "converted": converted,
    "damage": damage,
    "fleet": fleet,
    "machines": machines,
    "waiting-work": waiting_work,
}
