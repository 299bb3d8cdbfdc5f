"""A store that was named and is not there is neither taken for an empty one nor made in silence."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeloop import Workspace
from edgeloop._util.system import unmounted_above
from edgeloop.cli.app import dataset_folder
from edgeloop.jobs.spec import spec_of_script
from edgeloop.node.ticket import Environment
from edgeloop.settings import Settings
from tests.cli.running import Finished, run_main
from tests.nets import save_tiny

Command = Callable[..., Finished]


@pytest.fixture
def run(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    return lambda *arguments: run_main(arguments, monkeypatch, capfd)


@pytest.mark.parametrize(
    "words",
    ["status", "experiment list", "download --list", "download x", "delete x -y", "reset x",
     "queue", "devices usage", "pareto", "gc --yes", "data list", "data pull faces", "fleet status",
     "store check", "store repair", "runner", "runner --once", "runner --drain"],
)  # fmt: skip
def test_a_named_store_that_is_not_there_is_an_error_of_reading_commands(
    run: Command, tmp_path: Path, words: str
) -> None:
    place = tmp_path / "disk" / "store"
    for makes in (lambda: None, lambda: place.mkdir(parents=True)):  # or an empty mount point
        makes()
        said = run(*words.split(), "--store", f"sqlite:{place}").sentence
        assert f"there is no store at {place}" in said and "mounted" in said
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    ["status", "runner", "runner --drain", "job list", "job status", "job status x", "job logs x"],
)
def test_a_file_in_place_of_the_store_is_said_by_every_command(
    run: Command, project: Path, words: str
) -> None:
    (project / ".edgeloop").write_text("")
    assert f"{project / '.edgeloop'}: this is a file, not a folder" in run(*words.split()).sentence


@pytest.mark.server
@pytest.mark.parametrize("name", ["", "store.db"])
def test_a_portal_does_not_begin_on_what_is_no_store(
    run: Command, project: Path, name: str
) -> None:
    """`status` says the same."""
    place = project / ".edgeloop" / name
    place.parent.mkdir(exist_ok=True)
    place.write_text("no store" * 1_000)
    said = run("status").sentence
    assert ".edgeloop" in said and ("damaged" if name else "not a folder") in said
    with socket.create_server(("127.0.0.1", 0)) as taken:  # where a portal would not stay either
        port = taken.getsockname()[1]
        assert run("portal", "--port", port, "--no-token").sentence == said


@pytest.mark.parametrize(
    "words",
    ["status", "download --list", "queue", "devices usage", "experiment list", "pareto", "devices",
     "job list", "search list",
     "data list", "fleet status", "secrets scan", "report -o r.html"],
)  # fmt: skip
def test_where_the_project_is_not_the_current_folder_the_first_line_says_so(
    run: Command, project: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    (project / "edgeloop.yaml").write_text("experiment: faces\n")
    (project / "src").mkdir()
    line = f"Project: {project} (it has edgeloop.yaml)"
    assert line not in run(*words.split()).err
    monkeypatch.chdir(project / "src")
    said = run(*words.split())
    assert said.code == 0 and said.err.splitlines()[0] == line
    assert line not in said.out and said.err.count("Project:") == 1


def test_commands_in_a_subfolder_see_the_data_of_the_project(
    run: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src").mkdir()
    (project / "edgeloop.yaml").write_text("dataset: data/raw/faces\n")
    monkeypatch.chdir(project / "src")
    folder = project / "data/raw/faces"
    made = run("data", "faces", "data/raw/faces", "--count", 4, "--size", 32)
    assert made.code == 0 and str(folder) in made.out and f"Project: {project}" in made.err
    assert len(list(folder.glob("*_seg.png"))) == 4 and list(Path.cwd().iterdir()) == []
    for name in ("faces", "raw/faces", "data/raw/faces"):
        assert "raw/faces@1" in run("data", "push", name).out
    for given in (None, Path("faces"), Path("../data/raw/faces")):
        found = dataset_folder(given, Settings.load())
        assert found is not None and found.resolve() == folder
    here = run("data", "faces", "own", "--count", 2, "--size", 32)
    assert here.code == 0 and "own" in here.out and (project / "src/own").is_dir()
    monkeypatch.setenv("INPUT_DATASET", "own")
    assert dataset_folder(None, Settings.load()) == project / "src/own"


@pytest.mark.parametrize(
    "words",
    ["upload gone", "inspect gone", "bench gone", "search gone.yaml", "job submit gone.yaml",
     "run gone", "runner --calibration gone", "runner --dataset gone --drain", "layers ./gone",
     "gate gone gone", "data push ./gone", "arch train gone --dataset gone", "upload gone.onnx",
     "precision gone.onnx", "arch export gone -o x.onnx"],
)  # fmt: skip
def test_what_is_not_found_is_named_with_its_whole_path(
    run: Command, project: Path, words: str
) -> None:
    said = run(*words.split())
    assert said.code in (1, 2) and f"{project}/" in said.err and "gone" in said.err, said


def test_a_job_that_is_not_found_names_the_folder_of_runs(run: Command, project: Path) -> None:
    assert f"no job 'gone' in {project / 'runs'}" in run("job", "status", "gone").sentence


def test_the_files_of_an_environment_are_relative_to_the_current_folder(
    run: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "edgeloop.yaml").write_text("")
    (project / "src").mkdir()
    (project / "src/s.py").write_text("")
    (project / "src/r.txt").write_text("")
    (project.parent / "outside.txt").write_text("")
    monkeypatch.chdir(project / "src")
    for option in ("--requirements", "--conda"):
        said = run("job", "submit", "s.py", option, "gone.txt").err
        assert f"names a file that is not there: {project}/src/gone.txt" in said
        said = run("job", "submit", "s.py", option, "../../outside.txt").err
        assert f"outside the code folder {project}: copy it there" in said
    file = {"environment": {"requirements": str(project / "src/r.txt")}}
    assert spec_of_script("s.py", (), file).environment == Environment("requirements", "src/r.txt")


def test_data_beside_the_folders_of_datasets_is_pointed_at(run: Command, project: Path) -> None:
    run("data", "faces", "data/faces", "--count", 2, "--size", 32)
    for name in ("faces", "data/faces"):
        said = run("data", "push", name).sentence
        assert f"{project}/data/faces is not below {project}/data/working or" in said


EMPTY = {
    "status": "No models", "download --list": "No models", "pareto": "No models",
    "reset *": "No models",
    "status --csv -": "No models", "status --unsteady": "No models",
    "job list": "No jobs", "job status": "No jobs", "data list": "No datasets",
    "search list": "No search", "devices usage": "No device was used",
}  # fmt: skip


@pytest.mark.parametrize("words", EMPTY)
def test_an_empty_listing_is_no_error_and_says_where_the_models_are(
    run: Command, project: Path, words: str
) -> None:
    if EMPTY[words] == "No models":
        assert f"There is no store at {'.edgeloop'} yet" in (said := run(*words.split())).out + (
            said.err
        )
        with Workspace.open(experiment="laptop") as workspace:
            workspace.upload(save_tiny(project / "net.onnx"), "calm-heron", tags=["unet"])
    said = run(*words.split())
    assert said.code == 0 and EMPTY[words] in said.out + said.err
    if EMPTY[words] == "No models":
        hint = "No models in experiment 'default'; 1 in 'laptop'. Choose with --experiment."
        assert hint in said.out + said.err
    if "--csv" not in words:
        as_json = run(*words.split(), "--json")
        assert as_json.json == [] and (EMPTY[words] in as_json.err or "*" in words)


def test_what_is_misspelt_gets_the_nearest_name(run: Command, project: Path) -> None:
    with Workspace.open(experiment="laptop") as workspace:
        workspace.upload(save_tiny(project / "net.onnx"), "calm-heron", tags=["unet"])
    assert "did you mean 'laptop' (1 model)?" in run("status", "-e", "lapto").out
    for words in (
        *("status", "download --list", "pareto", "queue", "status --unsteady"),
        *("experiment list", "report"),
    ):
        said = run(*words.split(), "-e", "lapto")
        assert said.code == 0, said.err
        assert "did you mean 'laptop' (1 model)?" in said.out + said.err, words
    said = run("status", "-e", "laptop", "--tag", "une")
    assert said.code == 0 and "has the tag 'une'; did you mean 'unet'?" in said.out
    for words in ("status", "download", "compare", "reset", "delete", "download --list"):
        near = run(*words.split(), "calm-hern", "-e", "laptop").sentence
        assert "no model 'calm-hern' in experiment 'laptop'; did you mean 'calm-heron'?" in near
        assert "there is one in 'laptop'" in run(*words.split(), "calm-heron").sentence
    empty = run("priority", "x-*", "0").sentence
    assert "in experiment 'default', which has no models; 1 in 'laptop'." in empty


def test_an_upload_begins_a_named_store_and_says_so_once(
    run: Command, project: Path, tmp_path: Path
) -> None:
    place = tmp_path / "new" / "store"
    (project / "broken.onnx").write_text("x")
    assert "was not uploaded" in run("upload", "broken.onnx", "--store", f"sqlite:{place}").sentence
    assert not place.exists()
    save_tiny(project / "net.onnx")
    said = run("upload", "net.onnx", "--store", f"sqlite:{place}")
    assert said.code == 0 and said.err == f"edgeloop: a new store was made at {place}.\n"
    said = run("upload", "net.onnx", "--store", f"sqlite:{place}")
    assert said.code == 0 and said.err == ""
    assert run("status", "--store", f"sqlite:{place}").code == 0


def test_the_store_of_a_project_needs_no_beginning(run: Command, project: Path) -> None:
    assert run("status").code == 0
    assert not (project / ".edgeloop").exists()
    save_tiny(project / "net.onnx")
    assert run("upload", "net.onnx").err == ""
    assert (project / ".edgeloop").stat().st_mode & 0o077 == 0


def test_a_disk_that_should_be_mounted_is_named_and_nothing_is_made_below_it(
    run: Command, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "fstab"
    disk = tmp_path / "a disk"
    disk.mkdir()
    place = str(disk).replace(" ", "\\040")
    table.write_text(f"# disks\nUUID=1 / ext4 defaults 0 1\nnas:/x {place} nfs4 noauto 0 0\n")
    assert unmounted_above(disk / "store", table) == disk
    assert unmounted_above(tmp_path / "else", table) is None
    assert unmounted_above(disk, tmp_path / "no table") is None
    monkeypatch.setattr(unmounted_above, "__defaults__", (table,))
    save_tiny(project / "net.onnx")
    for words in (["status"], ["upload", "net.onnx"]):
        said = run(*words, "--store", f"sqlite:{disk / 'store'}").sentence
        assert f"{disk} is not mounted" in said
    assert list(disk.iterdir()) == []


def test_files_that_are_not_mounted_are_said_by_those_who_need_them(
    run: Command, project: Path
) -> None:
    with Workspace.open() as workspace:
        workspace.upload(save_tiny(project / "net.onnx"), "calm-heron", check=False)
    (project / ".edgeloop" / "blobs").rename(project / "elsewhere")
    assert run("status").code == 0
    for words in (
        ["download", "--list", "calm-heron"],
        ["download", "calm-heron"],
        ["delete", "calm-heron", "--yes"],
    ):
        said = run(*words).sentence
        assert "their folder is missing, and may be on a disk" in said
        assert "check that it is mounted" in said and "server" not in said
    (project / "elsewhere").rename(project / ".edgeloop" / "blobs")
    assert run("delete", "calm-heron", "--yes").code == 0
