"""Azure ML: our submissions, states and results beside the SDK's own, on the emulator.

The emulator follows what the SDK expects, so numbers of calls are what they are; times say nothing
of Azure itself, but both sides are timed against the same server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from bench.tables import markdown
from edgeloop.jobs.computes import Compute, make_compute
from edgeloop.jobs.watch import fetch
from edgeloop.store import open_blobs, parse_location
from edgeloop.testing.contracts.compute import JobHarness
from tests.peers.azureml import AzureML
from tests.peers.azurite import Azurite
from tests.peers.certificate import Certificate

FILES, FILE_BYTES = 2_000, 20_000
RECORDS = 200
SIZE = "STANDARD_DS3_V2"
WRITE = f"""\
import os, pathlib
pathlib.Path("outputs").mkdir(exist_ok=True)
for number in range({FILES}):
    pathlib.Path("outputs", f"{{number:05d}}.bin").write_bytes(os.urandom({FILE_BYTES}))
"""


def run() -> str:
    with TemporaryDirectory() as name, _cloud(Path(name)) as (azureml, azurite):
        place = parse_location(azurite.connection_string_of(azurite.new_account()))
        harness = JobHarness(_compute(), open_blobs(place), Path(name))
        rows = [*_submissions(azureml, harness), *_collecting(azureml, harness, Path(name))]
        rows += _states(azureml, harness)
    return markdown(("what", "Azure's SDK", "Edgeloop", "ratio", "goal"), rows)


@contextmanager
def _cloud(folder: Path) -> Iterator[tuple[AzureML, Azurite]]:
    certificate = Certificate.make(folder, "*.blob.core.localhost")
    with (
        Azurite(certificate) as azurite,
        AzureML(azurite, certificate, folder / "nodes") as azureml,
        patch.dict(os.environ, azureml.environment()),
    ):
        yield azureml, azurite


def _compute() -> Compute:
    return make_compute(
        "cloud", {"kind": "azureml", "cluster": "cpu", "size": SIZE, "max_nodes": 1}
    )


def _submissions(azureml: AzureML, harness: JobHarness) -> list[tuple[str, ...]]:
    """Each of ours is a process's first: nothing is remembered but in the workspace. The SDK's are
    of the same command with a folder of code, a registered environment and a cluster."""
    harness.wait_for(harness.send("python", "-c", "pass"), "completed")
    environment = next(iter(azureml.jobs.runs.values())).properties["environmentId"]
    code = harness.folder / "code"
    code.mkdir()
    (code / "train.py").write_text("pass")
    theirs, seconds = [], []
    for _ in range(2):
        client = azureml.client()
        job = _sdk_job(environment, "python train.py", code)
        theirs.append(_calls(azureml, lambda c=client, j=job: c.jobs.create_or_update(j), seconds))
    ours, our_seconds = [], []
    before = {info.key for info in harness.blobs.list("_")}
    for _ in range(2):
        harness.compute = _compute()
        order = harness.order("python", "-c", "pass")
        ours.append(_calls(azureml, lambda o=order: harness.submit(o), our_seconds))
    new = {info.key for info in harness.blobs.list("_")} - before
    sent = [key for key in new if key.startswith(("_code/", "_wrapper/"))]
    return [
        ("REST calls, first submission of this code", str(theirs[0]), str(ours[0]), "", ""),
        (
            *("REST calls, second submission", str(theirs[1]), str(ours[1])),
            *(f"{ours[1] - theirs[1]:+d}", "≤ +2"),
        ),
        ("files of code uploaded again", "0", str(len(sent)), "", "0"),
        (
            *("a second submission", f"{seconds[1] * 1e3:.0f} ms"),
            *(f"{our_seconds[1] * 1e3:.0f} ms", f"{our_seconds[1] / seconds[1]:.2f}", ""),
        ),
    ]


def _collecting(azureml: AzureML, harness: JobHarness, folder: Path) -> list[tuple[str, ...]]:
    job = harness.send("python", "-c", WRITE)
    harness.wait_for(job, "completed")
    environment = azureml.run(job).properties["environmentId"]
    script = folder / "writing"
    script.mkdir()
    (script / "write.py").write_text(WRITE)
    client = azureml.client()
    sent = client.jobs.create_or_update(_sdk_job(environment, "python write.py", script))
    azureml.wait(sent.name, 300)
    places = {
        who: [folder / f"{who}-{turn}" / "outputs" for turn in "12"] for who in ("our", "sdk")
    }
    ours, theirs = [], []
    for our, sdk in zip(places["our"], places["sdk"], strict=True):  # in turns, for fairness
        ours.append(_seconds(partial(fetch, harness.blobs, job, our)))
        theirs.append(_seconds(partial(client.jobs.download, sent.name, download_path=sdk)))
    counts = [sum(1 for _ in to.rglob("*.bin")) for to in (*places["our"], *places["sdk"])]
    assert counts == 4 * [FILES], counts
    what = f"collect {FILES:,} outputs of {FILE_BYTES // 1000} KB, best of 2"
    return [_compared(what, min(theirs), min(ours))]


def _compared(what: str, theirs: float, ours: float) -> tuple[str, ...]:
    return what, f"{theirs:.1f} s", f"{ours:.2f} s", f"{theirs / ours:.1f} ×", "≥ 3 ×"


def _states(azureml: AzureML, harness: JobHarness) -> list[tuple[str, ...]]:
    azureml.faults.never_start = "the cluster is full"
    orders = [harness.order("python", "-c", "pass") for _ in range(RECORDS)]
    harness.compute.submit_many(orders)
    jobs = [order.job for order in orders]
    client = azureml.client()
    seconds: list[float] = []
    theirs = _calls(azureml, lambda: [client.jobs.get(job) for job in jobs], seconds)
    ours = _calls(azureml, lambda: _compute().states(jobs), seconds)
    harness.compute.cancel(jobs)
    azureml.faults.never_start = ""
    what = f"states of {RECORDS} jobs, REST calls"
    return [
        (what, str(theirs), str(ours), "", "not 200"),
        ("the same, time", f"{seconds[0]:.1f} s", f"{seconds[1]:.2f} s", "", ""),
    ]


def _sdk_job(environment: str, command: str, code: Path) -> Any:
    from azure.ai.ml import command as make_command

    return make_command(command=command, code=str(code), environment=environment, compute="cpu")


def _calls(azureml: AzureML, action: Callable[[], object], seconds: list[float]) -> int:
    azureml.requests.clear()
    seconds.append(_seconds(action))
    return azureml.count()


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
