"""Set-up from a copy of the tree: what each command would install, and what installers do about
locks, broken downloads and machines on which they can install nothing."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from edgeloop.testing import wait_until
from tests.setup.copies import ROOT, copy_tree

pytestmark = pytest.mark.slow

LIMIT_S = 120
DEMO = {"install-python", "make-venv .venv demo"}
UNIT = {"install-python", "make-venv .venv all"}
TEST = UNIT | {
    *("install-servers test", "install-azurite .tools/azurite"),
    *("install-adbd .tools/adbd", "install-keda .tools/keda", "install-archai .tools/archai"),
}
SOAK = {
    *("install-servers soak", "install-interpreters .tools/pythons", "build-image .tools/image"),
}


def bare_environ() -> dict[str, str]:
    """Without the options of a `make` that runs these tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tree(tmp_path_factory.mktemp("setup") / "tree")


def installed_by(tree: Path, target: str) -> set[str]:
    """What `make` would install for a target where nothing is."""
    done = subprocess.run(
        ["make", "-n", target],
        cwd=tree,
        env=bare_environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"scripts/once \S+ (?:\S+ )?scripts/([\w-]+(?: [\w./-]+)*)", done.stdout))


@pytest.mark.parametrize(
    ("target", "steps"),
    [
        ("demo", DEMO),
        ("unit", UNIT),
        ("test", TEST),
        ("soak", TEST | SOAK),
        ("setup", TEST | SOAK),
    ],
)
def test_a_command_installs_what_it_uses_and_nothing_else(tree: Path, target: str, steps: set[str]):
    assert not (tree / ".git").exists()
    assert installed_by(tree, target) == steps
    for step in steps:
        assert os.access(tree / "scripts" / step.split()[0], os.X_OK)


def test_nothing_is_left_to_install_where_all_stamps_are_there(tree: Path, tmp_path: Path):
    ready = tmp_path / "tree"
    shutil.copytree(tree, ready, ignore=shutil.ignore_patterns("tests", "docs", "bench"))
    stamps = re.findall(
        r"^[A-Z_]+ := ((?:\.tools|\$\(VENV\)).*/\.ready\S*)$", make_text(), re.MULTILINE
    )
    assert len(stamps) == 11
    for stamp in stamps:
        file = ready / stamp.replace("$(VENV)", ".venv")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for target in ("demo", "unit", "test", "soak"):
        assert installed_by(ready, target) == set()
    (ready / "constraints.txt").touch()
    assert installed_by(ready, "demo") == {"make-venv .venv demo"}


def make_text() -> str:
    return (ROOT / "Makefile").read_text()


def test_shellcheck_has_no_complaint_about_the_scripts():
    scripts = [
        path
        for path in (ROOT / ".ci/run", *(ROOT / "scripts").iterdir())
        if path.is_file() and path.read_text().startswith("#!/usr/bin/env bash")
    ]
    assert len(scripts) > 8
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# Two runs in one clone.


def test_two_runs_in_one_clone_install_once(tmp_path: Path):
    step = "echo made >> made; until [ -e go ]; do sleep 0.05; done"
    command = [ROOT / "scripts/once", ".tools/thing/.ready", "sh", "-c", step]
    runs = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) for _ in range(2)]
    wait_until((tmp_path / "made").exists, LIMIT_S, "the first run to install")
    wait_until(lambda: any(waits_for_a_lock(run.pid) for run in runs), LIMIT_S, "the other")
    (tmp_path / "go").touch()
    said = [run.communicate(timeout=LIMIT_S)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert (tmp_path / "made").read_text() == "made\n"
    assert sorted(bool(text) for text in said) == [False, True]


def test_a_step_that_fails_has_no_stamp(tmp_path: Path):
    command = [ROOT / "scripts/once", ".tools/thing/.ready", "false"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 1
    assert not (tmp_path / ".tools/thing/.ready").exists()


def waits_for_a_lock(parent: int) -> bool:
    """Whether a process has a child that waits in flock(1)."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return any(Path(f"/proc/{pid}/comm").read_text() == "flock\n" for pid in children)


# apt, with folders, packages and locks of its own.


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A folder with all that apt and dpkg write, and an archive with the package `edgeloop-test`;
    APT_CONFIG leads apt to it."""
    root = tmp_path / "system"
    for folder in ("lists/partial", "cache/archives/partial", "dpkg/info", "dpkg/updates", "repo"):
        (root / folder).mkdir(parents=True)
    (root / "dpkg/status").touch()
    control = tmp_path / "package/DEBIAN/control"
    control.parent.mkdir(parents=True)
    control.write_text(
        "Package: edgeloop-test\nVersion: 1\nArchitecture: all\n"
        "Maintainer: Tests <tests@example.com>\nDescription: nothing\n"
    )
    deb = root / "repo/edgeloop-test.deb"
    build = ["dpkg-deb", "--build", "--root-owner-group", control.parents[1], deb]
    subprocess.run(build, check=True, capture_output=True)
    scan = ["dpkg-scanpackages", "."]
    listed = subprocess.run(scan, cwd=root / "repo", capture_output=True, check=True)
    (root / "repo/Packages").write_bytes(listed.stdout)
    (root / "sources.list").write_text(f"deb [trusted=yes] file:{root}/repo ./\n")
    (root / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{root}/sources.list";\nDir::Etc::sourceparts "-";\n'
        f'Dir::State::lists "{root}/lists";\nDir::State::status "{root}/dpkg/status";\n'
        f'Dir::Cache "{root}/cache";\nAPT::Sandbox::User "root";\n'
        f'DPkg::Options {{ "--admindir={root}/dpkg"; "--instdir={root}"; "--log={root}/log"; }};\n'
        'DPkg::Pre-Install-Pkgs ""; DPkg::Post-Invoke ""; APT::Update::Post-Invoke "";\n'
        "#clear DPkg::Pre-Install-Pkgs;\n#clear DPkg::Post-Invoke;\n"
        "#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n"
    )
    return root


@contextmanager
def held(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def start_apt(archive: Path, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [ROOT / "scripts/apt-install", "edgeloop-test"],
        env={**os.environ, "APT_CONFIG": str(archive / "apt.conf"), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.server  # only root may install packages
@pytest.mark.parametrize("lock", ["lists/lock", "cache/archives/lock", "dpkg/lock-frontend"])
def test_apt_waits_until_another_package_manager_has_released_its_lock(archive: Path, lock: str):
    with held(archive / lock):
        run = start_apt(archive, APT_LOCK_STEP_S="1")
        assert run.stderr is not None
        said = run.stderr.readline()
        assert said.startswith("make setup: waiting for another package manager: ")
        assert str(archive / lock) in said
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    assert "install ok installed" in (archive / "dpkg/status").read_text()


@pytest.mark.server
def test_apt_says_so_when_a_lock_is_never_released(archive: Path):
    with held(archive / "lists/lock"):
        run = start_apt(archive, APT_LIMIT_S="0")
        _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 1
    assert said == (
        "make setup: another package manager kept its lock for 0 s, so edgeloop-test could not be"
        " installed; as root: apt-get update && apt-get install --no-install-recommends"
        " edgeloop-test\n"
    )


@pytest.mark.server
def test_apt_tries_a_broken_download_again(archive: Path):
    """The archive gets its package while the second attempt is made."""
    deb = archive / "repo/edgeloop-test.deb"
    deb.rename(archive / "later.deb")
    mend = f"mv {archive}/later.deb {deb}\n"
    programs = stand_in(archive, "sleep", f"#!/bin/sh\necho slept >>{archive}/slept\n{mend}")
    run = start_apt(archive, PATH=f"{programs}:{os.environ['PATH']}")
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    assert (archive / "slept").read_text() == "slept\n"


# Machines on which nothing can be installed, with stand-ins for the programs that say so.


def stand_in(folder: Path, name: str, text: str) -> Path:
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / name).write_text(text)
    (programs / name).chmod(0o755)
    return programs


def only(folder: Path, *names: str) -> Path:
    """A PATH on which there is nothing else."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in names:
        if not (programs / name).exists():
            found = shutil.which(name)
            assert found is not None, name
            (programs / name).symlink_to(found)
    return programs


def fails_with(sentence: str, *command: str | Path, folder: Path, **environ: str) -> None:
    done = subprocess.run(
        [*command],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    said = done.stderr.splitlines()
    assert done.returncode == 1, done.stderr
    assert re.fullmatch(f"make setup: {sentence}", said[-1]), done.stderr
    assert "Traceback" not in done.stderr


BASIC = ("flock", "bash", "env", "mktemp", "rm", "grep", "tail", "sleep", "dirname", "mkdir", "cat")


def without_apt(folder: Path) -> None:
    only(folder, *BASIC)


def without_root(folder: Path) -> None:
    stand_in(folder, "id", "#!/bin/sh\necho 1000\n")
    stand_in(folder, "apt-get", "#!/bin/sh\nexit 99\n")
    only(folder, *BASIC)


def without_network(folder: Path) -> None:
    stand_in(folder, "id", "#!/bin/sh\necho 0\n")
    stand_in(folder, "sleep", "#!/bin/sh\n")
    said = "echo 'E: Failed to fetch http://debian.test/x  Could not resolve' >&2"
    stand_in(folder, "apt-get", f"#!/bin/sh\necho asked >>{folder}/asked\n{said}\nexit 100\n")
    only(folder, *BASIC)


@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        (without_apt, "missing adb clang, and there is no apt-get to install them; as root: .*"),
        (without_root, "missing adb clang, and only root may install them; as root: .* adb clang"),
        (
            without_network,
            "apt-get could not install adb clang: E: Failed to fetch .*; as root: .* adb clang",
        ),
    ],
)
def test_apt_says_in_one_sentence_what_is_missing(
    tmp_path: Path, machine: Callable[[Path], None], sentence: str
):
    machine(tmp_path)
    path = str(tmp_path / "programs")
    script = ROOT / "scripts/apt-install"
    fails_with(sentence, script, "adb", "clang", folder=tmp_path, PATH=path)
    if machine is without_network:
        assert (tmp_path / "asked").read_text().count("asked") == 6  # three times update, install


def test_pip_without_a_network_says_so_in_one_sentence(tmp_path: Path):
    fake = f"#!/bin/sh\ncase $* in *pip*) echo asked >>{tmp_path}/asked;" + (
        " echo 'ERROR: Connection broken' >&2; exit 1;; esac\n"
        'case $* in *venv*) mkdir -p .venv/bin; cp "$0" .venv/bin/python;; esac\n'
    )
    programs = stand_in(tmp_path, "python", fake)
    stand_in(tmp_path, "sleep", "#!/bin/sh\n")
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    fails_with(
        r"pip could not install what Edgeloop needs: check the network, or the index that pip is"
        r" configured for, and run make again; \.venv/pip\.log has all that it said\.",
        *(ROOT / "scripts/make-venv", ".venv", "demo"),
        folder=tmp_path,
        PYTHON="python",
        PATH=f"{programs}:{os.environ['PATH']}",
    )
    assert (tmp_path / "asked").read_text().count("asked") == 3


def test_npm_without_a_network_says_so_in_one_sentence(tmp_path: Path):
    programs = stand_in(tmp_path, "npm", "#!/bin/sh\necho 'npm ERR! network' >&2\nexit 1\n")
    fails_with(
        r"npm could not install azurite@.*: check the network, or the registry .*, and run make .*",
        *(ROOT / "scripts/install-azurite", tmp_path / "azurite"),
        folder=tmp_path,
        PATH=f"{programs}:{os.environ['PATH']}",
    )


def test_archai_that_cannot_be_had_is_said_in_one_sentence(tmp_path: Path):
    fails_with(
        r"pip could not install archai: check the network, or the index .*, and run make again\.",
        *(ROOT / "scripts/install-archai", tmp_path / "archai"),
        folder=tmp_path,
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS="",
    )


def test_other_pythons_without_a_network_fail_the_set_up(tmp_path: Path):
    """A proxy that no one listens on is what a broken network looks like."""
    programs = stand_in(tmp_path, "patchelf", "#!/bin/sh\n")
    fails_with(
        r"could not install Python 3\.8 for tests \(.*\): check the network, and run make again\.",
        *(sys.executable, ROOT / "scripts/install-interpreters", tmp_path / "pythons"),
        folder=tmp_path,
        PATH=f"{programs}:{os.environ['PATH']}",
        CACHE=str(tmp_path / "cache"),
        **{"https_proxy": "http://127.0.0.1:9", "no_proxy": ""},
    )


# The run itself.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_make_ends_the_tests_and_all_that_they_started(
    tmp_path: Path, number: signal.Signals
):
    test = tmp_path / "test_it.py"
    test.write_text(
        "import subprocess, time\n"
        "def test_it():\n"
        "    server = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"    open('{tmp_path}/server', 'w').write(str(server.pid))\n"
        "    time.sleep(1000)\n"
    )
    makefile = tmp_path / "Makefile"
    recipe = re.search(r"^\t(@scripts/run-tests .*--tier test .*)$", make_text(), re.MULTILINE)
    assert recipe is not None
    makefile.write_text(f"BIN := {Path(sys.executable).parent}\ntest:\n\t{recipe[1]}\n")
    options = (
        f"{test} --rootdir {ROOT} -c {ROOT}/pyproject.toml -p tests.conftest -p no:cacheprovider"
    )
    run = subprocess.Popen(
        ["make", "-f", makefile, "test", "WORKERS=1", f"ARGS={options}"],
        cwd=ROOT,
        env=bare_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    written = tmp_path / "server"
    wait_until(lambda: written.exists() and written.read_text() != "", LIMIT_S, "the test")
    if number == signal.SIGINT:
        os.killpg(run.pid, number)  # as a terminal does
    else:
        run.send_signal(number)
    run.communicate(timeout=LIMIT_S)
    server = int(written.read_text())
    wait_until(lambda: not is_alive(server), LIMIT_S, "the server to end")
    assert run.returncode != 0


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_every_package_takes_the_python_of_debian_12():
    """A pin that wants a newer patch release cannot be installed on a fresh machine."""
    wanted = {d.name: d.metadata["Requires-Python"] for d in distributions()}
    assert len(wanted) > 100
    too_new = {n: text for n, text in wanted.items() if text and "3.11.2" not in SpecifierSet(text)}
    assert not too_new


# Long by nature: both commands' set-up for real.


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_both_commands_are_set_up_from_a_copy_without_history(tree: Path):
    """What apt has installed already is there; everything else is made in the copy. The demo starts
    with its own small environment, before the tests' one is made."""
    cache = os.environ.get("CACHE", str(ROOT / ".tools/cache"))
    make = ["make", "-j3", f"CACHE={cache}"]

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tree, env=bare_environ(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(*make, "setup-demo")
    python = tree / ".venv/bin/python"
    assert "--folder" in run(python, "examples/demo.py", "--help")
    installed = json.loads(run(python, "-m", "pip", "list", "--format=json"))
    assert "pytest" not in {package["name"] for package in installed}
    run(*make, "setup-test")
    assert (tree / ".tools/adbd/adbd").is_file()
    collected = run(python, "-m", "pytest", "--tier", "test", "--collect-only", "-q", "tests/store")
    assert re.search(r"^\d+(/\d+)? tests collected", collected, re.MULTILINE)
    again = run("make", f"CACHE={cache}", "test", "ARGS=--collect-only -q tests/test_pareto.py")
    assert "make setup" not in again and "test_pareto" in again
