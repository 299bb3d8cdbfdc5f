"""Secrets that a test plants, and a search for them in all that others can see."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

from edgeloop.jobs.client import Jobs
from edgeloop.operate.secrets import SecretScan

WORD = "Kx7-planted-Q9z"
LITERAL, NAMED = f"{WORD}-literal", f"{WORD}-named"
ENVIRON = {"CODE_WORD": NAMED}
OPTIONS = ("--env", f"WANDB_API_KEY={LITERAL}", "--env", "MODE=fast", "--secret", "CODE_WORD")
PRIVATE = ("ticket.json", "order.json")  # of a job in the store: its node reads its secrets there

# Sees that it has them, prints them, and writes down all that a list of processes shows meanwhile.
SCRIPT = """\
import os, pathlib
assert os.environ["WANDB_API_KEY"].endswith("literal"), "the literal one"
assert os.environ["CODE_WORD"].endswith("named"), "the named one"
lines = []
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        lines.append((process / "cmdline").read_bytes().replace(b"\\0", b" "))
    except OSError:
        pass
asked = [b"--env", b"WANDB_API_KEY"]  # what somebody types themselves is in the list
kept = [line for line in lines if not all(word in line for word in asked)]
pathlib.Path("outputs/processes.txt").write_bytes(b"\\n".join(kept))
print(len(kept), "processes", [os.environ[name] for name in ("WANDB_API_KEY", "CODE_WORD")])
os.write(2, os.environ["CODE_WORD"][:8].encode())
os.write(2, os.environ["CODE_WORD"][8:].encode() + b" is masked\\n")
"""


def leaks(
    project: Path, jobs: Jobs, others: Mapping[str, object], known: Mapping[str, str] | None = None
) -> list[str]:
    """Where planted secrets, these, or anything that looks like one can be read: in the project, in
    the store, and in `others`."""
    scan = SecretScan({"a planted one": WORD, **(known or {})})
    found = [leak.sentence for leak in scan.path(project)]
    for info in jobs.blobs.list(""):
        if not info.key.endswith(PRIVATE):
            found += [leak.sentence for leak in scan.stream(_opened(jobs, info.key), info.key)]
    for name, content in others.items():
        text = content if isinstance(content, str) else json.dumps(content, default=str)
        found += [leak.sentence for leak in scan.stream(io.BytesIO(text.encode()), name)]
    return found


def _opened(jobs: Jobs, key: str) -> io.BytesIO:
    return io.BytesIO(jobs.blobs.read(key))
