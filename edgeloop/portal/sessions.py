"""Who may look and who may change, without keeping a list of anybody.

The cookie is a random session and a digest of it, keyed by what only this portal knows: never the
token itself. What a change must send besides is another digest of the same session, which a page
of another site can neither read nor guess.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

LASTS_S = 30 * 86_400
SHORTEST_TOKEN = 16


class Sessions:
    """With a token a session is proof that somebody knew it, and outlives a restart; without one
    (on loopback) it only tells pages of ours from others, and ends with the process."""

    def __init__(self, token: str, clock: Callable[[], float] = time.time) -> None:
        self._token = token.encode()
        self._key = hashlib.sha256(b"edgeloop portal\0" + (self._token or secrets.token_bytes(32)))
        self._clock = clock

    @property
    def needs_token(self) -> bool:
        return bool(self._token)

    def knows(self, token: str) -> bool:
        """Compared in constant time, by digests: neither content nor length can be guessed at."""
        given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        return self.needs_token and hmac.compare_digest(given, hashlib.sha256(self._token).digest())

    def begin(self) -> str:
        """A new session, as the cookie holds it."""
        session = f"{secrets.token_hex(16)}-{int(self._clock() + LASTS_S)}"
        return f"{session}.{self._digest('session', session)}"

    def is_valid(self, cookie: str) -> bool:
        session, _, digest = cookie.partition(".")
        if not hmac.compare_digest(digest.encode(), self._digest("session", session).encode()):
            return False
        until = session.rpartition("-")[2]
        return until.isdecimal() and int(until) > self._clock()

    def change_token(self, cookie: str) -> str:
        """What a page of this session sends along with a change."""
        return self._digest("change", cookie.partition(".")[0])

    def allows_change(self, cookie: str, given: str) -> bool:
        return self.is_valid(cookie) and hmac.compare_digest(
            given.encode("utf-8", "surrogateescape"), self.change_token(cookie).encode()
        )

    def _digest(self, purpose: str, session: str) -> str:
        text = f"{purpose}:{session}".encode("utf-8", "surrogateescape")
        return hmac.new(self._key.digest(), text, "sha256").hexdigest()
