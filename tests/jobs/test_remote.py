"""Data at URLs on this machine: S3 by moto, Azure by Azurite, and folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeloop.errors import BadJob
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.records import Run
from edgeloop.settings import Settings
from edgeloop.store import Blobs, datastore_location, open_blobs
from edgeloop.store.files import url_blobs
from tests.jobs.waiting import end_all
from tests.peers.azurite import Azurite
from tests.peers.s3 import S3

pytestmark = pytest.mark.slow

COPY = """
import os, pathlib, shutil, sys
source, target = sys.argv[1:3]
assert os.path.samefile(source, os.environ["EDGELOOP_INPUT_FACES"])
assert os.path.samefile(target, os.environ["EDGELOOP_OUTPUT_COPIES"])
if os.path.isdir(source):
    shutil.copytree(source, target, dirs_exist_ok=True)
else:
    shutil.copy(source, target)
sys.exit(int(sys.argv[3]) if sys.argv[3:] else 0)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "project"
    (folder / ".edgeloop").mkdir(parents=True)
    (folder / "copy.py").write_text(COPY)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    yield folder
    end_all(Jobs.open())


@pytest.fixture
def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3.make_bucket()}"


def run(source: object, target: object, *arguments: str) -> tuple[Run, str]:
    """A job that copies one to the other; its log."""
    jobs = Jobs.open()
    words = ["{input:faces}", "{output:copies}", *arguments]
    options = {"data": [source], "writes": [target], "args": words}
    [sent] = jobs.submit("copy.py", options=options)
    [done] = jobs.wait([sent], timeout_s=120)
    return done, b"".join(jobs.log(done).more()).decode()


def files(blobs: Blobs, prefix: str = "") -> dict[str, bytes]:
    return {info.key: blobs.read(info.key) for info in blobs.list(prefix)}


def test_s3_to_s3_with_one_download_until_the_data_changes(project: Path, bucket: str):
    blobs = url_blobs(bucket)
    for name in ("faces/1.png", "faces/deep/2.png", "facesother/3.png"):
        blobs.put(name, name.encode())
    for expected in ("fetched 2 files", "is in this node's cache"):
        done, log = run(f"faces={bucket}/faces", f"copies={bucket}/out")
        assert done.state == "completed" and expected in log, log
        assert "sent 2 files" in log
    assert files(blobs, "out/") == {
        "out/1.png": b"faces/1.png",
        "out/deep/2.png": b"faces/deep/2.png",
    }
    blobs.put("faces/new.png", b"new")
    assert "fetched 3 files" in run(f"faces={bucket}/faces", f"copies={bucket}/out")[1]
    assert "the-secret-of-s3" not in "".join(p.read_text() for p in project.rglob("*.json"))


def test_a_single_file_and_what_a_failed_job_wrote(project: Path, bucket: str):
    blobs = url_blobs(bucket)
    blobs.put("a/faces.zip", b"zip")
    done, log = run(f"faces={bucket}/a/faces.zip", f"copies={bucket}/out", "3")
    assert (done.state, done.status.exit_code) == ("failed", 3), log
    assert files(blobs, "out/") == {"out/faces": b"zip"}
    done, _ = run(f"faces={bucket}/nothing/", f"copies={bucket}/out")
    assert done.state == "failed" and done.status.reason == f"{bucket}/nothing/ has no files"


@pytest.fixture
def container(azurite: Azurite, project: Path) -> Blobs:
    """The container of an older project's `datastore.json`; the store is another one."""
    account, name = azurite.new_account(), "older"
    endpoint = azurite.blob_endpoint_of(account)
    (project / ".azureml").mkdir()
    described = {
        **{"datastore_name": "lab", "account_name": account, "container_name": name},
        **{"account_key": azurite.key, "blob_endpoint": endpoint},
    }
    (project / ".azureml/datastore.json").write_text(json.dumps(described))
    (project / "edgeloop.yaml").write_text("store: sqlite:.edgeloop\n")
    blobs = open_blobs(datastore_location(account, name, azurite.key, endpoint))
    blobs.put("faces/a/1.png", b"one")
    return blobs


def test_a_datastore_and_its_account_with_a_signature_and_never_the_key(
    project: Path, container: Blobs, azurite: Azurite
):
    inside = "azureml://datastores/lab/paths"
    done, log = run(f"faces={inside}/faces", f"copies={inside}/copied")
    assert done.state == "completed", log
    assert files(container, "copied/") == {"copied/a/1.png": b"one"}
    done, log = run("faces=az://older/copied/", {"url": "az://older/again", "name": "copies"})
    assert done.state == "completed", log
    assert files(container, "again/") == {"again/a/1.png": b"one"}
    assert "sig=" not in log
    tickets = [*(project / ".edgeloop").rglob("ticket.json")]
    written = "".join(path.read_text() for path in tickets)
    assert len(tickets) == 2 and azurite.key not in written
    options = json.loads(tickets[0].read_text())["sources"][0]["options"]
    assert "sp=rl&" in options["sas_key"], "an input is only read"
    kept = "".join(path.read_text() for path in (project / "runs").glob("*/*.json"))
    assert "sig=" not in kept and azurite.key not in kept


def test_a_folder_is_linked_to_and_a_copy_is_made_on_request(project: Path, tmp_path: Path):
    (tmp_path / "here/sub").mkdir(parents=True)
    (tmp_path / "here/sub/1.txt").write_text("one")
    source = f"file://{tmp_path}/here"
    done, log = run({"url": source, "name": "faces"}, f"copies=file://{tmp_path}/there")
    assert done.state == "completed" and "fetched" not in log, log
    assert (tmp_path / "there/sub/1.txt").read_text() == "one"
    download = {"url": source, "name": "faces", "mode": "download"}
    upload = {"url": f"file://{tmp_path}/sent", "name": "copies", "mode": "upload"}
    done, log = run(download, upload)
    assert done.state == "completed" and "fetched 1 file" in log and "sent 1 file" in log, log
    assert (tmp_path / "sent/sub/1.txt").read_text() == "one"
    assert (tmp_path / "here/sub/1.txt").read_text() == "one", "an input stays as it was"


def test_what_this_compute_cannot_do_is_said_before_anything_is_sent(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name in ("AZURE_STORAGE_ACCOUNT", "AZURE_SUBSCRIPTION_ID"):
        monkeypatch.delenv(name, raising=False)
    expected = {
        "s3://b/faces": ("mount", "the compute local .local. cannot mount it: use mode: download"),
        "gs://b/faces": ("", "jobs cannot open gs:// on their node: use s3:// or az://"),
        "az://c/faces": ("", "it names no storage account"),
        f"file://{tmp_path}/no": ("", "there is no such file or folder"),
        "azureml://datastores/no/paths/x": ("", "does not name the datastore no"),
    }
    for url, (mode, says) in expected.items():
        with pytest.raises(BadJob, match=says):
            run({"url": url, "name": "faces", "mode": mode}, "copies=s3://b/x")
    assert not [*project.glob("runs/*/job.json")]


def test_a_store_on_google_cloud_has_no_jobs(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    jobs = Jobs(Settings.load(project), url_blobs("gs://bucket/prefix"))
    with pytest.raises(BadJob, match="jobs cannot open gs:// on their node: keep the files of"):
        jobs.submit("copy.py")
    assert not [*project.glob("runs/*/job.json")]
