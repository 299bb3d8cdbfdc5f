"""Things done again and again beside the command, and patience with a store that is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from edgeloop.errors import EdgeloopError, StoreFull, StoreRefused, StoreUnavailable

Result = TypeVar("Result")

WORTH_WAITING = (StoreUnavailable, StoreFull)
STORE_TROUBLE = (*WORTH_WAITING, StoreRefused)
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 15.0


class Repeating:
    """A thread that does one thing every so often, or at once when poked.

    Trouble with the store makes it wait longer each time; any other trouble is said, and it goes
    on: nothing that happens here may end the job.
    """

    def __init__(
        self, name: str, action: Callable[[], None], every_s: float, say: Callable[[str], None]
    ) -> None:
        self._action = action
        self._every_s = every_s
        self._say = say
        self._poked = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def poke(self) -> None:
        self._poked.set()

    def stop(self) -> None:
        """Returns when what it is doing just now is done."""
        self._ending.set()
        self._poked.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        delay = self._every_s
        while not self._ending.is_set():
            if delay <= self._every_s:
                self._poked.wait(delay)
            else:  # the store is away: poking does not bring it back
                self._ending.wait(delay)
            self._poked.clear()
            if self._ending.is_set():
                return
            delay = self._every_s if self._once() else min(2 * delay, _LONGEST_DELAY_S)

    def _once(self) -> bool:
        try:
            self._action()
        except STORE_TROUBLE:
            return False
        except (EdgeloopError, OSError, ValueError) as error:
            self._say(f"{self._thread.name}: {error}")
        return True


def patiently(action: Callable[[], Result], patience_s: float) -> Result:
    """Try until the store is back, ever more slowly; raises its last word when patience ends. A
    store that refuses is there, and will refuse again."""
    deadline = time.monotonic() + patience_s
    delay = _FIRST_DELAY_S
    while True:
        try:
            return action()
        except WORTH_WAITING:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
        time.sleep(min(delay, left))
        delay = min(2 * delay, _LONGEST_DELAY_S)
