"""The Dockerfile of the container image, read; tests/fleet/test_image.py executes it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "deploy/docker"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's own, in order: keyword and the rest, with continued lines joined."""
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", text)
    return [
        (keyword, rest.strip())
        for keyword, _, rest in (line.partition(" ") for line in joined.splitlines())
        if keyword
    ]


def checked_by(tool: str, *files: Path) -> None:
    program = Path(sys.executable).parent / tool
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_linters_have_nothing_to_say() -> None:
    scripts = sorted(FOLDER.glob("install-*"))
    checked_by("hadolint", FOLDER / "Dockerfile")
    checked_by("shellcheck", *(path for path in scripts if "/sh" in path.open().readline()))


def test_a_build_takes_what_is_here_and_runs_only_scripts_of_the_repository() -> None:
    keyword, base = instructions()[0]
    assert keyword == "ARG"
    assert re.fullmatch(r"BASE=debian:bookworm-slim@sha256:[0-9a-f]{64}", base), "no registry"
    stages = {"scratch", "${BASE}"}
    copied = set()
    for keyword, rest in instructions():
        words = [word for word in shlex.split(rest) if not word.startswith("--")]
        if keyword == "FROM":
            assert words[0] in stages, f"{words[0]} is neither the base nor a stage before"
            stages.add(words[-1])
        elif keyword == "COPY" and "--from=" not in rest:
            sources = [REPOSITORY / word for word in words[:-1]]
            assert all(path.exists() for path in sources), rest
            copied |= {path.name for path in sources}
        elif keyword == "RUN":
            program, *_ = json.loads(rest[rest.index("[") :])
            assert Path(program).name in copied, f"{rest} runs something else"
    assert {path.name for path in FOLDER.glob("install-*")} <= copied
