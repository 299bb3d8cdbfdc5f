"""One line of `doctor` and `azure doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HealthCheck:
    """`ok` is None if it could not be checked. `needed`: nothing works without it; everything else
    only says what cannot be done yet."""

    what: str
    ok: bool | None
    text: str
    needed: bool = False

    @property
    def is_problem(self) -> bool:
        return self.needed and self.ok is not True
