"""What can go wrong in a cloud, switched on by a test."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from tests.peers.azureml.routing import Request, ServiceError


class NetworkAway(Exception):
    """The connection ends without an answer."""


@dataclass
class _Answers:
    """The next few requests that fit get an error instead of an answer."""

    left: int
    error: ServiceError
    method: str
    containing: str

    def fits(self, request: Request) -> bool:
        return self.method in ("", request.method) and self.containing in request.path


@dataclass
class Faults:
    token_lifetime_s: float = 3_600
    logged_out: bool = False  # the token endpoint knows nobody
    never_start: str = ""  # every job stays queued, with this reason
    cancel_takes_s: float = 0.0  # that long a job stays in CancelRequested
    account_keys: bool = True  # else the account forbids keys, as many tenants do
    cores_per_family: int = 100  # the quota of each family of machines
    broken_environments: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)  # paths of resources that nobody has made yet
    unheard: int = 0  # requests while the network was away
    _answers: list[_Answers] = field(default_factory=list)
    _forbidden: dict[str, str] = field(default_factory=dict)
    _away_until: float = 0.0
    _lost: tuple[str, str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def throttle(
        self,
        next: int = 1,  # noqa: A002 - reads as it should where it is called
        retry_after_s: float = 1.0,
        method: str = "",
        containing: str = "",
    ) -> None:
        if retry_after_s < 1:
            headers = {"x-ms-retry-after-ms": f"{1000 * retry_after_s:.0f}"}
        else:
            headers = {"Retry-After": f"{retry_after_s:.0f}"}
        message = "The request is being throttled as the limit has been reached for this operation."
        error = ServiceError(429, "TooManyRequests", message, headers)
        self._add(_Answers(next, error, method, containing))

    def fail(
        self,
        next: int = 1,  # noqa: A002
        status: int = 500,
        method: str = "",
        containing: str = "",
    ) -> None:
        """Errors that pass by themselves, such as 500 and 503; or for good, with a large `next`."""
        error = ServiceError(status, "", "Something went wrong on our side. Please try again.")
        self._add(_Answers(next, error, method, containing))

    def forbid(self, action: str, who: str = "") -> None:
        """`action` as Azure names it (`Microsoft.MachineLearningServices/workspaces/jobs/write`);
        `who` is an identity: `user` or a job's name; nobody may when it is left out."""
        self._forbidden[action.lower()] = who

    @property
    def forbidden(self) -> list[str]:
        return [action for action, who in self._forbidden.items() if not who]

    def break_environment(self, name: str) -> None:
        """Its image fails to build, and so does every job that wants it."""
        self.broken_environments.add(name)

    def network_away(self, seconds: float = 3_600) -> None:
        self._away_until = time.monotonic() + seconds

    def network_back(self) -> None:
        self._away_until = 0.0

    def lose_answers(self, method: str, containing: str) -> None:
        """What is asked is done, and nobody hears of it."""
        self._lost = (method, containing)

    def after(self, request: Request) -> None:
        if self._lost and request.method == self._lost[0] and self._lost[1] in request.path:
            raise NetworkAway

    @property
    def is_away(self) -> bool:
        return time.monotonic() < self._away_until

    def clear(self) -> None:
        """All is well again."""
        fresh = Faults()
        with self._lock:
            for name, value in vars(fresh).items():
                if name != "_lock":
                    setattr(self, name, value)

    def before(self, request: Request) -> None:
        if self.is_away:
            self.unheard += 1
            raise NetworkAway
        path = request.path.lower()
        for gone in sorted(self.missing, key=len):
            if f"{path}/".startswith(f"{gone}/") and (request.method, path) != ("PUT", gone):
                code = "ResourceNotFound" if "/providers/" in gone else "ResourceGroupNotFound"
                raise ServiceError(404, code, f"'{gone}' could not be found.")
        with self._lock:
            for answers in self._answers:
                if answers.left > 0 and answers.fits(request):
                    answers.left -= 1
                    raise answers.error

    def permission(self, request: Request, who: str) -> None:
        action = request.action
        if self._forbidden.get(action.lower(), "nobody") not in ("", who):
            return
        scope = request.path.rpartition("/")[0]
        raise ServiceError(
            403,
            "AuthorizationFailed",
            f"The client '{who}' with object id '{who}' does not have authorization to perform "
            f"action '{action}' over scope '{scope}' or the scope is invalid. If access was "
            "recently granted, please refresh your credentials.",
        )

    def _add(self, answers: _Answers) -> None:
        with self._lock:
            self._answers.append(answers)
