"""Signatures are narrow and end early; a job that runs for longer gets newer ones."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from edgeloop.errors import StoreRefused
from edgeloop.jobs.spec import spec_of_script
from edgeloop.jobs.submit import ACCESS_S, access_seconds
from edgeloop.jobs.watch import RENEW_S, renew_access
from edgeloop.node.supervisor import LOOK_S, MARGIN_S, AccessRenewal
from edgeloop.node.ticket import access_key, expires_at
from edgeloop.store import (
    Access,
    Blobs,
    job_access,
    open_blobs,
    open_from_job,
    parse_connection_string,
)
from edgeloop.testing import memory_blobs
from tests.peers.azurite import Azurite

DAY_S = 24 * 3600


@pytest.fixture
def account(azurite: Azurite) -> str:
    return azurite.connection_string_of(azurite.new_account())


@pytest.fixture
def blobs(account: str) -> Blobs:
    blobs = open_blobs(parse_connection_string(account))
    blobs.put("_jobs/long/ticket.json", b"{}")
    return blobs


def test_an_access_lasts_as_long_as_a_job_may_wait_and_run(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    assert access_seconds(spec_of_script("a.py")) == ACCESS_S
    seconds = access_seconds(spec_of_script("a.py", options={"timeout": "2h"}))
    assert 7 * DAY_S + 2 * 3600 < seconds < 9 * DAY_S
    assert access_seconds(spec_of_script("a.py", options={"timeout": "9000h"})) == ACCESS_S


def test_who_writes_cannot_read_and_who_reads_cannot_write(account: str, blobs: Blobs):
    location = parse_connection_string(account)
    source = open_from_job(job_access(location, 600, False))
    target = open_from_job(job_access(location, 600, True))
    target.put("out/a.txt", b"1")
    assert source.read("out/a.txt") == b"1"
    for denied in (
        lambda: source.put("out/b.txt", b"2"),
        lambda: source.delete(["out/a.txt"]),
        lambda: target.read("out/a.txt"),
        lambda: list(target.list("")),
        lambda: target.delete(["out/a.txt"]),
    ):
        with pytest.raises(StoreRefused):
            denied()


def test_a_signature_for_azure_is_for_encrypted_connections(account: str):
    location = parse_connection_string(account)
    plain = job_access(location, 600, False).options["sas_key"]
    on_azure = replace(location, blob_endpoint="https://acme.blob.core.windows.net")
    assert "spr" not in parse_qs(plain)  # the emulator has no certificate
    assert parse_qs(job_access(on_azure, 600, False).options["sas_key"])["spr"] == ["https"]


def test_a_job_takes_newer_access_before_its_own_ends(blobs: Blobs):
    first = blobs.access(DAY_S)
    ends = expires_at(first)
    assert ends is not None and abs(ends - time.time() - DAY_S) < 600
    now = ends - MARGIN_S - 10
    job = open_from_job(first)
    renewal = AccessRenewal(job, first, "long", lambda: now)
    renew_access(blobs, ["long"], 5 * DAY_S, time.time())
    renewal.look()
    assert job.access(0) == first  # that is early enough later
    now = ends - MARGIN_S + 1
    renewal.look()
    newer = job.access(0)
    assert (expires_at(newer) or 0) > ends + 3 * DAY_S
    job.put("_jobs/long/state.json", b"{}")
    blobs.put(access_key("long"), b"nonsense")
    now += 5 * DAY_S + LOOK_S
    renewal.look()
    assert job.access(0) == newer


def test_access_to_another_place_is_not_taken(blobs: Blobs):
    ended = blobs.access(-3600)
    job = open_from_job(ended)
    with pytest.raises(StoreRefused):
        job.read("_jobs/long/ticket.json")
    other = blobs.access(600)
    elsewhere = Access(other.make, {**other.options, "endpoint": "http://127.0.0.1:9/evil"})
    job.renew(elsewhere)  # type: ignore[attr-defined]
    assert job.access(0) == ended
    job.renew(other)  # type: ignore[attr-defined]
    assert job.read("_jobs/long/ticket.json") == b"{}"


def test_only_jobs_that_run_for_long_get_it_and_once_a_day(blobs: Blobs, folder_blobs: Blobs):
    renew_access(blobs, ["long"], 0, time.time())  # the node has an identity
    assert blobs.info(access_key("long")) is None
    renew_access(blobs, ["long"], None, time.time())
    first = blobs.read(access_key("long"))
    renew_access(blobs, ["long"], None, time.time() + RENEW_S / 2)
    assert blobs.read(access_key("long")) == first
    renew_access(blobs, ["long"], 3600, time.time() + 2 * RENEW_S)
    assert blobs.read(access_key("long")) != first
    for without in (folder_blobs, memory_blobs()):
        renew_access(without, ["long"], None, time.time())
        assert without.info(access_key("long")) is None
