"""Files of the current folder, and temporary ones: what native processes take and leave."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from edgeloop._util.isolation import WorkerProcess, register_calls
from edgeloop._util.system import memory_bytes, native_memory_bytes, python_module
from edgeloop.errors import MemoryExceeded, MissingExtra, ModelFailed
from edgeloop.graph.isolated import GraphProcess
from edgeloop.search.evaluators.screening import ModelBuilder
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.spaces import find_space
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_segmentation_model
from tests.isolation.killing import kill_in_call

ROOT = Path(__file__).parents[2]
NAMES = ("random", "struct", "tokenize", "json", "numpy", "onnx", "select", "torch", "tempfile")

register_calls("odd", "tests.isolation.odd_worker", what="Testing")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's, with files that are called as modules are."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in NAMES:
        line = f"open({str(tmp_path / 'EXECUTED')!r}, 'w'); raise SystemExit('mine')\n"
        (folder / f"{name}.py").write_text(line)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slow
def test_modules_of_the_current_folder_are_not_imported(project: Path, tmp_path: Path) -> None:
    net = save_segmentation_model(tmp_path / "net.onnx")
    graphs = GraphProcess()
    assert graphs.inspect(net).params > 0
    graphs.close()
    make_faces(project / "faces", 4, 32, seed=1, processes=2)
    edgeloop = Path(sys.executable).with_name("edgeloop")
    for words in (("upload", str(net)), ("runner", "--once", "--benchmark-only")):
        done = subprocess.run([edgeloop, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "EXECUTED").exists()


@pytest.mark.slow
def test_a_space_imports_its_neighbours_and_none_of_them_replaces_a_module(project: Path) -> None:
    (project / "nets").mkdir()
    (project / "blocks.py").write_text("WIDTHS = [4, 8]\n")
    (project / "nets" / "layers.py").write_text(
        "import random, torch\ndef conv(width):\n    return torch.nn.Conv2d(3, width, 1)\n"
    )
    (project / "nets" / "space.py").write_text(
        "def build(trial, shape, classes):\n"
        "    from blocks import WIDTHS\n"
        "    import layers\n"
        "    return layers.conv(trial.suggest_categorical('w', WIDTHS))\n"
    )
    space = "nets/space.py:build"
    arch = Architecture(space, {"w": 8}, (1, 3, 16, 16), 8)
    builder = ModelBuilder(60, project)
    before = list(sys.path)
    try:
        assert builder.build(arch, project / "net.onnx").is_file()
        assert find_space(space, project=project).sample(0, (1, 3, 16, 16), 8).params["w"] in (4, 8)
    finally:
        builder.close()
        sys.path[:] = before
        for name in ("blocks", "layers"):
            sys.modules.pop(name, None)


def test_every_module_that_is_started_as_a_program_is_started_without_the_current_folder() -> None:
    assert python_module("edgeloop")[1:] == ["-P", "-m", "edgeloop"]
    bare = re.compile(r"""(?<!"-P", )(?<!"-I", )["']-m["'],""")
    bare_starts = [
        f"{path.relative_to(ROOT)}: {text[match.start() - 40 : match.end() + 40]}"
        for path in (ROOT / "edgeloop").rglob("*.py")
        for text in [" ".join(code_of(path).split())]  # a command may take several lines
        for match in bare.finditer(text)
        if "click.option(" not in text[match.start() - 40 : match.start()]
    ]
    assert bare_starts == []


def code_of(path: Path) -> str:
    """A module without its docstrings: their examples show commands of a user's job."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with WorkerProcess() as process:
        yield process
    monkeypatch.setattr("tempfile.tempdir", None)


def test_temporary_files_of_a_call_go_with_it(odd: WorkerProcess, tmp_path: Path) -> None:
    answer, _ = odd.call("odd.leave_files")
    assert Path(answer["file"]).is_relative_to(tmp_path)
    (own,) = tmp_path.iterdir()
    assert sorted(path.name for path in own.rglob("*")) == ["log", "tmp", "work"]
    with pytest.raises(ModelFailed, match=r"leave_files did not end within 0\.5 s"):
        odd.call("odd.leave_files", seconds=600, limit_s=0.5)
    assert list(tmp_path.iterdir()) == []


def test_work_that_needs_more_memory_than_there_is_leaves_the_model_to_others(
    odd: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGELOOP_NATIVE_MEMORY", "300MB")
    odd.call("odd.grow", megabytes=50, keep=False, seconds=0.6)
    with pytest.raises(MemoryExceeded, match=r"grow needed more than 300\.0 MB of memory"):
        odd.call("odd.grow", megabytes=600, keep=False, seconds=600)
    assert odd.pid is None
    odd.call("odd.hello")


def test_a_process_that_the_system_kills_had_no_memory_left(
    odd: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd.call("odd.hello")
    kill_in_call(odd, signal.SIGKILL, monkeypatch)
    with pytest.raises(MemoryExceeded, match="leave_files needed more than"):
        odd.call("odd.leave_files", seconds=600)


def test_a_process_that_has_grown_is_replaced_before_the_next_piece_of_work(
    odd: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeloop._util.isolation._MOST_GROWTH_BYTES", 100 << 20)
    odd.call("odd.hello")
    first = odd.pid
    odd.call("odd.grow", megabytes=60, keep=True)
    odd.call("odd.grow", megabytes=60, keep=True)
    odd.call("odd.grow", megabytes=1, keep=True)
    assert odd.pid == first, "the same work goes on where it has what it needs"
    odd.call("odd.hello")
    assert odd.pid != first


def test_any_process_answers_any_registered_call(odd: WorkerProcess, tmp_path: Path) -> None:
    net = save_segmentation_model(tmp_path / "net.onnx")
    assert odd.call("odd.hello")[0]["temporary"]
    first = odd.pid
    assert odd.call("graph.inspect", model=str(net), shapes={})[0]["info"]["params"] > 0
    assert odd.pid == first


@pytest.mark.slow
def test_a_process_runs_another_interpreter_without_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vendor's Python has NumPy and the vendor's packages. Of ours it sees this package alone."""
    venv.create(tmp_path / "vendor", symlinks=True)
    python = tmp_path / "vendor" / "bin" / "python"
    (packages,) = (tmp_path / "vendor").glob("lib/python*/site-packages")
    folder = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (folder / name).exists():
            (packages / name).symlink_to(folder / name)
    (packages / "vendor_sdk.py").write_text(
        "import sys\n"
        "def hello(warm=False): return {'python': sys.executable}, ()\n"
        "def double(array): return {}, [2 * array]\n"
        "def ours(): import pydantic\n"
        "CALLS = {'hello': hello, 'double': double, 'ours': ours}\n"
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)
    register_calls("vendor", "vendor_sdk", what="The vendor's compiler", extra="vendor")
    with WorkerProcess(python) as process:
        assert process.call("vendor.hello")[0]["python"] == str(python)
        _, (doubled,) = process.call("vendor.double", [np.arange(3)])
        np.testing.assert_array_equal(doubled, [0, 2, 4])
        with pytest.raises(MissingExtra, match=r"The vendor's compiler needs .*edgeloop\[vendor\]"):
            process.call("vendor.ours")
    with WorkerProcess() as process, pytest.raises(MissingExtra):
        process.call("vendor.hello")


def test_the_memory_of_a_container_is_that_of_the_smallest_group_around_it(tmp_path: Path) -> None:
    for folder, limit in (("", "max"), ("pod", "2000000000"), ("pod/box", "max")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "memory.max").write_text(limit)
    (tmp_path / "groups").write_text("0::/pod/box\n")
    assert memory_bytes(tmp_path, tmp_path / "groups") == 2_000_000_000
    assert native_memory_bytes({"EDGELOOP_NATIVE_MEMORY": "3GiB"}) == 3 << 30
    assert native_memory_bytes({}) >= 1 << 30
