"""A runner where containers run them: a user id that nobody knows, no home, a read-only root."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.server  # needs root, for namespaces and other user ids

REPOSITORY = Path(__file__).parents[2]
NET = REPOSITORY / "tests/data/nets/unet-w8.onnx"
UNKNOWN_USER = 54321

# As PID 1 of a container would see it: one folder is writable, everything else is not. What the
# interpreter lies below is opened to others first: it may be a folder of root's.
INSIDE = """
set -e
mount --make-rprivate /
if [ -n "$CLOSED" ]; then
    mkdir "$WRITABLE/python" && mount --bind "$PYTHON_HOME" "$WRITABLE/python"
    mount -t tmpfs -o mode=755 none "$CLOSED"
    mkdir -p "$PYTHON_HOME" && mount --move "$WRITABLE/python" "$PYTHON_HOME"
    rmdir "$WRITABLE/python"
fi
mount --bind "$WRITABLE" "$WRITABLE"
awk '{print $5}' /proc/self/mountinfo | while read place; do
    [ "$place" = "$WRITABLE" ] || mount -o remount,bind,ro "$place" 2> /dev/null || true
done
cd /
exec setpriv --reuid=$USER_ID --regid=$USER_ID --clear-groups --inh-caps=-all --bounding-set=-all \
    --no-new-privs "$@"
"""


@pytest.fixture
def writable() -> Iterator[Path]:
    """Not below pytest's own folder, which only root may enter."""
    folder = Path(tempfile.mkdtemp(prefix="edgeloop-test-"))
    folder.chmod(0o755)
    shutil.chown(folder, UNKNOWN_USER, UNKNOWN_USER)
    yield folder
    shutil.rmtree(folder)


def closed_part(path: Path) -> str:
    """The outermost folder around `path` that others may not enter; empty if there is none."""
    outside_in = reversed(path.parents)
    return next((str(folder) for folder in outside_in if not folder.stat().st_mode & 1), "")


def inside(writable: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    home = Path(sys.base_prefix).resolve()
    environ = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "WRITABLE": str(writable),
        "CLOSED": closed_part(home),
        "PYTHON_HOME": str(home),
        "USER_ID": str(UNKNOWN_USER),
        **environ,
    }
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", INSIDE, "sh", sys.executable, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_model_is_drained_by_an_unknown_user_with_one_writable_folder(writable: Path) -> None:
    """Everything goes below the folders that the environment names; HOME does not exist."""
    environ = {
        "HOME": "/nonexistent",
        "EDGELOOP_STORE": f"sqlite:{writable}/store",
        "EDGELOOP_WORKDIR": f"{writable}/work",
        "EDGELOOP_CACHE": f"{writable}/cache",
        "EDGELOOP_STATE": f"{writable}/state",
        "EDGELOOP_HEALTH": f"{writable}/health/file",
        "TMPDIR": str(writable),
    }
    script = f"""
import os, pwd, subprocess, sys
for place in ({str(REPOSITORY)!r}, "/tmp", os.environ["HOME"], "."):
    try:
        open(os.path.join(place, "made"), "w")
        sys.exit(f"{{place}} is writable")
    except OSError:
        pass
try:
    sys.exit(f"{{pwd.getpwuid(os.getuid())}} is known")
except KeyError:
    pass
def edgeloop(*words):
    command = [sys.executable, "-m", "edgeloop", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    print(*words, done.returncode, done.stdout, done.stderr, flush=True)
edgeloop("upload", {str(NET)!r}, "--name", "net")
few = ("--calibration-images", "4", "--quick-images", "4", "--thorough-images", "4")
edgeloop("runner", "--device", "htp", "--drain", "--cpus", "1", *few)
edgeloop("status", "--json")
for name in ("HOME", "EDGELOOP_WORKDIR", "EDGELOOP_STATE"):
    del os.environ[name]
edgeloop("runner", "--once")
from edgeloop.jobs.records import submitter
from edgeloop.settings import state_folder
print(submitter().partition("@")[0], state_folder())
"""
    done = inside(writable, "-c", script, **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Models: 1 done, 0 failed, 0 left." in done.stdout, done.stdout + done.stderr
    assert '"complete"' in done.stdout, done.stdout
    assert "/.edgeloop/work: Read-only file system: choose another folder with" in done.stdout
    assert f"unknown {writable}/edgeloop-{UNKNOWN_USER}" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
