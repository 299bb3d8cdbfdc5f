"""Windows has no POSIX modules, users or signals: all but evaluation is imported there, and what
cannot work says so. Not tested on Windows itself; `test_portable.py` is about macOS."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "edgeloop"
POSIX_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
IMPORTS = re.compile(rf"^\s*(import|from)\b.*\b({'|'.join(POSIX_MODULES)})\b", re.MULTILINE)
LINUX_ONLY = {"fleet", "isolation", "platforms", "runner", "search", "training", "tuning"}

# The standard library and others decide by `sys.platform` what to import, so it stays as it is, and
# they are imported before anything is hidden.
HIDE = f"""
import asyncio, concurrent.futures.process, multiprocessing, numpy, os, signal, subprocess, sys

sys.modules.update(dict.fromkeys({sorted(POSIX_MODULES)}))
for name in (
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "O_DSYNC", "P_ALL"),
    *("WEXITED", "WNOHANG", "WNOWAIT", "chown", "fchmod", "fchown", "fork", "getegid", "geteuid"),
    *("getgid", "getloadavg", "getpgid", "getpriority", "getuid", "initgroups", "killpg", "lchown"),
    *("mkfifo", "nice", "openpty", "pidfd_open", "posix_fadvise", "pread", "preadv", "pwrite"),
    *("sched_getaffinity", "sched_setaffinity", "sendfile", "setpgid", "setsid", "statvfs"),
    *("sysconf", "uname", "waitid"),
):
    if hasattr(os, name):
        delattr(os, name)
os.supports_dir_fd.clear()
for name in dir(signal):
    is_signal = name.startswith("SIG") and not name.startswith("SIG_")
    if is_signal and name not in ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"):
        delattr(signal, name)
for name in ("alarm", "pidfd_send_signal", "pthread_kill", "pthread_sigmask", "setitimer"):
    if hasattr(signal, name):
        delattr(signal, name)
"""

FILES = [file.relative_to(PACKAGE.parent) for file in sorted(PACKAGE.rglob("*.py"))]
MODULES = [
    ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    for file in FILES
    if file.parts[1] not in LINUX_ONLY and file.stem != "__main__"
]
IMPORT = f"import importlib\nfor name in {MODULES}: importlib.import_module(name)\n"

USE = """
from pathlib import Path
from edgeloop._util.files import read_regular, write_private
from edgeloop._util.files import ScratchFolder, file_lock, home_folder, own_folder
from edgeloop._util.system import is_running, native_memory_bytes
from edgeloop.node.ledger import ScannedFile, read_piece
from edgeloop.node.ledger import scan
from edgeloop.errors import ComputeRefused, StoreError
from edgeloop.jobs.computes.local import LocalCompute, LocalOptions
from edgeloop.node.ticket import Resources
from edgeloop.view.portal.server import MOST_CONNECTIONS, usable_connections
from edgeloop.view.portal.tokens import own_token
from edgeloop.settings import check_owner
from edgeloop.node.files import FolderBlobs

here = Path.cwd()
with file_lock(here / "lock"), file_lock(own_folder(here / "own")):
    ScratchFolder(here / "scratch").close()
    ScratchFolder(here / "scratch").close()
write_private(here / "file", b"a\\r\\n")
assert read_regular(here / "file", 9) == b"a\\r\\n"
[file] = [file for file in scan(here) if file.path == "file"]
assert read_piece(here, file, 0) == b"a\\r\\n"
token = own_token(folder=here)
token.file.chmod(0o666)  # as Windows shows every file
assert own_token(folder=here) == token
check_owner(here, is_here=True)
assert home_folder({"HOME": ""}) and usable_connections() == MOST_CONNECTIONS
assert native_memory_bytes({}) > 0
os.name = "nt"  # signal 0 must not be sent: it is Ctrl-C
os.kill = None
assert is_running(os.getpid())
os.name = "posix"
for refused, said, use in (
    (StoreError, "PostgreSQL", lambda: FolderBlobs(here / "blobs").put("key", b"")),
    (ComputeRefused, "another machine", lambda: LocalCompute(
        "local", LocalOptions(), here / "queue").check(Resources())),
):
    try:
        use()
    except refused as error:
        assert said in str(error), error
    else:
        raise AssertionError(refused)
"""


@pytest.mark.slow
def test_all_but_evaluation_is_imported_and_used_without_posix(tmp_path: Path):
    folders = {"EDGELOOP_STATE": str(tmp_path / "state"), "EDGELOOP_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", HIDE + IMPORT + USE],
        cwd=tmp_path,
        env={**os.environ, **folders},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_posix_modules_are_imported_in_functions_or_may_be_missing():
    found = []
    for file in FILES:
        source = (PACKAGE.parent / file).read_text(encoding="utf-8")
        if IMPORTS.search(source):
            names = unguarded(ast.parse(source).body)
            found += [f"{file}: {name}" for name in names & POSIX_MODULES]
    assert found == []
    guarded = "try:\n import fcntl\nexcept ImportError:\n fcntl = None\ndef f():\n import pwd"
    assert unguarded(ast.parse(guarded).body) == set()
    assert unguarded(ast.parse("if 1:\n import pwd\nfrom grp import getgrnam").body) == {
        *("pwd", "grp"),
    }


def unguarded(statements: list[ast.stmt]) -> set[str]:
    """What a module cannot be imported without."""
    names: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.Import):
            names |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            names.add(statement.module or "")
        elif isinstance(statement, ast.If | ast.With | ast.ClassDef):
            names |= unguarded([*statement.body, *getattr(statement, "orelse", [])])
    return names
