"""Makes the store that the notebook and `portal --demo` show when there is none: a real search on
one machine, all its nets measured, those of the front trained in full. About ten minutes.

    python scripts/make_demo_store.py FOLDER

FOLDER keeps everything; what charts need goes, packed, into the package. Latencies and scores are
those of the machine it ran on, so the file differs a little each time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

from edgeloop import Workspace
from edgeloop.graph.outline import OUTLINE_SUFFIX
from edgeloop.view.demo import CHIP_EXPERIMENT, DEMO_FILE, HOST_EXPERIMENT, pack
from edgeloop.view.front import pareto_of
from edgeloop.view.measures import objective

PROJECT = Path(__file__).parents[1]
FACES = "data/working/faces64"
SIZES = ("--calibration-images", "64", "--quick-images", "100", "--thorough-images", "200")
EXAMPLES = ("examples_f1_onnx.png", "examples_f1_onnx.jpg", "examples_f1_1k.png")
SEARCH = (
    *("search.budget=24", "search.iteration=6", "search.publish=none"),
    *("objectives.val_iou.train.steps=150", f"experiment={CHIP_EXPERIMENT}"),
)


def edgeloop(folder: Path, *arguments: str) -> None:
    print(f"\n$ edgeloop {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "edgeloop", *arguments], cwd=folder, check=True)


def measure(folder: Path, device: str, experiment: str, *options: str) -> None:
    where = ("--device", device, "--dataset", FACES, "--experiment", experiment)
    edgeloop(folder, "runner", "--drain", *options, *where, *SIZES)


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # The name of the machine is private.
    (folder / "edgeloop.yaml").write_text("node: laptop\n")
    shutil.copyfile(PROJECT / "examples/search/laptop.yaml", folder / "laptop.yaml")
    edgeloop(folder, "data", "faces", FACES, "--count", "700", "--size", "64", "--seed", "7")
    edgeloop(folder, "search", "laptop.yaml", *SEARCH, "--resume")
    for net in sorted((folder / "searches/laptop/nets").glob("id_*.onnx")):
        # Under its candidate's name: the row keeps what the search found out.
        edgeloop(folder, "upload", str(net), "--name", net.stem, "--experiment", CHIP_EXPERIMENT)
    measure(folder, "htp:qcs8550", CHIP_EXPERIMENT, "--layers")  # measurements have them anyway
    full = ("--epochs", "12", "--no-publish", "--experiment", CHIP_EXPERIMENT)
    edgeloop(folder, "search", "train", "laptop", *full)
    for net in sorted((folder / "searches/laptop/full").glob("id_*.onnx")):
        edgeloop(folder, "upload", str(net), "--name", net.stem, "--experiment", HOST_EXPERIMENT)
    measure(folder, "host", HOST_EXPERIMENT)


def packed(folder: Path) -> bytes:
    """What pages are drawn from: times, scores and graphs of all models, curves of those on the
    front."""
    store = f"sqlite:{folder / '.edgeloop'}"
    both = (CHIP_EXPERIMENT, HOST_EXPERIMENT)
    front: set[str] = set()
    for experiment in both:
        with Workspace.open(store, experiment) as workspace:
            found = pareto_of(workspace.status(), (objective("mean"), objective("f1_1k")))
            front |= {f"{experiment}/{row['name']}" for row in found.front}

    def is_kept(key: str) -> bool:
        name, model = PurePosixPath(key).name, "/".join(key.split("/")[:2])
        if name == "pr_curve_f1_10k.csv" or name in EXAMPLES:
            return model in front
        if name.endswith(OUTLINE_SUFFIX):
            return True
        return name.startswith(("perf_results", "test_results")) and name.endswith(".csv")

    with Workspace.open(store) as workspace:
        return pack(workspace.store, both, is_kept)


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    make(folder)
    DEMO_FILE.write_bytes(packed(folder))
    print(f"\n{DEMO_FILE.relative_to(PROJECT)}: {DEMO_FILE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
