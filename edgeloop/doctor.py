"""What this machine can do, what is missing, and how to get it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass

from edgeloop._util.redact import redact
from edgeloop.errors import EdgeloopError
from edgeloop.platforms import find_sdk
from edgeloop.settings import Settings
from edgeloop.workspace import Workspace

_EXTRAS = (
    ("onnxruntime", "qnn", "F1 of float models, and measuring this CPU"),
    ("onnxruntime_qnn", "qnn", "Qualcomm's compiler and HTP simulator"),
    ("azure.data.tables", "azure", "stores in an Azure storage account"),
    ("torch", "train", "training"),
)
_AGAIN = "unpack the SDK again, whole, from Qualcomm's package for Linux and Android"


@dataclass(frozen=True)
class Finding:
    """`needed`: nothing works without it. Everything else only says what cannot be done yet."""

    what: str
    ok: bool
    text: str
    needed: bool = False


def examine(store: str | None, experiment: str | None) -> list[Finding]:
    return [
        _python(),
        _store(store, experiment),
        *_packages(),
        *_sdk(),
        _adb(),
        _dataset(),
        _cores(),
    ]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", sys.version_info >= (3, 11), version, needed=True)


def _store(store: str | None, experiment: str | None) -> Finding:
    try:
        with Workspace.open(store, experiment) as workspace:
            count = sum(workspace.experiments().values())
            return Finding("store", True, f"{workspace.store.description}: {count} models", True)
    except EdgeloopError as error:
        return Finding("store", False, redact(str(error)), needed=True)


def _packages() -> list[Finding]:
    found = []
    for module, extra, purpose in _EXTRAS:
        there = _is_there(module)
        text = purpose if there else f"{purpose}: pip install 'edgeloop[{extra}]'"
        found.append(Finding(module.partition(".")[0].replace("_", "-"), there, text))
    return found


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _sdk() -> list[Finding]:
    """One line for the SDK, and one for each part of it that is missing."""
    try:
        sdk = find_sdk(Settings.load().snpe_root)
    except EdgeloopError as error:
        return [Finding("snpe-sdk", False, f"boards need it. {error}")]
    title = f"Neural Processing SDK {sdk.version or '(version unknown)'} in {sdk.root}"
    lost = [
        Finding(what, False, f"{where} is not there: {_AGAIN}") for what, where in sdk.missing()
    ]
    return [Finding("snpe-sdk", not lost, title), *lost]


def _adb() -> Finding:
    path = shutil.which("adb")
    text = path or "boards over USB need it: install your system's package 'adb'"
    return Finding("adb", path is not None, text)


def _dataset() -> Finding:
    dataset = Settings.load().dataset
    hint = "set INPUT_DATASET, or make one: edgeloop data faces faces/"
    return Finding("dataset", bool(dataset), dataset or hint)


def _cores() -> Finding:
    return Finding("cores", True, f"{os.cpu_count()}")
