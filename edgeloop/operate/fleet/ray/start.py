"""`python -m edgeloop.operate.fleet.ray.start`: the job that starts the supervisor of a fleet.

It runs on a node that may have nothing but Ray, creates the detached actor, and ends when the
supervisor has taken over. Its last line says why if that does not come to be.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgeloop.operate.fleet.ray.node import (
    ORDER_FILE,
    SUPERVISOR,
    Shipment,
    connect,
    create_actor,
    forget_job,
)

_POLL_S = 0.2
_FAILURES = 3  # how often its process may end before this job gives up


def main() -> None:
    file = Path(ORDER_FILE)
    text = file.read_text(encoding="utf-8")
    file.unlink()
    shipment = Shipment.from_json(text)
    forget_job()
    connect(shipment)
    _end_supervisor()
    actor = create_actor(SUPERVISOR, [text])
    reason = _awaited(actor)
    if reason:
        _end_supervisor()
        sys.exit(f"edgeloop: {reason}")


def _end_supervisor() -> None:
    """One that cannot work, perhaps with a password that is no longer valid. Its runners go on, and
    the next one adopts them."""
    import ray

    with suppress(ValueError):
        ray.kill(ray.get_actor(SUPERVISOR))
        while True:
            ray.get_actor(SUPERVISOR)  # raises ValueError when it is gone
            time.sleep(_POLL_S)


def _awaited(actor: Any) -> str:
    """Until it has taken over; else why not. A node that is made ready may take minutes."""
    import ray

    note, failures = "", 0
    while True:
        try:
            status = ray.get(actor.status.remote())
        except ray.exceptions.ActorUnavailableError:
            time.sleep(_POLL_S)
            continue
        except ray.exceptions.RayError as error:
            return (str(error).strip() or type(error).__name__).splitlines()[0]
        if status["ready"] or status["state"] == "ended":
            return ""
        if status["note"] and status["note"] != note:
            note = status["note"]
            failures += 1
            sys.stderr.write(f"{note}\n")
        if status["unfit"] or failures > _FAILURES:
            return f"the supervisor does not start: {note}"
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
