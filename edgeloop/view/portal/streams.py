"""Server-sent events: changes of the table and output of jobs, as they happen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from edgeloop._util.redact import redact
from edgeloop.errors import EdgeloopError
from edgeloop.view.portal.feed import Feed
from edgeloop.view.portal.views.jobs import job_log

if TYPE_CHECKING:
    from edgeloop.view.portal.state import Portal

HEARTBEAT_S = 15.0
LOOK_S = 0.5  # how often to check a log, and whether the portal is closing
AGAIN_MS = 2_000
LOG_BYTES = 256 << 10


async def changes(portal: Portal, experiment: str | None, after: str) -> AsyncIterator[str]:
    """The first event summarises what happened since `after`."""
    feed = await run_in_threadpool(portal.feed, experiment)
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def hear() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(woken.set)

    end = feed.listen(hear)
    try:
        yield f"retry: {AGAIN_MS}\n\n"
        which, _, number = after.rpartition("-")
        is_ours = which == feed.id and number.isdecimal() and len(number) < 16
        sent = int(number) if is_ours else None
        silent = 0.0
        while not portal.closing.is_set() and not feed.is_stopped:
            now = feed.snapshot.generation
            if sent != now:
                yield _event(feed, -1 if sent is None else sent)
                sent, silent = now, 0.0
            woken.clear()
            if feed.snapshot.generation != sent:
                continue
            try:
                await asyncio.wait_for(woken.wait(), LOOK_S)
            except TimeoutError:
                silent += LOOK_S
            if silent >= HEARTBEAT_S:
                silent = 0.0
                yield ": still here\n\n"
    finally:
        end()


async def log(portal: Portal, name: str, offset: int) -> AsyncIterator[str]:
    """Parts of a log until the job is over. A store that is away only delays them."""
    yield f"retry: {AGAIN_MS}\n\n"
    silent = 0.0
    while not portal.closing.is_set():
        try:
            part = await run_in_threadpool(job_log, portal, name, offset, LOG_BYTES)
        except EdgeloopError as error:
            yield _message("trouble", str(offset), {"reason": redact(str(error))})
            await asyncio.sleep(AGAIN_MS / 1000)
            continue
        if part.end > part.start:
            offset, silent = part.end, 0.0
            content = {"start": part.start, "end": part.end, "size": part.size, "text": part.text}
            yield _message("log", str(offset), content)
            continue
        if part.is_final:
            yield _message("end", str(offset), {"size": part.size})
            return
        await asyncio.sleep(LOOK_S)
        silent += LOOK_S
        if silent >= HEARTBEAT_S:
            silent = 0.0
            yield ": still here\n\n"


def _event(feed: Feed, generation: int) -> str:
    change = feed.since(generation)
    identity = f"{feed.id}-{change.generation}"
    content = {
        "event": identity,
        "changed": sorted(change.changed),
        "gone": sorted(change.gone),
        "all": change.is_all,
        "banner": feed.snapshot.problem,
        "read_at": feed.read_at,
    }
    return _message("change", identity, content)


def _message(kind: str, identity: str, content: object) -> str:
    """JSON escapes line breaks, so it is one line."""
    return f"event: {kind}\nid: {identity}\ndata: {json.dumps(content)}\n\n"
