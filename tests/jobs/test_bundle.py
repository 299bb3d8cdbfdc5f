"""The wrapper as one file, and the first lines that fetch it on a node without Edgeloop."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import obstore
import pytest

from edgeloop.data import Datasets
from edgeloop.errors import BadSetting
from edgeloop.jobs.computes.base import JobOrder, Resources
from edgeloop.jobs.protocol.bundle import bootstrap_command, bundle, ensure_wrapper
from edgeloop.jobs.protocol.ticket import (
    ORDER_VARIABLE,
    Input,
    WrapperOrder,
    order_variables,
    wrapper_key,
)
from edgeloop.store import Access, Blobs, open_blobs, parse_location
from edgeloop.store.blobs import FolderBlobs
from tests.conftest import StoreUnderTest
from tests.jobs.wrapped import LIMIT_S, Wrapped

USE_EVERYTHING = """
open("outputs/seen", "w").write(open("data/raw/faces/1.txt").read())
open("data/working/made/2.txt", "w").write("2")
print("ran")
"""


@pytest.fixture
def wrapped(tmp_path: Path) -> Wrapped:
    return Wrapped(FolderBlobs(tmp_path / "store"), tmp_path / "node")


def order_with_data(wrapped: Wrapped, folder: Path) -> None:
    folder.mkdir()
    (folder / "1.txt").write_text("1")
    version = Datasets(wrapped.blobs).push("raw/faces", folder).reference.version
    inputs = (Input("raw/faces", version),)
    wrapped.order_script(USE_EVERYTHING, inputs=inputs, writes=("working/made",))


def test_the_same_sources_make_the_same_bytes():
    assert bundle() == bundle()
    with zipfile.ZipFile(BytesIO(bundle())) as archive:
        names = archive.namelist()
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert names == sorted(names)
    assert not [name for name in names if "cli" in name or "computes" in name or "sql" in name]


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


def test_the_bundle_needs_the_standard_library_and_obstore_alone(wrapped: Wrapped, tmp_path: Path):
    """A whole job, data included, by an interpreter that sees no other package."""
    order_with_data(wrapped, tmp_path / "faces")
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "obstore").symlink_to(Path(obstore.__file__).parent)
    wrapper = tmp_path / "wrapper.pyz"
    wrapper.write_bytes(bundle())
    start = f"import sys, runpy; sys.path.append({str(packages)!r}); sys.argv = ['wrapper']; "
    start += f"runpy.run_path({str(wrapper)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start],
        env=wrapped.environ(),
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert wrapped.final().published == {"working/made": 1}
    assert wrapped.stored() == {"seen": b"1"}


def bootstrap(wrapped: Wrapped, **environ: str) -> subprocess.CompletedProcess[bytes]:
    access = wrapped.blobs.access(3600)
    order = JobOrder(wrapped.job, "test", Resources(), 0, access, ensure_wrapper(wrapped.blobs))
    variables = {**wrapped.environ(), **order_variables(order, wrapped.pace), **environ}
    return subprocess.run(
        bootstrap_command(sys.executable),
        env=variables,
        cwd="/",
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_node_fetches_the_wrapper_and_becomes_it(place: StoreUnderTest, tmp_path: Path):
    wrapped = Wrapped(open_blobs(parse_location(place.url)), tmp_path / "node")
    order_with_data(wrapped, tmp_path / "faces")
    done = bootstrap(wrapped)
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"ran\n" in done.stdout
    assert wrapped.final().state == "completed"


def test_a_node_that_has_the_wrapper_does_not_fetch_it_again(wrapped: Wrapped):
    wrapped.order_script("print('ran')")
    key = ensure_wrapper(wrapped.blobs)
    kept = wrapped.cache / "wrapper" / Path(key).name
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"cut off half-way")
    assert bootstrap(wrapped).returncode == 0, "a damaged one is fetched anew"
    before = kept.stat().st_mtime_ns
    another = Wrapped(wrapped.blobs, wrapped.folder)
    another.order_script("print('ran')")
    assert bootstrap(another).returncode == 0
    assert kept.stat().st_mtime_ns == before


def last_word(wrapped: Wrapped, access: Access, wrapper: str, *flags: str) -> str:
    command = bootstrap_command(sys.executable)
    order = WrapperOrder(wrapped.job, wrapper, access).to_variables()
    done = subprocess.run(
        [command[0], *flags, *command[1:]],
        env={**os.environ, "EDGELOOP_CACHE": str(wrapped.cache), **order},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    return line


def test_a_node_without_obstore_says_so(wrapped: Wrapped):
    line = last_word(wrapped, wrapped.blobs.access(60), "_wrapper/x.pyz", "-I", "-S")
    assert line.startswith("edgeloop: obstore is not installed for ")


def test_a_node_without_the_store_s_folder_says_so(wrapped: Wrapped, tmp_path: Path):
    line = last_word(wrapped, wrapped.blobs.access(60), "_wrapper/x.pyz")
    assert f"the store is the folder {tmp_path / 'store'}, which this node does not have" in line


def test_a_store_that_does_not_answer_is_one_sentence_without_its_secret(wrapped: Wrapped):
    options = {
        "container_name": "models",
        "account_name": "a",
        "endpoint": "http://127.0.0.1:9/a",
        "sas_key": "sv=1&sig=verysecret",
    }
    line = last_word(wrapped, Access("AzureStore", options), "_wrapper/x.pyz")
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
