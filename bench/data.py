"""Datasets to Azurite beside azure-storage-blob, and how long it takes to see that nothing changed.

Both sides send the same files to the same server, in turns; the medians are compared. Ours includes
reading, hashing, the manifest and the record; the whole command where it says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from azure.storage.blob import BlobServiceClient, ContainerClient

from bench.tables import markdown
from edgeloop.node.datasets import Datasets
from edgeloop.store import open_blobs, parse_location
from tests.data.trees import Watched
from tests.peers.azurite import Azurite

ROUNDS = 5
SMALL = (2_000, 20_000)
LARGE_BYTES = 500_000_000
UNCHANGED = 10_000
CONCURRENCIES = (4, 8, 16)
EDGELOOP = Path(sys.executable).with_name("edgeloop")


def run() -> str:
    with TemporaryDirectory() as name, Azurite() as server:
        top = Path(name)
        rows = [_small(top, server), _large(top, server), *_unchanged(top, server)]
    return markdown(("data push to Azurite", "reference", "ours", "ratio", "goal"), rows)


def _small(top: Path, server: Azurite) -> list[object]:
    count, size = SMALL
    folder = _files(top / "small", count, size)
    ours, theirs = [], []
    for number in range(ROUNDS):
        theirs.append(_seconds(_each_file, _container(server), folder))
        ours.append(_seconds(_push, _datasets(server, top / f"index-s{number}"), folder))
    what = f"{count:,} files of {size // 1000} kB, MB/s (azure-storage-blob, 8 threads)"
    return _compared(what, count * size, theirs, ours, "≥ 1.5")


def _large(top: Path, server: Azurite) -> list[object]:
    folder = top / "large"
    folder.mkdir()
    with (folder / "file").open("wb") as file:
        for _ in range(LARGE_BYTES // 1_000_000):
            file.write(os.urandom(1_000_000))
    ours: list[float] = []
    theirs: dict[int, list[float]] = {most: [] for most in CONCURRENCIES}
    for number in range(ROUNDS):
        for most, times in theirs.items():
            times.append(_seconds(_one_file, _container(server), folder / "file", most))
        ours.append(_seconds(_push, _datasets(server, top / f"index-l{number}"), folder))
    best = min(theirs, key=lambda most: median(theirs[most]))
    what = f"one file of 500 MB, MB/s (azure-storage-blob, best of {CONCURRENCIES}: {best} at once)"
    return _compared(what, LARGE_BYTES, theirs[best], ours, "≥ 0.9")


def _unchanged(top: Path, server: Azurite) -> list[list[object]]:
    project = top / "project"
    folder = _files(project / "data/working/faces", UNCHANGED, 20_000)
    address = server.connection_string_of(server.new_account())
    environ = os.environ | {"MODEL_STORAGE_CONNECTION_STRING": address}

    def command() -> None:
        line = [str(EDGELOOP), "data", "push", "working/faces"]
        subprocess.run(line, cwd=project, env=environ, check=True, stdout=subprocess.DEVNULL)

    command()
    at_once = _seconds(command)
    again = median(_seconds(command) for _ in range(ROUNDS))
    watched = Watched(open_blobs(parse_location(address)))
    (folder / "00007").write_bytes(os.urandom(20_000))
    Datasets(watched, project / ".edgeloop/index").push("working/faces", folder)
    python = median(_seconds(_python) for _ in range(ROUNDS))
    what = f"{UNCHANGED:,} unchanged files, the whole command, s"
    start = f"{python:.2f} (starts Python, imports click and obstore)"
    return [
        [f"{what}; right after the first push", start, f"{at_once:.2f}", "", "< 1"],
        [what, start, f"{again:.2f}", "", "< 1"],
        [f"one of {UNCHANGED:,} changed: bytes of content sent", 20_000, watched.sent, "", "="],
    ]


def _compared(
    what: str, size: int, theirs: list[float], ours: list[float], goal: str
) -> list[object]:
    reference, mine = (size / median(times) / 1e6 for times in (theirs, ours))
    return [what, f"{reference:.0f}", f"{mine:.0f}", f"{mine / reference:.2f}", goal]


def _push(datasets: Datasets, folder: Path) -> None:
    datasets.push("working/bench", folder)


def _datasets(server: Azurite, index: Path) -> Datasets:
    """With the container there already, as it is for the reference."""
    blobs = open_blobs(parse_location(server.connection_string_of(server.new_account())))
    blobs.put("ready", b"")
    return Datasets(blobs, index)


def _each_file(container: ContainerClient, folder: Path) -> None:
    def send(path: Path) -> None:
        with path.open("rb") as file:
            container.upload_blob(path.name, file)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, folder.iterdir()))


def _one_file(container: ContainerClient, path: Path, most: int) -> None:
    with path.open("rb") as file:
        container.upload_blob("file", file, max_concurrency=most)


def _container(server: Azurite) -> ContainerClient:
    address = server.connection_string_of(server.new_account())
    return BlobServiceClient.from_connection_string(address).create_container("bench")


def _python() -> None:
    subprocess.run([sys.executable, "-c", "import click, obstore.store"], check=True)


def _files(folder: Path, count: int, size: int) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number:05d}").write_bytes(os.urandom(size))
    return folder


def _seconds(work: Callable[..., None], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began
