"""Several people at once, and uploads that die: real processes, every kind of store."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from edgeloop.store import Store
from tests.cli.conftest import Edgeloop
from tests.cli.running import blobs_of, finished, is_empty, rows_of, start_command
from tests.conftest import StoreUnderTest
from tests.nets import save_external

pytestmark = pytest.mark.slow

RACER = """
import sys
from edgeloop.cli import main
print("ready", flush=True)
sys.stdin.readline()
main()
"""

# The second file of an upload waits for a word from us, so that we can act in the middle of it.
WAITING = """
import itertools, sys
from edgeloop.cli import main
from edgeloop.node.files import FolderBlobs
from edgeloop.store.files import ObjectBlobs
count = itertools.count(1)
def waiting(real):
    def put(self, key, source):
        if next(count) == 2:
            print("waiting", flush=True)
            sys.stdin.readline()
        real(self, key, source)
    return put
for kind in (FolderBlobs, ObjectBlobs):
    kind.put = waiting(kind.put)
main()
"""
# An upload of the same content is waited for as long as this, not half a minute.
IMPATIENT = """
from edgeloop.cli import main
from edgeloop.models import upload
upload.UPLOAD_PATIENCE_S, upload.QUIET_S = 0.2, 0.0
main()
"""
# The check of the graph takes longer than everything that is at stake here.
HALF = ("upload", "net.onnx", "--name", "half", "--no-check")


def test_of_several_uploads_of_one_name_exactly_one_wins(
    place: StoreUnderTest, store: Store, project: Path
):
    files = [
        save_external(project / f"{number}/net-{number}.onnx", number, f"weights-{number}.bin")
        for number in range(4)
    ]
    for name in ("first", "second"):
        racers = [
            start_command(
                ["upload", path, "--name", name, "--no-check"], project, place.environ, RACER
            )
            for path in files
        ]
        for racer in racers:
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        ended = [finished(racer) for racer in racers]
        winners = [path for path, end in zip(files, ended, strict=True) if end.code == 0]
        assert len(winners) == 1, ended
        for end in ended:
            if end.code != 0:
                assert "is taken" in end.sentence or "is busy" in end.sentence
        folder = winners[0].parent
        assert blobs_of(store, f"default/{name}/") == {
            f"default/{name}/{path.name}": path.read_bytes() for path in folder.iterdir()
        }
        row = rows_of(store)[name]
        assert (row["status"], row["model_name"]) == ("new", winners[0].name)


def test_an_upload_that_is_killed_says_uploading_and_delete_clears_it(
    place: StoreUnderTest,
    store: Store,
    project: Path,
    command: Edgeloop,
):
    save_external(project / "net.onnx")
    upload = start_command(HALF, project, place.environ, WAITING)
    assert upload.stdout.readline() == "waiting\n"
    upload.kill()
    assert finished(upload).code == -signal.SIGKILL

    assert rows_of(store)["half"]["status"] == "uploading"
    assert "uploading" in command("status", environ=place.environ).out
    words = ("upload", "net.onnx", "--no-check")
    again = finished(start_command(words, project, place.environ, IMPATIENT))
    assert again.code == 1
    assert "waiting for that" in again.err.splitlines()[0]
    assert "edgeloop delete half" in again.err.splitlines()[-1]
    assert command("delete", "half", "--yes", environ=place.environ).code == 0
    assert rows_of(store) == {} and blobs_of(store) == {}
    assert command(*HALF, environ=place.environ).code == 0
    assert len(blobs_of(store)) == 2


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_an_upload_that_is_asked_to_end_takes_everything_back(
    place: StoreUnderTest, store: Store, project: Path, number: int, code: int
):
    save_external(project / "net.onnx")
    upload = start_command(HALF, project, place.environ, WAITING)
    assert upload.stdout.readline() == "waiting\n"
    upload.send_signal(number)
    ended = finished(upload, "go on\n")
    assert ended.code == code and "Traceback" not in ended.err
    assert is_empty(store), (rows_of(store), blobs_of(store).keys(), ended)
