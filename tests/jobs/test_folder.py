"""A record appears whole or not at all, once per name, and remembers how its job ended."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgeloop.errors import BadName, JobNameTaken, LocalFileError, NoSuchJob
from edgeloop.jobs.records import JobRecord, Run, RunRecords, new_id
from edgeloop.jobs.spec import NAME_LIMIT
from edgeloop.jobs.watch import Status
from tests.jobs.runs import record


@pytest.fixture
def runs(tmp_path: Path) -> RunRecords:
    return RunRecords(tmp_path / "runs")


def again(of: Run, name: str, job: str, attempt: int) -> JobRecord:
    return record(name, job, attempt=attempt, parent=of.name)


def names(runs: RunRecords) -> list[str]:
    return [run.name for run in runs.list().runs]


def test_a_record_is_read_back_as_it_was_written(runs: RunRecords):
    made = runs.add("lr-3", record)
    assert made.record == record("lr-3", made.record.id)
    assert runs.get("lr-3") == made and runs.list().runs == (made,)
    assert made.state == "queued" and not made.status.is_final
    assert sorted(path.name for path in runs.path("lr-3").iterdir()) == ["job.json", "state.json"]


def test_nothing_is_made_by_reading(runs: RunRecords):
    assert runs.list().runs == ()
    with pytest.raises(NoSuchJob, match=f"no job 'x' in {runs.folder}"):
        runs.get("x")
    assert not runs.folder.exists()


def test_the_longest_name_can_have_attempts(runs: RunRecords):
    first = runs.add("n" * NAME_LIMIT, record)
    assert runs.add_attempt(first.record, partial(again, first)).name == first.name + ".2"


def test_a_name_is_given_once(runs: RunRecords):
    first = runs.add("lr", record)
    with pytest.raises(JobNameTaken, match="'lr' is taken in runs"):
        runs.add("lr", record)
    assert runs.get("lr") == first
    assert [path.name for path in runs.folder.iterdir()] == ["lr"]


def test_of_many_who_submit_one_name_at_once_one_wins(runs: RunRecords):
    def submit(_: int) -> str:
        try:
            return runs.add("lr", record).record.id
        except JobNameTaken:
            return ""

    with ThreadPoolExecutor(8) as pool:
        won = [job for job in pool.map(submit, range(40)) if job]
    assert won == [runs.get("lr").record.id]
    assert [path.name for path in runs.folder.iterdir()] == ["lr"]


def test_numbers_given_at_once_are_all_different(runs: RunRecords):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: runs.add_numbered("train", record).name, range(40)))
    assert sorted(made) == sorted(f"train-{number}" for number in range(1, 41))


def test_a_number_goes_on_after_the_highest_and_is_not_given_again(runs: RunRecords):
    for name in ("train-1", "train-7", "train-x", "other-9", "train-12.2"):
        runs.add(name, record)
    assert runs.add_numbered("train", record).name == "train-8"


def test_a_sweep_gets_a_stem_of_its_own(runs: RunRecords):
    assert runs.free_stem("train") == "train-1"
    for name in ("train-1", "train-3-02", "train-2.2"):
        runs.add(name, record)
    assert runs.free_stem("train") == "train-4"


def test_another_attempt_is_linked_and_numbered(runs: RunRecords):
    first = runs.add("lr-3", record)
    second = runs.add_attempt(first.record, partial(again, first))
    third = runs.add_attempt(second.record, partial(again, second))
    fourth = runs.add_attempt(first.record, partial(again, first))
    assert [run.name for run in (second, third, fourth)] == ["lr-3.2", "lr-3.3", "lr-3.4"]
    assert [run.record.attempt for run in (first, second, third, fourth)] == [1, 2, 3, 4]
    assert (second.record.parent, third.record.parent) == ("lr-3", "lr-3.2")
    assert second.record.id.startswith("lr-3-2-2-")
    newest = runs.newest_attempts(run.record for run in (first, second, third, fourth))
    assert newest == dict.fromkeys(("lr-3", "lr-3.2", "lr-3.3"), "lr-3.4")


def test_of_many_jobs_the_newest_attempts_are_found_in_one_look(
    runs: RunRecords, monkeypatch: pytest.MonkeyPatch
):
    records = [runs.add(name, record).record for name in ("a", "a.2", "b", "b.x", "c.3")]
    looks: list[object] = []
    scandir = os.scandir

    def counted(folder: Path) -> object:
        looks.append(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counted)
    assert runs.newest_attempts(records) == {"a": "a.2"}
    assert len(looks) == 1


def test_a_name_that_looks_like_an_attempt_but_is_none_keeps_its_dot(runs: RunRecords):
    first = runs.add("net-v1.2", record)
    assert runs.add_attempt(first.record, partial(again, first)).name == "net-v1.2.2"


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "all", "last", "a\nb"])
def test_a_name_that_is_no_plain_folder_is_refused(runs: RunRecords, name: str):
    for action in (runs.path, runs.remove, lambda name: runs.add(name, record)):
        with pytest.raises(BadName):
            action(name)
    with pytest.raises(NoSuchJob):
        runs.get(name)


def test_runs_are_listed_from_the_oldest_to_the_newest(runs: RunRecords):
    for name, minute in (("c", 1), ("a", 3), ("b", 2)):
        runs.add(name, partial(record, minute=minute))
    assert names(runs) == ["c", "b", "a"]


def test_folders_that_hold_no_record_are_nobodys_jobs(runs: RunRecords):
    runs.add("lr", record)
    (runs.folder / ".new-123").mkdir()
    (runs.folder / ".new-123/job.json").write_text("{")
    (runs.folder / "mine").mkdir()
    (runs.folder / "notes.txt").write_text("x")
    assert names(runs) == ["lr"] and runs.list().damaged == ()


DAMAGE = ["", "{", "[]", "7", '{"id": "x"}', '{"created": 7, "inputs": []}', "\x00\xff"]


@pytest.mark.parametrize("content", DAMAGE)
def test_a_damaged_record_is_named_and_hides_no_other(runs: RunRecords, content: str):
    runs.add("good", record)
    runs.add("bad", record)
    (runs.path("bad") / "job.json").write_bytes(content.encode("latin-1"))
    listing = runs.list()
    assert [run.name for run in listing.runs] == ["good"]
    assert len(listing.damaged) == 1 and "runs/bad/job.json: is damaged" in listing.damaged[0]
    with pytest.raises(LocalFileError, match=r"runs/bad/job\.json"):
        runs.get("bad")


def test_a_record_of_a_newer_kind_is_said_and_not_half_read(runs: RunRecords):
    runs.add("new", record)
    file = runs.path("new") / "job.json"
    file.write_text(file.read_text().replace('"attempt"', '"unheard_of"'))
    assert len(runs.list().damaged) == 1


def test_what_was_heard_is_remembered(runs: RunRecords):
    made = runs.add("lr", record)
    heard = Status("failed", "the command ended with exit code 3", 3, metrics={"loss": 0.5})
    runs.save(replace(made, status=heard, cancel_asked=True))
    found = runs.get("lr")
    assert (found.status, found.cancel_asked, found.record) == (heard, True, made.record)


def test_an_end_is_never_taken_back_by_older_news(runs: RunRecords):
    made = runs.add("lr", record)
    runs.save(replace(made, status=Status("completed", exit_code=0)))
    late = runs.save(replace(made, status=Status("running"), cancel_asked=True))
    assert late.state == runs.get("lr").state == "completed"


def test_a_damaged_state_is_asked_for_again(runs: RunRecords):
    runs.add("lr", record)
    for content in ("", "{", "[]", '{"status": {"colour": 1}, "cancel_asked": 0}'):
        (runs.path("lr") / "state.json").write_text(content)
        assert runs.get("lr").state == "queued"


def test_a_removed_run_is_gone_and_does_not_come_back_by_news(runs: RunRecords):
    made = runs.add("lr", record)
    (runs.path("lr") / "outputs").mkdir()
    runs.remove("lr")
    runs.remove("lr")
    runs.save(replace(made, status=Status("completed")))
    assert list(runs.folder.iterdir()) == []
    assert runs.add("lr", record).name == "lr"


def test_a_folder_renamed_by_hand_is_a_job_of_that_name(runs: RunRecords):
    made = runs.add("lr", record)
    runs.path("lr").rename(runs.path("best"))
    assert runs.get("best").record == replace(made.record, name="best")


def test_no_secret_is_in_a_record(runs: RunRecords):
    config = {
        "address": "https://me:hunter2@head:8265",
        "token": "s3cret-1",
        "headers": {"Authorization_Token": "s3cret-2", "X-Plain": "shown"},
        "api_key": "${API_KEY}",
        "cpus": 4,
    }
    runs.add("lr", partial(record, config=config))
    text = (runs.path("lr") / "job.json").read_text()
    assert not re.search(r"s3cret|hunter2", text)
    assert "${API_KEY}" in text and "shown" in text and '"cpus": 4' in text


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(LocalFileError, match="no record can be written"):
        RunRecords(tmp_path / "runs").add("lr", record)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True), st.integers(1, 10**6))
@example("n" * 100, 1)
def test_an_id_fits_every_compute(name: str, attempt: int):
    job = new_id(name, attempt)
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", job) and len(job) <= 60
    assert re.search(rf"-{attempt}-[a-z2-7]{{10}}$", job)
    assert job != new_id(name, attempt)
