"""The program inside every job: it lays out code and data, runs the command, and loses nothing.

Two processes, so that no single kill loses anything. The *front* is what a compute started: it
shows the log and hands signals on. The *keeper*, in a session of its own, does the work. Whichever
of them is killed, the other ends the command and copies what is there. All of this room needs the
standard library and obstore alone. docs/reference/inside-a-job.md tells what a script may count on.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] = ()) -> int:
    """Run the job that EDGELOOP_ORDER names; `salvage FOLDER` finishes one whose wrapper died."""
    from edgeloop.jobs.wrapper.launcher import main as front

    return front(list(arguments))
