"""Ray's dashboard over HTTP: time limits, a few retries, and one sentence when it goes wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgeloop.errors import BadSetting, ComputeUnavailable

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from urllib.request import OpenerDirector, Request

_LIMIT_S = 30.0
_PAUSES_S = (0.2, 0.8)  # between tries: a head that restarts takes longer, and that is an error
_LARGEST_ANSWER = 256 * 1024 * 1024
_LONGEST_SENTENCE = 300


class Refused(Exception):
    """The dashboard answered, and said no."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(sentence(text) or f"status {status}")
        self.status = status
        self.text = text


@dataclass(frozen=True)
class Dashboard:
    """One cluster's address and what it wants to see in a request."""

    compute: str
    address: str
    headers: Mapping[str, str] = field(repr=False)
    verify: bool = True

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        limit_bytes: int = _LARGEST_ANSWER,
    ) -> bytes:
        """Every request may be sent twice: to submit or to stop again what was is harmless."""
        from http.client import HTTPException
        from urllib.error import HTTPError

        for pause in (*_PAUSES_S, None):
            try:
                with self._opener().open(self._request(method, path, body), timeout=_LIMIT_S) as it:
                    return bytes(it.read(limit_bytes))
            except HTTPError as error:
                with error:
                    self._judge(error.code, error.read(1 << 20).decode(errors="replace"))
            except (OSError, HTTPException) as error:
                late = isinstance(getattr(error, "reason", error), TimeoutError)
                if late or pause is None:
                    raise self._unavailable(error) from None
                time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def ask_json(self, method: str, path: str, body: object = None) -> Any:
        content = self.ask(method, path, body)
        try:
            return json.loads(content)
        except ValueError:
            raise self.no_ray() from None

    def no_ray(self) -> ComputeUnavailable:
        reason = f"what answers at {self.address} is not Ray's dashboard"
        return ComputeUnavailable(compute=self.compute, reason=reason)

    def _request(self, method: str, path: str, body: object) -> Request:
        from urllib.request import Request

        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self.headers}
        return Request(self.address + path, content, headers, method=method)  # noqa: S310

    def _opener(self) -> OpenerDirector:
        """It follows no redirect: the headers may hold a token, which is for this address only."""
        import ssl
        from urllib.request import HTTPRedirectHandler, HTTPSHandler, build_opener

        class Stay(HTTPRedirectHandler):
            def redirect_request(
                self, req: Request, fp: Any, code: int, msg: str, headers: HTTPMessage, newurl: str
            ) -> None:
                return None

        if not self.address.startswith("https:"):
            return build_opener(Stay)
        context = ssl.create_default_context()
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return build_opener(Stay, HTTPSHandler(context=context))

    def _judge(self, status: int, text: str) -> None:
        if status in (401, 403) or 300 <= status < 400:
            reason = f"{self.address} does not let us in (status {status}): check 'headers'"
            raise BadSetting(where=f"computes.{self.compute}", reason=reason)
        raise Refused(status, text)

    def _unavailable(self, error: Exception) -> ComputeUnavailable:
        cause = getattr(error, "reason", error)
        text = "no answer in time" if isinstance(cause, TimeoutError) else str(cause)
        strerror = getattr(cause, "strerror", None) or text or type(cause).__name__
        return ComputeUnavailable(compute=self.compute, reason=f"{self.address}: {strerror}")


def sentence(text: str) -> str:
    """What a traceback comes down to: its last line that says something."""
    lines = [line.strip() for line in text.splitlines()]
    said = [line for line in lines if len(line) > 1 and not line.startswith(("File ", "^", "~"))]
    return said[-1][:_LONGEST_SENTENCE] if said else ""
