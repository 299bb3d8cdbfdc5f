"""The program inside every job: it lays out code and data, runs the command, and loses nothing.

Two processes, so that no single kill loses anything. The *launcher* is what a compute started: it
shows the log and forwards signals. The *supervisor*, in a session of its own, does the work. If one
is killed, the other ends the command and copies what is there. This package needs only the standard
library of Python 3.8. docs/reference/inside-a-job.md says what a script can rely on.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] = ()) -> int:
    """Run the job that EDGELOOP_ORDER names; `recover FOLDER` finishes one whose wrapper died."""
    from edgeloop.jobs.wrapper import launcher

    return launcher.main(list(arguments))
