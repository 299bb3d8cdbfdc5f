"""A store in the cloud: away while the job runs, away at its end, and its secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.errors import StoreUnavailable
from edgeloop.node import outputs
from edgeloop.node.files import FolderBlobs
from edgeloop.node.outputs import recover
from edgeloop.node.ticket import ORDER_VARIABLE, JobProgress, WrapperOrder, state_key
from edgeloop.store import Access, open_blobs, parse_location
from tests.conftest import StoreUnderTest
from tests.jobs.wrapped import LIMIT_S, Wrapped, python_of
from tests.peers.azurite import Azurite
from tests.peers.process import wait_until

pytestmark = pytest.mark.slow

STEPS = """
import os, time
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.02)
for step in ("one", "two"):
    open("outputs/" + step, "w").write(step)
    print("step", step, flush=True)
    wait("outputs/after-" + step)
"""


@pytest.fixture(scope="module")
def own_server() -> Iterator[Azurite]:
    """One of this file's own: it goes away and comes back."""
    with Azurite() as server:
        yield server


@pytest.fixture
def server(own_server: Azurite) -> Azurite:
    return own_server.start()


@pytest.fixture(params=["here", pytest.param("3.8", marks=pytest.mark.soak)])
def wrapped(request: pytest.FixtureRequest, server: Azurite, tmp_path: Path) -> Wrapped:
    address = server.connection_string_of(server.new_account())
    blobs, python = open_blobs(parse_location(address)), python_of(request.param)
    return Wrapped(blobs, tmp_path / "node", python=python)


def test_a_store_that_is_away_for_a_while_costs_nothing(server: Azurite, wrapped: Wrapped):
    wrapped.order_script(STEPS)
    with wrapped.running() as launcher:
        wrapped.wait_for_output("one")
        server.stop()
        (wrapped.outputs / "after-one").touch()
        wrapped.wait_for_file("two")
        assert launcher.poll() is None
        server.start()
        wrapped.wait_for_output("two")
        wait_until(lambda: "step two" in wrapped.log(), LIMIT_S, "the rest of the log")
        (wrapped.outputs / "after-two").touch()
        assert launcher.wait(LIMIT_S) == 0
    assert wrapped.final().state == "completed"
    assert {"one", "two"} <= set(wrapped.stored())
    assert not wrapped.scratch.exists()


def test_a_job_that_ends_while_the_store_is_away_waits_for_it(server: Azurite, wrapped: Wrapped):
    wrapped.order_script(STEPS + "raise SystemExit(4)")
    with wrapped.running() as launcher:
        wrapped.wait_for_output("one")
        server.stop()
        (wrapped.outputs / "after-one").touch()
        (wrapped.outputs / "after-two").touch()
        wait_until(lambda: not wrapped.processes(), LIMIT_S, "the command to end")
        assert launcher.poll() is None
        server.start()
        assert launcher.wait(LIMIT_S) == 4
    progress = wrapped.final()
    assert (progress.state, progress.exit_code) == ("failed", 4)
    assert "step two" in wrapped.log()
    assert wrapped.stored()["two"] == b"two"


@pytest.mark.soak
@pytest.mark.parametrize("wrapped", ["here"], indirect=True)
def test_a_store_that_stays_away_leaves_everything_on_the_node(server: Azurite, wrapped: Wrapped):
    wrapped.pace = replace(wrapped.pace, patience_s=0.5)
    wrapped.order_script(STEPS)
    with wrapped.running() as launcher:
        wrapped.wait_for_output("one")
        server.stop()
        (wrapped.outputs / "after-one").touch()
        (wrapped.outputs / "after-two").touch()
        shown, _ = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 1, "a result that nobody can fetch is no success"
    assert str(wrapped.scratch).encode() in shown
    assert (wrapped.outputs / "two").read_text() == "two"
    server.start()
    assert recover(wrapped.scratch, wrapped.blobs, "the store was away when the job ended")
    assert wrapped.final().outputs_complete
    assert wrapped.stored()["two"] == b"two"
    assert "step two" in wrapped.log()
    assert not wrapped.scratch.exists()


def test_nothing_of_the_order_can_be_found_where_the_command_or_a_reader_looks(
    make_place: Callable[[str], StoreUnderTest], tmp_path: Path
):
    location = parse_location(make_place("azure").url)
    wrapped = Wrapped(open_blobs(location), tmp_path / "node")
    script = """
import os, time
open("outputs/environ", "w").write(repr(dict(os.environ)))
open("outputs/ready", "w").close()
while not os.path.exists("outputs/go"):
    time.sleep(0.02)
"""
    wrapped.order_script(script)
    secret = _signature(wrapped)
    with wrapped.running() as launcher:
        wrapped.wait_for_file("ready")
        files = [path for path in wrapped.scratch.rglob("*") if path.is_file()]
        assert files and not any(secret in path.read_bytes() for path in files)
        for pid in wrapped.processes():
            assert secret not in Path(f"/proc/{pid}/environ").read_bytes()
            assert secret not in Path(f"/proc/{pid}/cmdline").read_bytes()
        (wrapped.outputs / "go").touch()
        shown, _ = launcher.communicate(timeout=LIMIT_S)
        assert launcher.returncode == 0
    assert secret not in shown and secret not in wrapped.log().encode()
    assert secret not in wrapped.final().to_json()
    assert b"EDGELOOP_JOB_ID" in wrapped.stored()["environ"]
    assert secret not in wrapped.stored()["environ"]


def _signature(wrapped: Wrapped) -> bytes:
    """The longest part of it that looks the same however it is quoted."""
    signature = json.loads(wrapped.environ()[ORDER_VARIABLE])["access"]["options"]["sas_key"]
    value = signature.split("sig=")[1].split("&")[0]
    plain = max(re.split("%..", value), key=len)  # base64 of 32 bytes: some part is long
    assert len(plain) > 5
    return plain.encode()


def test_a_store_that_is_a_folder_of_another_machine_is_named(tmp_path: Path):
    wrapped = Wrapped(FolderBlobs(tmp_path / "not here"), tmp_path / "node")
    code, shown = wrapped.run()
    assert code == 1
    assert f"{tmp_path / 'not here'}: this store's folder is not on this machine" in shown
    assert not (tmp_path / "not here").exists()


def test_a_file_that_the_store_will_not_take_does_not_cost_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outputs, "_DELAY_S", 0.01)

    class Picky(FolderBlobs):
        def put(self, key: str, source: Path | bytes) -> None:
            if key.endswith("poison"):
                raise StoreUnavailable(store="it", reason="not this one")
            super().put(key, source)

    scratch = tmp_path / "cache/jobs/job-picky"
    (scratch / "work/outputs").mkdir(parents=True)
    (scratch / "work/outputs/poison").write_text("x")
    (scratch / "work/outputs/good").write_text("y")
    blobs = Picky(tmp_path / "store")
    assert recover(scratch, blobs, "found dead")
    progress = JobProgress.from_json(blobs.read(state_key("job-picky")))
    assert not progress.outputs_complete
    assert progress.reason.startswith("found dead; outputs/poison could not be stored")
    assert blobs.read("_jobs/job-picky/outputs/good") == b"y"
    assert (scratch / "work/outputs/poison").exists()


def test_a_store_that_refuses_fails_the_job_at_once(wrapped: Wrapped):
    """With ten minutes of patience: a refusal is no absence."""
    wrapped.pace = replace(wrapped.pace, patience_s=600)
    wrapped.order_script("")
    access = wrapped.blobs.access(3600)
    wrong = {**access.options, "sas_key": access.options["sas_key"].replace("sig=", "sig=x")}
    order = WrapperOrder(wrapped.job, "x", Access(access.make, wrong), wrapped.pace)
    wrapped.variables = order.to_variables()
    code, shown = wrapped.run()
    assert code == 1
    assert "refused" in shown and "sig=x" not in shown
