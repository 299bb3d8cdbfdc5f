"""Runs what a page shows, in order and in one project, and compares what is printed."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from unittest import mock

from edgeloop.cli import main
from edgeloop.models.upload import OnnxFile, Uploader, friendly_names
from edgeloop.store import Record
from edgeloop.view.demo import demo_model
from tests.documented.page import ROOT, Shown
from tests.documented.scenes import AZURE_SCENES, SCENES

if TYPE_CHECKING:
    from tests.peers.azureml import AzureML

HOME = "/home/ada"
"""Where projects lie in the documentation; a page's project is `/home/ada/project`."""
COLUMNS = 100
_WORKSPACE = ("AZURE_SUBSCRIPTION_ID", "AML_RESOURCE_GROUP", "AML_WORKSPACE_NAME")
_SHELL = re.compile(r"[|&;<>$*`]|^(?!edgeloop )")
_MASKS = (
    (r"\b\d+(\.\d+)? (s|min)\b", "TIME"),
    (r"\b\d{8}-\d{6}\b|\b\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d)?", "DATE"),
    (r"\b\d+:\d\d(:\d\d)?\b", "TIME"),
    (r"\bprocess \d+", "process PID"),
    # Measured on the CPU of whatever machine this is, which also rounds in its own way.
    (r"^quantized, CPU .*", "quantized, CPU MEASURED"),
    (r"^((float|quantized|fp16), CPU .*?)[\d.]+ (ms|µs)", r"\1LATENCY"),
    (r"^host +.*", "host MEASURED"),
    # A training adds up in an order that depends on how many threads it has.
    (r"^(sweep-\d .* local +\d+) .*", r"\1 TRAINED"),
    # Latencies of a farm are timed here; a column has the unit that suits its values.
    (r"\blatency_(us|ms)\b", "latency"),
    # A table is as wide as its widest cell, which may be a time.
    (r"\s+", " "),
)


class Answers(io.StringIO):
    """A person at the keyboard, who says yes."""

    def isatty(self) -> bool:
        return True


class Project:
    """A folder with what a clone has, and one shell's worth of state."""

    def __init__(self, home: Path, cloud: AzureML | None = None) -> None:
        self.home = home
        self.cloud = cloud
        self.machines: dict[str, Project] = {}
        self.folder = home / "project"
        self.folder.mkdir(parents=True)
        (self.folder / "examples").symlink_to(ROOT / "examples")
        keep = {"EDGELOOP_STATE": str(home / "state"), "EDGELOOP_CACHE": str(home / "cache")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        keep["DEMO_MODELS"] = str(demo_model("unet-large").parent)
        look = {"TERM": "dumb", "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
        self.environ = {**os.environ, **keep, **look, "PATH": path, "HOME": str(home)}
        for name in _WORKSPACE:  # a page names its workspace in `.azureml/config.json`
            self.environ.pop(name, None)

    def prepare(self, line: str) -> None:
        """What a page needs and does not show."""
        scene = line.removeprefix("scene ")
        if scene in AZURE_SCENES:
            assert self.cloud is not None, "only tests start an emulated Azure ML"
            AZURE_SCENES[scene](self.folder, self.cloud)
            return
        if line.startswith("scene "):
            SCENES[scene](self.folder)
            return
        code, printed = self.run(line)
        assert code == 0, "\n".join([line, *printed])

    def run(self, line: str, ctrl_c_after: str = "") -> tuple[int, list[str]]:
        """The exit code and all that a terminal would show; questions are answered with yes."""
        with tempfile.TemporaryFile("w+") as screen:
            if ctrl_c_after:
                code = self._until_ctrl_c(line, ctrl_c_after, screen)
            elif self._is_for_shell(line):
                code = self._in_shell(line, screen)
            else:
                code = self._here(line, screen)
            screen.seek(0)
            text = screen.read().replace(str(self.home), HOME)
        return code, [part.rpartition("\r")[2].rstrip() for part in text.splitlines()]

    def _is_for_shell(self, line: str) -> bool:
        return _SHELL.search(line) is not None

    def _here(self, line: str, screen: TextIO) -> int:
        """In this process, which has imported everything already."""
        with self._as_a_process(shlex.split(line), screen):
            try:
                main()
            except SystemExit as end:
                return end.code if isinstance(end.code, int) else int(end.code is not None)
        return 0

    @contextlib.contextmanager
    def _as_a_process(self, words: list[str], screen: TextIO) -> Iterator[None]:
        handler = signal.getsignal(signal.SIGTERM)
        before = (dict(os.environ), Path.cwd(), sys.argv, sys.stdin, sys.stdout, sys.stderr)
        kept = [os.dup(number) for number in (1, 2)]
        handlers = logging.root.handlers
        try:
            os.environ.clear()
            os.environ.update(self.environ)
            os.chdir(self.folder)
            for number in (1, 2):
                os.dup2(screen.fileno(), number)
            sys.argv, sys.stdin = words, Answers("y\n" * 9)
            sys.stdout = sys.stderr = screen
            logging.root.handlers = []  # pytest's, which keep warnings to themselves
            with mock.patch.object(Uploader, "_reserve_friendly", _reserve_by_file):
                yield
        finally:
            screen.flush()
            logging.root.handlers = handlers
            for number, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, number)
                os.close(copy)
            environ, folder, sys.argv, sys.stdin, sys.stdout, sys.stderr = before
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environ)
            signal.signal(signal.SIGTERM, handler)

    def _until_ctrl_c(self, line: str, text: str, screen: TextIO) -> int:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + 240
            while process.poll() is None and time.monotonic() < deadline:
                if text in os.pread(screen.fileno(), 1 << 20, 0).decode(errors="replace"):
                    process.send_signal(signal.SIGINT)
                    break
                time.sleep(0.05)
            return process.wait(60)
        finally:
            process.kill()

    def _in_shell(self, line: str, screen: TextIO) -> int:
        """Bash, which tells where it was in the end, and with which variables."""
        told = self.home / "told"
        script = f"{line}\ncode=$?; {{ pwd -P; env -0; }} > {shlex.quote(str(told))}; exit $code"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environ,
            input="y\n" * 9,
            stdout=screen,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        folder, _, variables = told.read_text().partition("\n")
        self.folder = Path(folder)
        self.environ = dict(each.split("=", 1) for each in variables.split("\0") if "=" in each)
        return done.returncode


def _reserve_by_file(self: Uploader, file: OnnxFile, *rest: Any) -> Record | None:
    """The same name for the same file in every run, however many are uploaded at once."""
    names = friendly_names(random.Random(file.path.name))
    return self._reserve(file, next(names), *rest)


def difference(command: Shown, code: int, printed: list[str]) -> str:
    """ "" if the page shows what was printed: `…` stands for any text, or for any lines."""
    if code != command.exit_code:
        return "\n".join([f"$ {command.command}", f"ended with {code} and printed:", *printed])
    if not command.output or _pattern(command.output).fullmatch(_masked(printed)):
        return ""
    shown = "\n".join(command.output)
    actual = "\n".join(printed)
    return f"line {command.line}: $ {command.command}\nshown:\n{shown}\nprinted:\n{actual}"


def is_same(shown: Shown, elsewhere: Shown) -> bool:
    """Whether two pages show the same output; one of them may leave lines out."""
    if not shown.output:
        return True
    return bool(_pattern(shown.output).fullmatch(_masked(elsewhere.output)))


def _masked(lines: list[str]) -> str:
    masked = []
    for line in lines:
        for pattern, word in _MASKS:
            line = re.sub(pattern, word, line)  # noqa: PLW2901
        masked.append(line.strip())
    return "".join(f"{line}\n" for line in masked).strip("\n") + "\n"


def _pattern(shown: list[str]) -> re.Pattern[str]:
    text = _masked(shown)
    parts = [re.escape(part) for part in re.split(r"^…\n", text, flags=re.MULTILINE)]
    return re.compile("(?:.*\n)*".join(part.replace("…", ".*") for part in parts))
