"""Retries: exponential backoff with jitter, and always an end.

`retry` repeats what may succeed a moment later. `RateLimit` is for services that answer 429 or 503,
often with the time to wait: asking again at once makes it worse, and so do a thousand runners that
return in the same second. So there is one pause per service and process, and each thread leaves it
at a random moment.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

Result = TypeVar("Result")

LIMITING = frozenset({429, 503})
LONGEST_PAUSE_S = 60.0  # whatever a service asks for
PATIENCE_S = 120.0  # how long one request is repeated
FIRST_PAUSE_S = 0.5  # where a service does not say how long, and twice that each time
LONGEST_GUESS_S = 30.0
SPREAD = 0.25  # pauses are up to this much longer, so that processes do not come back in step
LONGEST_SPREAD_S = 5.0


def delays(first_s: float = 0.5, longest_s: float = 15.0) -> Iterator[float]:
    """Exponential backoff: each delay is twice the one before, up to `longest_s`."""
    delay = first_s
    while True:
        yield delay
        delay = min(2 * delay, longest_s)


def retry(
    action: Callable[[], Result],
    on: type[Exception] | tuple[type[Exception], ...],
    patience_s: float,
    first_s: float = 0.5,
    longest_s: float = 15.0,
    most_tries: int | None = None,
    unless: Callable[[Exception], bool] = lambda error: False,
) -> Result:
    """The result of `action`, which is repeated after errors of the kinds in `on`.

    Such an error is raised once `patience_s` have passed, at the last of `most_tries`, and at once
    if `unless` says so. Any other error is raised at once.
    """
    deadline = time.monotonic() + patience_s
    for tries, delay in enumerate(delays(first_s, longest_s), start=1):
        try:
            return action()
        except on as error:
            left = deadline - time.monotonic()
            if left <= 0 or tries == most_tries or unless(error):
                raise
        # Jitter: processes that failed at the same moment should not return at the same moment.
        time.sleep(min(delay * random.uniform(0.5, 1.0), left))
    raise AssertionError("delays never end")


class RateLimit:
    """The pause that one service asked this process for. For any number of threads."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._until = 0.0
        self._pauses = 0  # in a row

    @property
    def is_paused(self) -> bool:
        return self._clock() < self._until

    def keep(
        self,
        send: Callable[[], Result],
        pause_of: Callable[[Result], float | None],
        patience_s: float | None = None,
    ) -> Result:
        """What `send` returns, sent again after every pause. `pause_of` an answer is how long the
        service asks to wait, 0 where it does not say, and None if it does not limit us. An answer
        that still does after `patience_s` is returned."""
        deadline = self._clock() + (PATIENCE_S if patience_s is None else patience_s)
        while True:
            self._wait(deadline)
            answer = send()
            asked_s = pause_of(answer)
            if asked_s is None:
                self._pauses = 0
                return answer
            if self._pause(asked_s) >= deadline:
                return answer

    def _wait(self, deadline: float) -> None:
        """Until the pause is over, and a little longer, each thread by another amount."""
        while True:
            now = self._clock()
            with self._lock:
                left = min(self._until, deadline) - now
            if left <= 0:
                return
            self._sleep(left + spread(left))

    def _pause(self, asked_s: float) -> float:
        """Begin or extend the pause; when it ends."""
        with self._lock:
            now = self._clock()
            if now >= self._until:  # else the answer to a request from before the pause
                self._pauses = min(self._pauses + 1, 16)
            guess_s = min(FIRST_PAUSE_S * 2 ** (self._pauses - 1), LONGEST_GUESS_S)
            pause_s = min(asked_s or guess_s, LONGEST_PAUSE_S)
            self._until = max(self._until, now + pause_s + spread(pause_s))
            return self._until


def spread(pause_s: float) -> float:
    """How much longer to wait than a pause: a random time."""
    return random.uniform(0.0, min(SPREAD * pause_s, LONGEST_SPREAD_S))


_limits: dict[str, RateLimit] = {}
_lock = threading.Lock()


def limit_of(service: str) -> RateLimit:
    """The one of this process for a service, by its address."""
    with _lock:
        return _limits.setdefault(service, RateLimit())


def asked_pause(status: int, headers: Mapping[str, str]) -> float | None:
    """How long an answer asks to wait, in seconds or until a date; 0 if it does not say; None
    if it is no rate limit. Names of headers are in lower case."""
    if status not in LIMITING:
        return None
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if (number := _number(headers.get(name, ""))) is not None:
            return number / 1000.0
    from email.utils import parsedate_to_datetime

    text = headers.get("retry-after", "").strip()
    if (number := _number(text)) is not None:
        return number
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0


def _number(text: str) -> float | None:
    text = text.strip()
    is_number = len(text) < 20 and text.replace(".", "", 1).isdigit() and text.isascii()
    return float(text) if is_number else None
