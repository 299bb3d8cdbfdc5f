"""outputs/ and the log: what is copied, when, and what never replaces something good."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.errors import StoreUnavailable
from edgeloop.jobs.snapshot import may_hold_secrets
from edgeloop.node.environment import JobSecrets, LogCopier, Scratch
from edgeloop.node.files import FolderBlobs
from edgeloop.node.outputs import GROWING_LIMIT_BYTES, CreatedFiles, OutputCopier, may_be_secret
from edgeloop.node.ticket import LOG_PIECE, Pace, cancel_key, log_key, outputs_folder
from tests.jobs.wrapped import LIMIT_S, Wrapped, kill, python_of
from tests.peers.process import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(params=["here", pytest.param("3.8", marks=pytest.mark.soak)])
def wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> Wrapped:
    blobs = FolderBlobs(tmp_path / "store")
    return Wrapped(blobs, tmp_path / "node", python=python_of(request.param))


class Copied:
    """A folder and its copier, looked at step by step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work/outputs"
        self.folder.mkdir(parents=True)
        self.blobs = FolderBlobs(folder / "store")
        self.said: list[str] = []
        self.copier = self.another()

    def another(self) -> OutputCopier:
        created = CreatedFiles(self.folder.parent, self.folder.parent.parent / "before.json")
        return OutputCopier(self.folder, created, self.blobs, "j", self.said.append)

    def stored(self, name: str) -> bytes | None:
        key = outputs_folder("j") + name
        return None if self.blobs.size(key) is None else self.blobs.read(key)


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    return Copied(tmp_path)


def test_outputs_are_in_the_store_while_the_command_runs(wrapped: Wrapped):
    script = """
import os, time
os.makedirs("outputs/a/b")
open("outputs/a/b/c.txt", "w").write("deep")
open("outputs/metrics.jsonl", "w").write('{"loss": 0.25}\\n')
print("so far", flush=True)
while not os.path.exists("outputs/go"):
    time.sleep(0.02)
"""
    wrapped.order_script(script)
    with wrapped.running() as launcher:
        wrapped.wait_for_output("a/b/c.txt", b"deep")
        wait_until(lambda: "so far\n" in wrapped.log(), LIMIT_S, "the log in the store")
        wait_until(lambda: wrapped.progress().metrics == {"loss": 0.25}, LIMIT_S, "metrics")
        assert wrapped.progress().state == "running"
        first = wrapped.progress().heartbeat
        wait_until(lambda: wrapped.progress().heartbeat > first, LIMIT_S, "a heartbeat")
        (wrapped.outputs / "go").touch()
        assert launcher.wait(LIMIT_S) == 0


def test_a_file_that_grows_is_copied_as_it_grows(copied: Copied):
    file = copied.folder / "metrics.jsonl"
    for number in range(1, 4):
        with file.open("a") as stream:
            stream.write(f"{number}\n")
        copied.copier.copy()
        assert copied.stored("metrics.jsonl") == file.read_bytes()


def test_a_long_file_is_not_sent_again_for_every_line(copied: Copied):
    file = copied.folder / "trace.txt"
    file.write_bytes(b"x" * (2 << 20))
    copied.copier.copy()
    with file.open("ab") as stream:
        stream.write(b"a line\n")
    copied.copier.copy()
    assert len(copied.stored("trace.txt")) == 2 << 20
    with file.open("ab") as stream:
        stream.write(b"x" * (1 << 20))
    copied.copier.copy()
    assert copied.stored("trace.txt") == file.read_bytes()


def test_a_half_written_file_does_not_replace_the_good_one_before_it(copied: Copied):
    file = copied.folder / "model.pt"
    file.write_bytes(b"good" * 100)
    copied.copier.copy()
    copied.copier.copy()
    for size in (0, 10, 50):  # written over in place: it looks different each time
        file.write_bytes(b"next" * size)
        copied.copier.copy()
        assert copied.stored("model.pt") == b"good" * 100
    copied.copier.copy()
    assert copied.stored("model.pt") == b"next" * 50


def test_a_longer_file_that_begins_otherwise_is_not_taken_for_a_grown_one(copied: Copied):
    file = copied.folder / "model.pt"
    file.write_bytes(b"good")
    copied.copier.copy()
    file.write_bytes(b"something else, not all of it yet")
    copied.copier.copy()
    assert copied.stored("model.pt") == b"good"


def test_what_an_earlier_wrapper_stored_is_not_replaced_by_half_a_file(copied: Copied):
    copied.blobs.put(outputs_folder("j") + "model.pt", b"good")
    (copied.folder / "model.pt").write_bytes(b"ha")
    copied.copier.copy()
    assert copied.stored("model.pt") == b"good"
    assert copied.copier.finish() == set()
    assert copied.stored("model.pt") == b"ha"


def test_a_huge_file_waits_until_it_is_left_alone(copied: Copied):
    file = copied.folder / "huge"
    with file.open("wb") as stream:
        stream.truncate(GROWING_LIMIT_BYTES + 1)
    copied.copier.copy()
    assert copied.stored("huge") is None
    copied.copier.copy()
    assert copied.blobs.size(outputs_folder("j") + "huge") == GROWING_LIMIT_BYTES + 1


def test_the_last_copy_takes_everything_and_only_what_changed(copied: Copied):
    for number in range(200):
        (copied.folder / f"{number}.txt").write_text(str(number))
    copied.copier.copy()
    before = {info.key: info.modified for info in copied.blobs.list(outputs_folder("j"))}
    (copied.folder / "7.txt").write_text("changed")
    assert copied.copier.finish() == set()
    after = {info.key: info.modified for info in copied.blobs.list(outputs_folder("j"))}
    assert {key for key in after if after[key] != before[key]} == {outputs_folder("j") + "7.txt"}
    assert len(after) == 200


def test_files_that_the_command_removed_are_removed_from_a_completed_job(wrapped: Wrapped):
    script = """
import os, time
open("outputs/temporary", "w").write("x")
open("outputs/kept", "w").write("y")
while not os.path.exists("outputs/go"):
    time.sleep(0.02)
os.unlink("outputs/temporary"); os.unlink("outputs/go")
raise SystemExit(int(os.environ["CODE"]))
"""
    for code, expected in ((0, {"kept"}), (1, {"kept", "temporary"})):
        job = Wrapped(wrapped.blobs, wrapped.folder, python=wrapped.python)
        job.order_script(script, variables={"CODE": str(code)})
        with job.running() as launcher:
            job.wait_for_output("temporary")
            (job.outputs / "go").touch()
            assert launcher.wait(LIMIT_S) == code
        assert set(job.stored()) - {"go"} == expected


def test_links_are_followed_only_inside_of_the_job(copied: Copied, tmp_path: Path):
    (tmp_path / "secret").write_text("of the machine")
    (copied.folder.parent / "code.py").write_text("mine")
    (copied.folder / "sub").mkdir()
    (copied.folder / "sub/file").write_text("x")
    (copied.folder / "loop").symlink_to(copied.folder)
    (copied.folder / "inside").symlink_to("../code.py")
    (copied.folder / "outside").symlink_to(tmp_path / "secret")
    (copied.folder / "folder").symlink_to(tmp_path)
    (copied.folder / "broken").symlink_to("nowhere")
    os.mkfifo(copied.folder / "pipe")
    assert copied.copier.finish() == set()
    names = {info.key.removeprefix(outputs_folder("j")) for info in copied.blobs.list("_jobs/")}
    assert {"sub/file", "inside"} <= names
    assert not names & {"outside", "broken", "pipe", "folder/secret"}
    assert any("outside" in sentence for sentence in copied.said)


def test_outputs_replaced_by_a_link_to_elsewhere_is_not_followed(copied: Copied, tmp_path: Path):
    copied.folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret").write_text("x")
    copied.folder.symlink_to(tmp_path / "elsewhere")
    copied.copier.finish()
    assert list(copied.blobs.list("_jobs/")) == []


def test_a_name_that_the_store_cannot_hold_is_said_and_the_rest_is_stored(wrapped: Wrapped):
    script = """
open(b"outputs/\\xff\\xfe", "w").write("odd")
open("outputs/back\\\\slash", "w").write("odd")
open("outputs/plain", "w").write("even")
"""
    wrapped.order_script(script)
    assert wrapped.run()[0] == 0
    progress = wrapped.final()
    assert progress.state == "completed" and not progress.outputs_complete
    assert "2 files of outputs/" in progress.reason and str(wrapped.scratch) in progress.reason
    assert wrapped.stored() == {"plain": b"even"}
    assert "the store cannot hold" in wrapped.log()
    assert (wrapped.outputs / "back\\slash").read_text() == "odd"


def test_a_job_begins_with_the_outputs_of_the_one_before_it(wrapped: Wrapped):
    before = Wrapped(wrapped.blobs, wrapped.folder, python=wrapped.python)
    before.order_script("open('outputs/checkpoint', 'w').write('epoch 3'); raise SystemExit(1)")
    before.run()
    script = "open('outputs/seen', 'w').write(open('outputs/checkpoint').read())"
    wrapped.order_script(script, previous=before.job, attempt=2)
    assert wrapped.run()[0] == 0
    assert wrapped.stored() == {"checkpoint": b"epoch 3", "seen": b"epoch 3"}
    assert before.stored() == {"checkpoint": b"epoch 3"}


def test_a_command_that_prints_a_lot_fills_neither_memory_nor_pipes(wrapped: Wrapped):
    size = 200 << 20
    wrapped.pace = Pace(log_s=0.1, outputs_s=0.1, heartbeat_s=0.2, patience_s=60)
    script = f"""
import os, sys, time
block = (b"x" * 1023 + b"\\n") * 1024
for _ in range({size} >> 20):
    sys.stdout.buffer.write(block)
sys.stdout.flush()
while not os.path.exists("outputs/go"):
    time.sleep(0.02)
"""
    wrapped.order_script(script)
    with Path(os.devnull).open("wb") as nothing, wrapped.running(stdout=nothing) as launcher:
        wait_until(lambda: _said(wrapped) >= size, LIMIT_S, "all of the log in the store")
        for pid in (launcher.pid, wrapped.supervisor()):
            peak = Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]
            assert int(peak) < 150_000, "kilobytes"
        (wrapped.outputs / "go").touch()
        assert launcher.wait(LIMIT_S) == 0
    assert wrapped.final().log_bytes >= size
    assert wrapped.blobs.size(log_key(wrapped.job, 100)) == LOG_PIECE


def _said(wrapped: Wrapped) -> int:
    progress = wrapped.progress()
    return progress.log_bytes if progress else 0


def test_nobody_reading_what_the_launcher_shows_does_not_hold_up_the_command(wrapped: Wrapped):
    wrapped.order_script("import sys; sys.stdout.write('x' * 1_000_000); open('outputs/done', 'w')")
    with wrapped.running():  # its pipe is never read
        assert wrapped.final().state == "completed"
    assert wrapped.final().log_bytes > 1_000_000


def test_a_launcher_without_any_standard_streams_runs_its_job(wrapped: Wrapped):
    wrapped.order_script("print('said'); import sys; print('both', file=sys.stderr)")
    closing = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    assert wrapped.run(before=closing)[0] == 0
    assert wrapped.log() == "said\nboth\nedgeloop: completed\n"


def test_a_command_that_opens_its_standard_error_anew_keeps_what_was_stored(wrapped: Wrapped):
    script = """
echo first
while ! test -e outputs/go; do sleep 0.02; done
echo second > /dev/stderr
"""
    wrapped.order(["sh", "-c", script])
    with wrapped.running() as launcher:
        wait_until(lambda: wrapped.log() == "first\n", LIMIT_S, "the log in the store")
        (wrapped.outputs / "go").touch()
        assert launcher.wait(LIMIT_S) == 0
    assert wrapped.log().startswith("first\nsecond\n")


def test_a_log_that_could_not_be_sent_is_sent_the_next_time(tmp_path: Path):
    class Moody(FolderBlobs):
        away = True

        def put(self, key: str, source: Path | bytes) -> None:
            if self.away:
                raise StoreUnavailable(store="it", reason="away")
            super().put(key, source)

    blobs, log = Moody(tmp_path / "store"), tmp_path / "log.txt"
    log.write_bytes(b"a" * (LOG_PIECE - 1))
    copier = LogCopier(log, blobs, "j", JobSecrets(Scratch(tmp_path)))
    with pytest.raises(StoreUnavailable):
        copier.copy()
    assert copier.bytes_sent == 0
    blobs.away = False
    with log.open("ab") as file:
        file.write(b"bcd")
    copier.copy()
    assert copier.bytes_sent == LOG_PIECE + 2
    assert blobs.read(log_key("j", 0)) == b"a" * (LOG_PIECE - 1) + b"b"
    assert blobs.read(log_key("j", 1)) == b"cd"


SCATTERED = """
import os, pathlib
for name in ("results/a/best.ckpt", "lightning_logs/version_0/metrics.csv", "pkg/new.txt"):
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_text(name)
os.makedirs("pkg/__pycache__", exist_ok=True)
open("pkg/__pycache__/x.pyc", "w").write("bytecode")
open("pkg/changed.txt", "w").write("changed by the job")
os.symlink("/etc", "results/elsewhere")
os.symlink("best.ckpt", "results/a/last.ckpt")
open("data/working/made/1.txt", "w").write("a dataset")
"""
CODE = {"script.py": SCATTERED, "pkg/changed.txt": "of the code", "pkg/same.txt": "of the code"}


def test_files_created_outside_outputs_are_listed_and_an_empty_outputs_is_said(wrapped: Wrapped):
    wrapped.order(["python", "script.py"], CODE, writes=("working/made",))
    assert wrapped.run()[0] == 0
    files = wrapped.final().files
    assert (files.collected, files.kept, files.left) == (0, 5, 0)
    assert {file.name: file.size for file in files.largest_kept} == {
        "results/a/best.ckpt": 19,
        "results/a/last.ckpt": 19,
        "lightning_logs/version_0/metrics.csv": 36,
        "pkg/new.txt": 11,
        "pkg/changed.txt": 18,
    }
    said = "outputs/ is empty, but 5 files (103 B) created outside outputs/ are kept for 7 days: "
    assert said in wrapped.log() and "--outputs lightning_logs" in wrapped.log()
    assert wrapped.stored() == {}
    assert wrapped.kept() == {
        "results/a/best.ckpt": b"results/a/best.ckpt",
        "results/a/last.ckpt": b"results/a/best.ckpt",
        "lightning_logs/version_0/metrics.csv": b"lightning_logs/version_0/metrics.csv",
        "pkg/new.txt": b"pkg/new.txt",
        "pkg/changed.txt": b"changed by the job",
    }


def test_patterns_collect_what_the_job_created_and_never_what_lies_elsewhere(wrapped: Wrapped):
    patterns = ("results", "pkg/*.txt")
    wrapped.order(["python", "script.py"], CODE, writes=("working/made",), outputs=patterns)
    assert wrapped.run()[0] == 0
    expected = {
        "results/a/best.ckpt": b"results/a/best.ckpt",
        "results/a/last.ckpt": b"results/a/best.ckpt",
        "pkg/new.txt": b"pkg/new.txt",
        "pkg/changed.txt": b"changed by the job",
    }
    assert wrapped.stored() == expected
    files = wrapped.final().files
    assert (files.collected, files.kept) == (4, 1)
    assert "4 files collected" in wrapped.log() and "1 file (36 B)" in wrapped.log()
    assert list(wrapped.kept()) == ["lightning_logs/version_0/metrics.csv"]


NOT_RESULTS = """
import pathlib
def write(name, text="x"):
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_text(text)
for name in ("venv/pyvenv.cfg", "venv/lib/torch.py", ".cache/hub/model.bin", "env/conda-meta/x",
             "cache/CACHEDIR.TAG", "cache/a", "node_modules/a.js", ".git/index", "a/__pycache__/b",
             ".edgeloop/work", "runs/inner-1/job.json", "runs/inner-1/state.json",
             "runs/inner-1/outputs/a"):
    write(name)
for name in (".env", "keys/id_rsa", "sub/.aws/config", "Server.PEM"):
    write(name, "secret")
for name in ("runs/events.out", "cache.txt", "environment.txt"):
    write(name, "result")
"""


def test_caches_environments_and_secrets_by_name_are_never_kept(wrapped: Wrapped):
    wrapped.order_script(NOT_RESULTS)
    assert wrapped.run()[0] == 0
    assert sorted(wrapped.kept()) == ["cache.txt", "environment.txt", "runs/events.out"]
    files, log = wrapped.final().files, wrapped.log()
    secret = {".env", "keys/id_rsa", "sub/.aws/config", "Server.PEM"}
    assert {file.name for file in files.largest} == secret and files.left == 4
    for name in secret:
        assert f"not kept, because its name is that of a secret: {name} (6 B)" in log


def test_what_counts_as_secret_is_the_same_as_for_code():
    names = ["a.env", ".env/x", "x/.config/gcloud/y", "id_rsa.pub", "env.txt", "kaggle.json", "pem"]
    names += [".azureml/datastore.json", "deep/.azureml/datastore.json", "tokens.txt", "A/.SSH/b"]
    for name in names:
        assert may_be_secret(name) == may_hold_secrets(name, is_folder=False), name


def test_what_exceeds_the_limit_is_listed_by_name_and_the_rest_is_kept(wrapped: Wrapped):
    script = """
import os
os.mkdir("logs")
for name, size in (("a", 40), ("b", 30), ("c", 500), ("{d}", 900)):
    open(f"logs/{name}", "wb").write(bytes(size))
"""
    wrapped.order_script(script, kept_bytes=100)
    assert wrapped.run()[0] == 0
    assert sorted(wrapped.kept()) == ["logs/a", "logs/b"]
    files, log = wrapped.final().files, wrapped.log()
    assert [(file.name, file.size) for file in files.largest] == [
        ("logs/{d}", 900),
        ("logs/c", 500),
    ]
    assert (files.kept, files.kept_bytes, files.left_bytes) == (2, 70, 1400)
    assert "2 files (1.4 kB) created outside outputs/ were not kept: logs/{d} (900 B)" in log
    assert "not kept, because the limit is 100 B: logs/c (500 B)" in log


TRAINING = """
import os, pathlib, sys, time
log = pathlib.Path("lightning_logs/version_0/metrics.csv")
log.parent.mkdir(parents=True)
log.write_text("epoch,loss")
pathlib.Path("outputs/begun").touch()
if sys.argv[1] == "fail":
    sys.exit(3)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["fails", "is canceled", "loses its supervisor", "loses its node"])
def test_a_job_that_ends_early_keeps_what_it_created_elsewhere(wrapped: Wrapped, how: str):
    wrapped.order_script(TRAINING, "fail" if how == "fails" else "sleep")
    with wrapped.running() as launcher:
        if how != "fails":
            wrapped.wait_for_file("begun")
        if how == "is canceled":
            wrapped.blobs.put(cancel_key(wrapped.job), b"canceled")
        elif how == "loses its supervisor":
            kill(wrapped.supervisor())
        elif how == "loses its node":
            wait_until(wrapped.kept, LIMIT_S, "the first copy")
            launcher.kill()
            kill(wrapped.supervisor())
        if how != "loses its node":
            state = wrapped.final().state
            assert state == ("canceled" if how == "is canceled" else "failed")
        assert wrapped.kept() == {"lightning_logs/version_0/metrics.csv": b"epoch,loss"}


def test_a_job_that_is_started_again_finds_its_collected_files_where_it_wrote_them(
    wrapped: Wrapped,
):
    script = """
import os, pathlib
step = pathlib.Path("results/step")
step.parent.mkdir(exist_ok=True)
step.write_text(str(int(step.read_text()) + 1) if step.exists() else "1")
"""
    wrapped.order_script(script, outputs=("results/**",))
    assert wrapped.run()[0] == 0
    second = Wrapped(wrapped.blobs, wrapped.folder / "other", python=wrapped.python)
    second.order_script(script, outputs=("results/**",), previous=wrapped.job)
    assert second.run()[0] == 0
    assert second.stored() == {"results/step": b"2"}


def test_a_killed_supervisor_loses_no_collected_file(wrapped: Wrapped):
    script = """
import os, time
os.makedirs("results")
open("results/late.txt", "w").write("late")
open("outputs/here", "w").close()
time.sleep(600)
"""
    wrapped.pace = replace(wrapped.pace, outputs_s=600)
    wrapped.order_script(script, outputs=("results",))
    with wrapped.running():
        wrapped.wait_for_file("here")
        kill(wrapped.supervisor())
        assert wrapped.final().state == "failed"
    assert wrapped.stored() == {"results/late.txt": b"late", "here": b""}
