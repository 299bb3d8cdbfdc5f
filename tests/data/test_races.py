"""Who comes first wins a number, and nobody loses anything. Every interleaving here is forced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from edgeloop.errors import NoSuchDataset, StoreUnavailable
from edgeloop.node import datasets as removal
from edgeloop.node import ledger
from edgeloop.node import ledger as log
from edgeloop.node.datasets import Datasets
from edgeloop.store import Blobs
from tests.data.trees import NAME, Watched, noise, objects, once, tree, write


def folder_with(tmp_path: Path, name: str, content: bytes) -> Path:
    write(tmp_path / name, {"own": content, "shared": noise(1_500_000)})
    return tmp_path / name


def meanwhile(blobs: Blobs, verb: str, work: Callable[[], object]) -> Watched:
    """The store as somebody sees it before whose first such request another does this work."""
    watched, other = Watched(blobs), once(work)
    watched.before = lambda asked, key: other() if asked == verb else None
    return watched


def check_all(blobs: Blobs) -> None:
    datasets = Datasets(blobs)
    assert all(datasets.verify(v.reference).is_right for v in datasets.versions(NAME))


def test_many_pushers_at_once_all_get_a_version(blobs: Blobs, tmp_path: Path):
    folders = [folder_with(tmp_path, f"p{n}", b"%d" % n) for n in range(6)]
    ready = threading.Barrier(6)

    def push(folder: Path) -> int:
        datasets = Datasets(blobs, tmp_path / "index" / folder.name)
        ready.wait(timeout=30)
        return datasets.push(NAME, folder).reference.version

    with ThreadPoolExecutor(6) as pool:
        versions = list(pool.map(push, folders))
    assert sorted(versions) == [1, 2, 3, 4, 5, 6]
    for folder, version in zip(folders, versions, strict=True):
        Datasets(blobs).pull(f"faces@{version}", tmp_path / "got" / folder.name)
        assert tree(tmp_path / "got" / folder.name) == tree(folder)


def test_pushers_of_the_same_folder_and_index_wait_for_each_other(blobs: Blobs, tmp_path: Path):
    watched = Watched(blobs)
    folder = folder_with(tmp_path, "one", b"1")
    with ThreadPoolExecutor(4) as pool:
        done = pool.map(
            lambda _: Datasets(watched, tmp_path / "index").push(NAME, folder).is_new, range(4)
        )
    assert sorted(done) == [False, False, False, True]
    assert watched.sent == 1_500_001


def test_a_push_that_was_second_is_made_again_on_top(blobs: Blobs, tmp_path: Path):
    mine, theirs = folder_with(tmp_path, "mine", b"1"), folder_with(tmp_path, "theirs", b"2")
    watched = meanwhile(blobs, "create", lambda: Datasets(blobs).push(NAME, theirs))
    pushed = Datasets(watched, tmp_path / "index").push(NAME, mine)
    assert pushed.reference.version == 2
    assert watched.sent == 1_500_001  # what it had sent it did not send again
    check_all(blobs)
    assert len(list(blobs.list("_data/manifests/"))) == 2


def test_the_same_content_pushed_by_two_is_one_version(blobs: Blobs, tmp_path: Path):
    mine, theirs = folder_with(tmp_path, "mine", b"1"), folder_with(tmp_path, "theirs", b"1")
    watched = meanwhile(blobs, "create", lambda: Datasets(blobs).push(NAME, theirs))
    pushed = Datasets(watched).push(NAME, mine)
    assert (pushed.is_new, pushed.reference.version) == (False, 1)


def test_a_removal_while_a_push_counts_on_the_version_makes_it_send_again(
    blobs: Blobs, tmp_path: Path
):
    first, second = folder_with(tmp_path, "first", b"1"), folder_with(tmp_path, "second", b"2")
    Datasets(blobs).push(NAME, first)
    watched = meanwhile(blobs, "create", lambda: Datasets(blobs).remove(NAME))
    pushed = Datasets(watched, tmp_path / "index").push(NAME, second)
    assert pushed.reference.version == 2
    assert watched.sent == 1_500_001  # "own", and "shared" once its first home was gone
    check_all(blobs)


def test_a_remover_that_wakes_up_late_harms_nobody(blobs: Blobs, tmp_path: Path):
    """It froze between its record and its deletes; meanwhile the same content was pushed again."""
    folder = folder_with(tmp_path, "folder", b"1")
    Datasets(blobs).push(NAME, folder)
    watched = meanwhile(
        blobs, "delete", lambda: Datasets(blobs, tmp_path / "index").push(NAME, folder)
    )
    Datasets(watched).remove(NAME)
    assert [item.version for item in Datasets(blobs).versions(NAME)] == [2]
    assert len(objects(blobs)) == 2
    check_all(blobs)


def test_a_push_between_reading_and_removing_is_kept(blobs: Blobs, tmp_path: Path):
    first, second = folder_with(tmp_path, "first", b"1"), folder_with(tmp_path, "second", b"2")
    Datasets(blobs).push(NAME, first)
    watched = meanwhile(blobs, "create", lambda: Datasets(blobs).push(NAME, second))
    Datasets(watched).remove(NAME, [1])
    assert [item.version for item in Datasets(blobs).versions(NAME)] == [2]
    check_all(blobs)


def test_a_removal_leaves_alone_what_a_push_under_way_has_sent(blobs: Blobs, tmp_path: Path):
    first, second = folder_with(tmp_path, "first", b"1"), tmp_path / "second"
    write(second, {"a": noise(1_200_000, 5), "b": noise(1_200_000, 6)})
    Datasets(blobs).push(NAME, first)
    watched = Watched(blobs)
    other = once(lambda: Datasets(blobs).remove(NAME))
    watched.after = lambda verb, key: other() if verb == "put" and "objects" in key else None
    Datasets(watched, tmp_path / "index").push(NAME, second)
    assert watched.sent == 2_400_000
    check_all(blobs)


def test_objects_of_a_published_version_are_no_longer_the_pushers_own(
    folder_blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Killed after its record, before its journal was closed; then the version is removed, and
    the remover's deletes come late."""
    blobs, folder = folder_blobs, folder_with(tmp_path, "folder", b"1")
    with monkeypatch.context() as killed:
        killed.setattr(ledger.Journal, "close", lambda self: None)
        Datasets(blobs, tmp_path / "index").push(NAME, folder)
    watched = meanwhile(
        blobs, "delete", lambda: Datasets(blobs, tmp_path / "index").push(NAME, folder)
    )
    Datasets(watched).remove(NAME)
    check_all(blobs)
    assert [item.version for item in Datasets(blobs).versions(NAME)] == [2]


def test_a_record_whose_answer_was_lost_is_recognised(folder_blobs: Blobs, tmp_path: Path):
    """The store made it, the answer did not arrive, and the request was sent again."""
    folder = folder_with(tmp_path, "folder", b"1")

    class LosesAnswers(Watched):
        def create(self, key: str, content: bytes) -> bool:
            assert self.inner.create(key, content)
            return self.inner.create(key, content)

    pushed = Datasets(LosesAnswers(folder_blobs)).push(NAME, folder)
    assert (pushed.is_new, pushed.reference.version) == (True, 1)
    assert len(Datasets(folder_blobs).versions(NAME)) == 1
    assert Datasets(LosesAnswers(folder_blobs)).remove(NAME)[0].version == 1


def test_the_late_record_of_a_killed_push_is_not_taken_for_a_new_one(
    folder_blobs: Blobs, tmp_path: Path
):
    """Its request was still on its way when the next push, with the same journal, had begun."""
    blobs, folder = folder_blobs, folder_with(tmp_path, "folder", b"old")
    late: list[tuple[str, bytes]] = []

    class Dies(Watched):
        def create(self, key: str, content: bytes) -> bool:
            late.append((key, content))
            raise StoreUnavailable(store="x", reason="killed")

        def delete(self, keys: object) -> None:
            """Dead."""

    with pytest.raises(StoreUnavailable):
        Datasets(Dies(blobs), tmp_path / "index").push(NAME, folder)
    write(folder, {"own": b"new"})
    watched = Watched(blobs)
    arrives = once(lambda: blobs.create(*late[0]))
    watched.before = lambda verb, key: arrives() if verb == "create" else None
    pushed = Datasets(watched, tmp_path / "index").push(NAME, folder)
    assert pushed.reference.version == 2
    Datasets(blobs).pull(NAME, tmp_path / "target")
    assert (tmp_path / "target/own").read_bytes() == b"new"
    check_all(blobs)


def test_strays_go_when_they_are_old_and_not_before(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = folder_with(tmp_path, "folder", b"1")
    datasets = Datasets(blobs)
    datasets.push(NAME, folder)
    write(folder, {"own": b"2"})
    datasets.push(NAME, folder)
    stray = "_data/objects/working@faces/" + "0" * 32
    blobs.put(stray, b"of a push that never ended")
    datasets.remove(NAME, [1])
    assert stray in objects(blobs)
    monkeypatch.setattr(removal, "ORPHAN_DAYS", -timedelta(minutes=5) / timedelta(days=1))
    write(folder, {"own": b"3"})
    datasets.push(NAME, folder)
    datasets.remove(NAME, [2])
    assert stray not in objects(blobs)
    check_all(blobs)


def test_uploads_of_long_ago_are_not_counted_on(
    folder_blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert log.OWN_DAYS < log.ORPHAN_DAYS
    folder = folder_with(tmp_path, "folder", b"1")
    watched = Watched(folder_blobs)

    def refuse(verb: str, key: str) -> None:
        if verb == "create":
            raise StoreUnavailable(store="x", reason="away")

    watched.before = refuse
    with pytest.raises(StoreUnavailable):
        Datasets(watched, tmp_path / "index").push(NAME, folder)
    later = Watched(folder_blobs)
    monkeypatch.setattr(ledger, "OWN_DAYS", 0)
    Datasets(later, tmp_path / "index").push(NAME, folder)
    assert later.sent == watched.sent == 1_500_001
    check_all(folder_blobs)


def test_a_version_removed_while_it_is_pulled_is_said(blobs: Blobs, tmp_path: Path):
    folder = folder_with(tmp_path, "folder", b"1")
    Datasets(blobs).push(NAME, folder)
    watched = Watched(blobs)
    other = once(lambda: Datasets(blobs).remove(NAME))
    watched.before = lambda verb, key: other() if "/objects/" in key else None
    with pytest.raises(NoSuchDataset, match="removed while it was being read"):
        Datasets(watched).pull(NAME, tmp_path / "target")
