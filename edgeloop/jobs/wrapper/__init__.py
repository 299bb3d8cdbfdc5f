"""The program inside every job: it lays out code and data, runs the command, and loses nothing.

Two processes, so that no single kill loses anything. The *front* is what a compute started: it
shows the log and hands signals on. The *keeper*, in a session of its own, does the work. Whichever
of them is killed, the other ends the command and copies what is there. docs/jobs-inside.md tells
what a script may count on. All of this room needs the standard library and obstore alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.store import Blobs

__all__ = ["main", "salvage"]


def main(arguments: Sequence[str] = ()) -> int:
    """Run the job that EDGELOOP_ORDER names; `salvage FOLDER` finishes one whose wrapper died."""
    from edgeloop.jobs.wrapper.front import main as front

    return front(list(arguments))


def salvage(folder: Path, blobs: Blobs, reason: str) -> bool:
    """Finish a job whose wrapper died, out of the scratch folder it left: what still runs of it is
    ended, outputs and log go to the store, the state becomes failed. False where it still runs."""
    from edgeloop.jobs.wrapper.salvage import salvage as finish

    return finish(folder, blobs, reason)
