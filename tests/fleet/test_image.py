"""The container image: its Dockerfile is executed, and the result is run as a cluster runs it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from edgeloop.models.plan import records_of
from edgeloop.settings import Settings
from edgeloop.testing import wait_until
from edgeloop.testing.models import (
    save_classification_model,
    save_pair_model,
    save_segmentation_model,
)
from edgeloop.workspace import Workspace
from tests.conftest import clean_environ
from tests.peers.azurite import Azurite
from tests.peers.container import Image
from tests.peers.ports import free_port

pytestmark = pytest.mark.soak

LARGEST_MB = 900
SHORT = (
    "--runs",
    "1",
    "--quick-images",
    "2",
    "--thorough-images",
    "2",
    "--calibration-images",
    "2",
)
TOKEN = "a-token-of-the-image-test"
# Run inside: what a process there is, and where it can write.
LOOK = """
import json, os, pathlib, shutil

def why_not(folder):
    try:
        pathlib.Path(folder, "new").write_text("x")
    except OSError as error:
        return os.strerror(error.errno)
    return ""

def files():
    for folder, folders, names in os.walk("/"):
        folders[:] = [] if folder == "/proc" else folders
        yield from (os.path.join(folder, name) for name in names)

lines = pathlib.Path("/proc/self/status").read_text().splitlines()
status = dict(line.split(":\\t", 1) for line in lines)
found = {path: os.lstat(path) for path in files()}
folders = ("/", "/etc", "/opt/edgeloop", "/var", "/work", "/tmp")
print(json.dumps({
    "user": os.getuid(),
    "groups": os.getgroups(),
    "home": os.path.expanduser("~"),
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": status["NoNewPrivs"],
    "writes": {folder: why_not(folder) for folder in folders},
    "tools": [name for name in ("pip", "gcc", "curl") if shutil.which(name)],
    "size": sum(info.st_blocks for info in found.values()) * 512,
    "setuid": [path for path, info in found.items() if info.st_mode & 0o6000],
}))
"""


@pytest.fixture(scope="module")
def image() -> Image:
    return Image.build()


def test_a_base_of_another_digest_is_not_taken() -> None:
    with pytest.raises(AssertionError, match=f"debian@sha256:{'0' * 64}"):
        Image.build("--build-arg", f"BASE=debian:bookworm-slim@sha256:{'0' * 64}")


@pytest.mark.timeout(900)
def test_a_container_runs_as_nobody_on_a_read_only_root_with_nothing_to_build_with(
    image: Image,
) -> None:
    seen = json.loads(image.run(entrypoint=["python", "-c", LOOK]))
    read_only = "Read-only file system"
    assert seen["writes"] == {
        **dict.fromkeys(("/", "/etc", "/opt/edgeloop", "/var"), read_only),
        **dict.fromkeys(image.config["Volumes"], ""),
    }
    assert (seen["user"], seen["home"]) == (image.user[0], image.config["WorkingDir"])
    assert seen["user"] >= 10_000, "no user of the node has this number"
    assert (seen["groups"], seen["capabilities"], seen["no_new_privileges"]) == ([], 0, "1")
    assert (seen["setuid"], seen["tools"]) == ([], [])
    assert seen["size"] < LARGEST_MB * 1e6, f"{seen['size'] / 1e6:.0f} MB"

    lines = image.run("doctor", user=(54_321, 0)).splitlines()  # some clusters choose one
    checks = {words[1]: words[0] for words in map(str.split, lines[1:])}
    working = ("python", "store", "onnxruntime", "onnxruntime-qnn", "azure")
    assert {checks[name] for name in working} == {"ok"}, lines


@pytest.fixture
def environ(azurite: Azurite) -> dict[str, str]:
    address = azurite.connection_string_of(azurite.new_account())
    return {"MODEL_STORAGE_CONNECTION_STRING": address, "EDGELOOP_EXPERIMENT": "fleet"}


@pytest.fixture
def workspace(environ: dict[str, str], tmp_path: Path) -> Iterator[Workspace]:
    """The same store, from outside of the containers."""
    with Workspace(Settings.load(tmp_path, {**clean_environ(), **environ})) as opened:
        yield opened


@pytest.mark.timeout(900)
def test_runners_drain_a_queue_and_sigterm_ends_a_stage_first(
    image: Image, environ: dict[str, str], workspace: Workspace, tmp_path: Path
) -> None:
    def held() -> dict[tuple[str, str], str]:
        return {
            (str(row["name"]), stage): record.token
            for row in workspace.status()
            for stage, record in records_of(row).items()
            if record.is_held and not record.queued
        }

    with image.container("runner", "--grace", "200", *SHORT, environ=environ) as runner:

        def is_ready() -> bool:
            assert runner.is_running, runner.output
            return runner.exec("edgeloop", "health", "--ready").returncode == 0

        wait_until(is_ready, 120, "the runner to be ready")
        healthy = runner.exec(*image.config["Healthcheck"]["Test"][1:])
        assert healthy.returncode == 0, healthy.stdout
        for save in (save_segmentation_model, save_classification_model, save_pair_model):
            path = save(tmp_path / f"{save.__name__}.onnx", size=32)
            workspace.upload(path, name=save.__name__.split("_")[1])
        wait_until(held, 120, "a stage to begin")
        begun = held()
        runner.terminate()
        code = runner.wait()
    assert code == 0, runner.output
    rows = {str(row["name"]): row for row in workspace.status()}
    for (model, stage), token in begun.items():
        assert token in records_of(rows[model])[stage].committed, (stage, runner.output)
    assert held() == {}, "nothing is left behind that others would have to wait for"
    assert {row["status"] for row in rows.values()} != {"complete"}, "and nothing new was begun"

    said = image.run("runner", "--drain", "--device", "htp", *SHORT, environ=environ)
    assert "Models: 3 done, 0 failed, 0 left." in said, said
    rows = {str(row["name"]): row for row in workspace.status()}
    assert {row["status"] for row in rows.values()} == {"complete"}, said
    assert all(float(row["mean"]) > 0 for row in rows.values())
    names = {file.name for file in workspace.model("segmentation").files()}
    assert any(name.endswith(".quant.onnx") for name in names), names


def test_the_portal_serves_from_the_same_image(
    image: Image, environ: dict[str, str], workspace: Workspace, tmp_path: Path
) -> None:
    workspace.upload(save_classification_model(tmp_path / "net.onnx"), name="calm-heron")
    port = free_port()
    secret = {**environ, "EDGELOOP_PORTAL_TOKEN": TOKEN}
    address = ("--host", "0.0.0.0", "--port", str(port))
    with (
        image.container("portal", *address, environ=secret) as portal,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as visitor,
    ):

        def answers() -> bool:
            assert portal.is_running, portal.output
            try:
                return visitor.get("/api/v1/health").json()["status"] == "ok"
            except httpx.TransportError:
                return False

        wait_until(answers, 120, "the portal to answer")
        assert visitor.get("/metrics").status_code == 401
        visitor.headers["authorization"] = f"Bearer {TOKEN}"
        page, waiting = visitor.get("/"), visitor.get("/api/queue")
        portal.terminate()
        code = portal.wait()
    assert page.status_code == 200 and "calm-heron" in page.text
    assert waiting.json()["linux"]["ready"] == 2, "what KEDA asks: convert, and f1_onnx"
    assert code == 128 + signal.SIGTERM, "it ended in order, and says why"
    assert TOKEN not in portal.output


@pytest.mark.timeout(900)
def test_the_snpe_sdk_is_mounted_or_built_in(image: Image, sdk: Path) -> None:
    where = {"SNPE_ROOT": "/opt/snpe"}
    mounted = image.run("doctor", environ=where, mounts={sdk: "/opt/snpe"})
    built = Image.build("--build-context", f"snpe={sdk}").run("doctor", environ=where)
    line = re.search(r"^ok +snpe-sdk .*/opt/snpe$", mounted, re.MULTILINE)
    assert line and line[0] in built, (mounted, built)
