"""The wrapper as one file, and the first lines that fetch it on a node without Edgeloop."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest

import edgeloop
from edgeloop.errors import BadSetting
from edgeloop.jobs.bundle import bootstrap_command, bundle, ensure_wrapper, wrapper_sources
from edgeloop.jobs.computes.base import JobOrder, Resources, order_variables
from edgeloop.node.datasets import Datasets
from edgeloop.node.files import FolderBlobs
from edgeloop.node.ticket import ORDER_VARIABLE, Input, WrapperOrder, wrapper_key
from edgeloop.store import Access, Blobs, open_blobs, parse_location
from edgeloop.store.files import url_blobs
from tests.conftest import StoreUnderTest
from tests.jobs.wrapped import LIMIT_S, Wrapped, python_of
from tests.peers.azurite import Azurite

pytestmark = pytest.mark.server

OTHERS = ("3.8", "3.10", "3.13")
USE_EVERYTHING = """
open("outputs/seen", "w").write(open("data/raw/faces/1.txt").read())
open("data/working/made/2.txt", "w").write("2")
print("ran")
"""


@pytest.fixture
def wrapped(tmp_path: Path) -> Wrapped:
    return Wrapped(FolderBlobs(tmp_path / "store"), tmp_path / "node")


def order_with_data(wrapped: Wrapped, folder: Path, script: str = USE_EVERYTHING) -> None:
    folder.mkdir()
    (folder / "1.txt").write_text("1")
    version = Datasets(wrapped.blobs).push("raw/faces", folder).reference.version
    inputs = (Input("raw/faces", version),)
    wrapped.order_script(script, inputs=inputs, writes=("working/made",))


def test_the_same_sources_make_the_same_bytes():
    assert bundle() == bundle()
    with zipfile.ZipFile(BytesIO(bundle())) as archive:
        names = archive.namelist()
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert names == sorted(names)
    assert not [name for name in names if "cli" in name or "computes" in name or "sql" in name]


# Methods, functions and arguments that came after Python 3.8.
NEWER = {
    *("removeprefix", "removesuffix", "is_relative_to", "with_stem", "hardlink_to", "UTC"),
    *("file_digest", "cancel_futures", "batched", "pairwise", "to_thread"),
    *("filter", "bit_count", "StrEnum", "TypeAlias", "Self", "ParamSpec", "tomllib"),
    *("slots", "kw_only", "process_group", "onexc", "randbytes", "functools.cache"),
}
GENERIC = {"list", "dict", "tuple", "set", "frozenset", "type"}  # without [] before 3.9


PROGRAMS = sorted(file for file in wrapper_sources() if file.suffix == ".py")


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.name)
def test_what_runs_inside_a_job_is_written_for_python_3_8(file: Path):
    """`make soak` runs it on 3.8; this names the line, also of code that no test reaches."""
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    generic = GENERIC | {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("collections.abc", "collections")
        for alias in node.names
    }
    for node in evaluated(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            assert node.value.id not in generic, f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = {ast.unparse(side) for side in (node.left, node.right)}
            assert not sides & {"None", "str", "int", "float", "bytes"}, f"line {node.lineno}"
    found = [(node.lineno, node.attr) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            words = {word.arg or "" for word in node.keywords}
            found += [(node.lineno, word) for word in words]
            assert not ("strict" in words and ast.unparse(node.func) == "zip"), node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.module != "__future__" or node.names[0].name == "annotations"
            names = [alias.name for alias in node.names]
            found += [(node.lineno, name) for name in names]
            found += [(node.lineno, f"{node.module}.{name}") for name in names]
    assert not [(line, name) for line, name in found if name in NEWER]


def evaluated(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but annotations, which `from __future__ import annotations` leaves unevaluated,
    and what only a type checker reads."""
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        return
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                yield node
                yield from evaluated(node)


def test_the_wrapper_is_stored_once(tmp_path: Path):
    class Counting(FolderBlobs):
        puts = 0

        def put(self, key: str, source: Path | bytes) -> None:
            self.puts += 1
            super().put(key, source)

    blobs = Counting(tmp_path / "store")
    key = ensure_wrapper(blobs)
    assert ensure_wrapper(blobs) == key
    assert blobs.puts == 1
    assert key == wrapper_key(sha256(blobs.read(key)).hexdigest())


def bootstrap(wrapped: Wrapped, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """As on a node that has this Python, and no variable that a test set for something else."""
    access = wrapped.blobs.access(3600)
    order = JobOrder(wrapped.job, "test", Resources(), 0, access, ensure_wrapper(wrapped.blobs))
    variables = {
        **{"PATH": os.defpath, "HOME": str(wrapped.folder), "EDGELOOP_CACHE": str(wrapped.cache)},
        **order_variables(order, wrapped.pace),
        **wrapped.variables,
        **environ,
    }
    return subprocess.run(
        bootstrap_command(wrapped.python, access),
        env=variables,
        cwd="/",
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )


BARE = """
import importlib.util, json, sys
from edgeloop.paths import outputs, raw, working
import edgeloop
assert (raw("faces") / "1.txt").read_text() == "1" and working("made").is_dir()
outputs("deep/er.txt").write_text("by edgeloop.paths")
try:
    edgeloop.Jobs
except AttributeError as error:
    assert "is not installed in this job's environment" in str(error)
packages = [name for name in ("obstore", "edgeloop.jobs") if importlib.util.find_spec(name)]
open("outputs/python", "w").write(json.dumps([sys.executable, packages]))
open("outputs/large", "wb").write(b"1234567" * 3_000_000)
"""


@pytest.mark.parametrize("kind", ["sqlite", "azure", "s3"])
@pytest.mark.parametrize(
    "version",
    ["here", *(pytest.param(version, marks=pytest.mark.soak) for version in OTHERS)],
)
def test_a_node_needs_python_and_nothing_else(
    version: str,
    kind: str,
    make_place: Callable[[str], StoreUnderTest],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Data in and out, results in parts, on a Python that has its standard library alone; the
    command runs with the same one."""
    blobs, variables = _place(kind, make_place, request, monkeypatch)
    python = python_of(version)
    wrapped = Wrapped(blobs, tmp_path / "node", variables=variables, python=python)
    order_with_data(wrapped, tmp_path / "faces", BARE + USE_EVERYTHING)
    done = bootstrap(wrapped)
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"ran\n" in done.stdout
    final = wrapped.final()
    assert (final.state, final.published) == ("completed", {"working/made": 1})
    stored = wrapped.stored()
    assert (stored["seen"], stored["large"]) == (b"1", b"1234567" * 3_000_000)
    assert stored["deep/er.txt"] == b"by edgeloop.paths"
    assert json.loads(stored["python"]) == [python, []]


@pytest.mark.parametrize("how", ["editable", "wheel", "own"])
def test_an_installed_edgeloop_is_not_shadowed(wrapped: Wrapped, how: str, tmp_path: Path):
    """Whether it is installed here as these tests have it, lies in site packages, or is the
    user's own code."""
    script = "import edgeloop.paths, edgeloop; print(edgeloop.__version__, edgeloop.__file__)"
    code = {"script.py": script}
    wrapped.python = sys.executable
    if how == "wheel":
        code["script.py"] = f"import site; site.addsitedir('site'); {script}"
    if how != "editable":
        wrapped.python = python_of("here")
        place = "site/edgeloop" if how == "wheel" else "edgeloop"
        code |= {f"{place}/__init__.py": "__version__ = 'theirs'", f"{place}/paths.py": ""}
    wrapped.order(["python", "script.py"], code)
    code_, shown = wrapped.run()
    assert code_ == 0, shown
    assert shown.startswith(edgeloop.__version__ if how == "editable" else "theirs"), shown
    assert "/library/" not in shown


def _place(
    kind: str,
    make_place: Callable[[str], StoreUnderTest],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Blobs, dict[str, str]]:
    """A new store, and the variables that a node needs to open it."""
    if kind != "s3":
        return open_blobs(parse_location(make_place(kind).url)), {}
    s3 = request.getfixturevalue("s3")
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    return url_blobs(f"s3://{s3.make_bucket()}/a/prefix"), s3.environ


def _program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("asked", ["python", "python3"])
@pytest.mark.parametrize("there", ["python", "python3"])
def test_a_node_may_call_its_python_either_name(
    wrapped: Wrapped, asked: str, there: str, tmp_path: Path
):
    _program(tmp_path / "bin", there, f'exec {wrapped.python} "$@"')
    wrapped.order_script("print('ran')")
    wrapped.python, path = asked, f"{tmp_path / 'bin'}:/nowhere"
    done = bootstrap(wrapped, PATH=path)
    assert (done.returncode, done.stdout[:4]) == (0, b"ran\n"), done.stderr


def test_an_older_python_of_the_user_runs_the_command_though_not_the_wrapper(
    wrapped: Wrapped, tmp_path: Path
):
    """The first on the PATH is the user's: it is too old for the wrapper, so another runs that."""
    old = 'case "$2" in *version_info*) exit 64;; *) echo "the old one: $@";; esac'
    _program(tmp_path / "bin", "python", old)
    _program(tmp_path / "bin", "python3", f'exec {wrapped.python} "$@"')
    wrapped.order_script("print('ran')")
    wrapped.python = "python"
    done = bootstrap(wrapped, PATH=f"{tmp_path / 'bin'}:{os.defpath}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"the old one: script.py\n")


def test_a_node_without_a_python_says_so(wrapped: Wrapped, tmp_path: Path):
    _program(tmp_path / "bin", "python", "exit 64")
    wrapped.order_script("print('ran')")
    wrapped.python = "python"
    done = bootstrap(wrapped, PATH=f"{tmp_path / 'bin'}:/nowhere")
    only = f"only {tmp_path / 'bin/python'}"
    said = f"edgeloop: this node has no Python 3.8 or newer, {only}: jobs need one\n"
    assert (done.returncode, done.stderr.decode()) == (1, said)


def test_a_node_that_has_the_wrapper_does_not_fetch_it_again(wrapped: Wrapped):
    wrapped.order_script("print('ran')")
    key = ensure_wrapper(wrapped.blobs)
    kept = wrapped.cache / "wrapper" / Path(key).name
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"cut off half-way")
    assert bootstrap(wrapped).returncode == 0, "a damaged one is fetched anew"
    before = kept.stat().st_ino
    another = Wrapped(wrapped.blobs, wrapped.folder)
    another.order_script("print('ran')")
    assert bootstrap(another).returncode == 0
    assert kept.stat().st_ino == before


def last_word(wrapped: Wrapped, access: Access, wrapper: str) -> str:
    order = WrapperOrder(wrapped.job, wrapper, access).to_variables()
    done = subprocess.run(
        bootstrap_command(wrapped.python, access),
        env={**os.environ, "EDGELOOP_CACHE": str(wrapped.cache), **order},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    return line


def test_a_node_without_the_store_s_folder_says_so(wrapped: Wrapped, tmp_path: Path):
    line = last_word(wrapped, wrapped.blobs.access(60), "_wrapper/x.pyz")
    assert f"the store is the folder {tmp_path / 'store'}, which this node does not have" in line


def signed(endpoint: str) -> Access:
    place = {"container_name": "models", "account_name": "a", "endpoint": endpoint}
    return Access("AzureStore", {**place, "sas_key": "sv=2021-12-02&sig=verysecret"})


def test_a_store_that_refuses_is_one_sentence_without_its_secret(
    wrapped: Wrapped, azurite: Azurite
):
    access = signed(azurite.blob_endpoint_of(azurite.new_account()))
    line = last_word(wrapped, access, "_wrapper/x.pyz")
    assert line == "edgeloop: the wrapper could not be fetched from the store: it answered 403"


@pytest.mark.soak
def test_a_store_that_does_not_answer_is_one_sentence_without_its_secret(wrapped: Wrapped):
    """After several attempts, for some seconds."""
    line = last_word(wrapped, signed("http://127.0.0.1:9/a"), "_wrapper/x.pyz")
    assert line.startswith("edgeloop: the wrapper could not be fetched from the store: ")
    assert "verysecret" not in line


def test_a_wrapper_that_is_not_what_its_name_says_is_not_run(wrapped: Wrapped):
    wrapped.blobs.put(wrapper_key("0" * 64), b"print('something else')")
    line = last_word(wrapped, wrapped.blobs.access(60), wrapper_key("0" * 64))
    assert line == "edgeloop: the wrapper in the store is damaged: submit the job again"


def test_an_order_comes_back_as_it_was_and_shows_no_secret(tmp_path: Path):
    blobs: Blobs = FolderBlobs(tmp_path)
    handover = WrapperOrder("job", "key", Access("AzureStore", {"sas_key": "verysecret"}))
    assert WrapperOrder.from_variables(handover.to_variables()) == handover
    assert "verysecret" not in repr(handover)
    assert WrapperOrder("job", "key", blobs.access(1)).to_variables().keys() == {ORDER_VARIABLE}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"job": "verysecret"}', '{"pace": 1}'])
def test_an_order_that_cannot_be_read_is_refused_without_quoting_it(text: str):
    with pytest.raises(BadSetting) as caught:
        WrapperOrder.from_variables({ORDER_VARIABLE: text})
    assert "verysecret" not in str(caught.value)
