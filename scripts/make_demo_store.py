"""Makes what the notebook and `portal --demo` show when there is no store: the search of
`make demo`, all its models tested, those of the front trained further; then jobs, and a small fleet
in the middle of its work. About a quarter of an hour on two idle cores.

    python scripts/make_demo_store.py FOLDER [CHANGE…]

FOLDER keeps everything, and what is there already is not done again; what pages are drawn from
goes, packed, into the package. CHANGE is one of the search, such as `search.budget=12`. Latencies
and scores are those of the machine it ran on, so the files differ a little each time.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from edgeloop import Workspace
from edgeloop.graph.outline import OUTLINE_SUFFIX
from edgeloop.models.columns import LATENCY
from edgeloop.store import Values
from edgeloop.view.demo import (
    CHIP_EXPERIMENT,
    DEMO_FILE,
    FARM_FILE,
    HOST_EXPERIMENT,
    Recording,
    pack,
    pack_farm,
)
from edgeloop.view.front import pareto_of
from edgeloop.view.measures import objective

PROJECT = Path(__file__).parents[1]
CHIP = "htp:qcs8550"
FACES = "data/working/faces"
SEARCHED = "searches/demo"
SIZES = ("--calibration-images", "16", "--quick-images", "12", "--thorough-images", "16")
EXAMPLES = ("examples_f1_onnx.png", "examples_f1_onnx.jpg", "examples_f1_1k.png")
SEARCH = ("search.iteration=6", "search.publish=none", f"experiment={CHIP_EXPERIMENT}")
SEARCH_FILES = ("search.yaml", "candidates.csv", "hypervolume.csv", "curves.csv", "reference.json")
JOBS = {
    "faces-lr-3e-2": "lr=3e-2",
    "faces-lr-1e-2": "lr=1e-2",
    "faces-lr-3e-3": "lr=3e-3",
    "faces-typo": "lr=fast",
}
EPOCHS = "8"
LIMIT_S = 600.0


def edgeloop(folder: Path, *arguments: str, may_fail: bool = False) -> None:
    print(f"\n$ edgeloop {' '.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "edgeloop", *arguments]
    subprocess.run(command, cwd=folder, check=not may_fail)


def measure(folder: Path, device: str, experiment: str, *options: str) -> None:
    where = ("--device", device, "--dataset", FACES, "--experiment", experiment)
    edgeloop(folder, "runner", "--drain", *options, *where, *SIZES)


def make(folder: Path, changes: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # The name of the machine is private.
    (folder / "edgeloop.yaml").write_text("node: laptop\n")
    shutil.copyfile(PROJECT / "examples/search/demo.yaml", folder / "demo.yaml")
    edgeloop(folder, "data", "faces", FACES, "--count", "200", "--size", "256", "--seed", "7")
    edgeloop(folder, "search", "demo.yaml", *SEARCH, *changes, "--resume")
    for net in sorted((folder / SEARCHED / "nets").glob("id_*.onnx")):
        # Under its candidate's name: the row keeps what the search found out.
        name = candidate_name(folder, net.stem)
        edgeloop(folder, "upload", str(net), "--name", name, "--experiment", CHIP_EXPERIMENT)
    measure(folder, CHIP, CHIP_EXPERIMENT, "--layers")  # measurements have them anyway
    full = ("--epochs", "12", "--batch", "2", "--no-publish", "--experiment", CHIP_EXPERIMENT)
    edgeloop(folder, "search", "train", "demo", *full)
    for net, name in fully_trained(folder):
        edgeloop(folder, "upload", str(net), "--name", name, "--experiment", HOST_EXPERIMENT)
    measure(folder, "host", HOST_EXPERIMENT)


def fully_trained(folder: Path) -> Iterator[tuple[Path, str]]:
    """The models of the front and what they are called."""
    for net in sorted((folder / SEARCHED / "full").glob("id_*.onnx")):
        yield net, f"{candidate_name(folder, net.stem)}.full"


def candidate_name(folder: Path, arch_id: str) -> str:
    """The key of its row, whatever it is called."""
    with opened(folder, CHIP_EXPERIMENT) as workspace:
        for row in workspace.store.models(CHIP_EXPERIMENT).query():
            if row.key == arch_id or arch_id in map(str, row.values.values()):
                return row.key
    return arch_id


def make_jobs(folder: Path) -> None:
    """Three trainings that differ in a parameter, and one that fails."""
    for file in ("train.py", "train.yaml"):
        shutil.copyfile(PROJECT / "examples/jobs" / file, folder / file)
    edgeloop(folder, "data", "faces", f"{FACES}64", "--count", "700", "--size", "64", "--seed", "7")
    for name, change in JOBS.items():
        if not (folder / "runs" / name).is_dir():
            words = ("train.yaml", f"epochs={EPOCHS}", change, "--experiment", CHIP_EXPERIMENT)
            edgeloop(folder, "run", *words, "--name", name, may_fail=True)


# A fleet in the middle of its work: two machines that work, one that waits for models of its own,
# and one that was killed.


def record_farm(project: Path) -> Recording:
    """In a copy of the project, so that this can be done again."""
    folder = project / "farm"
    shutil.rmtree(folder, ignore_errors=True)
    for name in (".edgeloop", "data"):
        shutil.copytree(project / name, folder / name)
    shutil.copyfile(project / "edgeloop.yaml", folder / "edgeloop.yaml")
    known = rows_of(folder, CHIP_EXPERIMENT)
    for net, name in fully_trained(project):
        edgeloop(folder, "upload", str(net), "--name", name, "--experiment", CHIP_EXPERIMENT)
    return watched_fleet(folder, known)


def watched_fleet(folder: Path, known: Mapping[str, Values]) -> Recording:
    with ExitStack() as stopping:
        doomed = stopping.enter_context(runner(folder, "bench-3", CHIP))
        wait_for(lambda: works(folder, "bench-3"), "bench-3 to take a stage")
        doomed.kill()
        stopping.enter_context(runner(folder, "bench-4", CHIP, "--subset", "unet-*"))
        for node in ("bench-1", "bench-2"):
            stopping.enter_context(runner(folder, node, CHIP))
        wait_for(lambda: is_worth_seeing(folder), "all machines to be in their states")
        return snapshot(folder, known)


def snapshot(folder: Path, known: Mapping[str, Values]) -> Recording:
    with opened(folder, CHIP_EXPERIMENT) as workspace:
        store = workspace.store
        recorded = store.now()
        runners = {row.key: dict(row.values) for row in store.runners().query()}
        usage = {row.key: dict(row.values) for row in store.usage().query()}
    unfinished = {
        name: row
        for name, row in rows_of(folder, CHIP_EXPERIMENT).items()
        if name not in known and row.get("status") != "complete"
    }
    return Recording(recorded, {CHIP_EXPERIMENT: unfinished}, runners, usage)


@contextmanager
def runner(
    folder: Path, node: str, device: str, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    print(f"\n$ EDGELOOP_NODE={node} edgeloop runner --device {device} &", flush=True)
    where = ("--device", device, "--dataset", FACES, "--experiment", CHIP_EXPERIMENT, *SIZES)
    command = [sys.executable, "-m", "edgeloop", "runner", "--grace", "1", *options, *where]
    with (folder / f"{node}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "EDGELOOP_NODE": node},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(120)


def works(folder: Path, node: str) -> bool:
    with opened(folder, CHIP_EXPERIMENT) as workspace:
        return any(entry.node == node and entry.doing for entry in workspace.runners())


def is_worth_seeing(folder: Path) -> bool:
    with opened(folder, CHIP_EXPERIMENT) as workspace:
        states = {entry.node: entry.state for entry in workspace.runners()}
    words = [str(row.get("status")) for row in rows_of(folder, CHIP_EXPERIMENT).values()]
    is_waiting = any(word in ("new", "waiting") for word in words)
    wanted = {"bench-1": "working", "bench-2": "working", "bench-3": "dead", "bench-4": "idle"}
    return is_waiting and wanted.items() <= states.items()


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > until:
            sys.exit(f"waited {LIMIT_S:.0f} s for {what}")
        time.sleep(0.3)


# What is packed, without names of this machine.


def packed(folder: Path) -> bytes:
    """What pages are drawn from: times, scores and graphs of all models, curves of those on the
    front."""
    both = (CHIP_EXPERIMENT, HOST_EXPERIMENT)
    front: set[str] = set()
    for experiment in both:
        with opened(folder, experiment) as workspace:
            found = pareto_of(workspace.status(), (objective(LATENCY), objective("f1_1k")))
            front |= {f"{experiment}/{row['name']}" for row in found.front}

    def is_kept(key: str) -> bool:
        name, model = PurePosixPath(key).name, "/".join(key.split("/")[:2])
        if name in EXAMPLES:
            return model in front and key.startswith(f"{CHIP_EXPERIMENT}/")
        if name == "pr_curve_f1_10k.csv":
            return model in front
        if name.endswith(OUTLINE_SUFFIX):
            return True
        return name.startswith(("perf_results", "test_results")) and name.endswith(".csv")

    with opened(folder, CHIP_EXPERIMENT) as workspace:
        return pack(workspace.store, both, is_kept)


def packed_farm(folder: Path, recording: Recording) -> bytes:
    project = {
        f"{SEARCHED}/{name}": (folder / SEARCHED / name).read_bytes()
        for name in SEARCH_FILES
        if (folder / SEARCHED / name).is_file()
    }
    for name in JOBS:
        for file in ("job.json", "state.json"):
            project[f"runs/{name}/{file}"] = (folder / "runs" / name / file).read_bytes()
    with opened(folder, CHIP_EXPERIMENT) as workspace:
        blobs = {
            info.key: workspace.store.blobs.read(info.key)
            for info in workspace.store.blobs.list("_jobs/")
            if ("/log/" in info.key or "/outputs/" in info.key) and not info.key.endswith(".pt")
        }
    return pack_farm(
        Recording(**json.loads(anonymous(folder, json.dumps(vars(recording)).encode()))),
        {name: anonymous(folder, content) for name, content in project.items()},
        {key: anonymous(folder, content) for key, content in blobs.items()},
    )


def anonymous(folder: Path, content: bytes) -> bytes:
    """Without the folders, the user and the name of this machine. The jobs are of the demo's store,
    whatever it is."""
    names = {
        str(folder / ".edgeloop"): "",
        str(folder): "/home/ada/faces",
        sys.prefix: "/home/ada/.venv",
        f"{getpass.getuser()}@{socket.gethostname()}": "ada@laptop",
        socket.gethostname(): "laptop",
    }
    for name, instead in names.items():
        content = content.replace(name.encode(), instead.encode())
    return content


def opened(folder: Path, experiment: str) -> Workspace:
    return Workspace.open(f"sqlite:{folder / '.edgeloop'}", experiment)


def rows_of(folder: Path, experiment: str) -> dict[str, Values]:
    with opened(folder, experiment) as workspace:
        return {row.key: dict(row.values) for row in workspace.store.models(experiment).query()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("changes", nargs="*")
    given = parser.parse_args()
    folder: Path = given.folder.absolute()
    make(folder, given.changes)
    content = packed(folder)
    make_jobs(folder)
    recording = record_farm(folder)
    DEMO_FILE.write_bytes(content)
    FARM_FILE.write_bytes(packed_farm(folder, recording))
    for file in (DEMO_FILE, FARM_FILE):
        print(f"\n{file.relative_to(PROJECT)}: {file.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
