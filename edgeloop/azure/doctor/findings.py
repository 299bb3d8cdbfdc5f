"""One line of `azure doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """`ok`: None where it could not be checked. `needed`: nothing works while it is not fine."""

    what: str
    ok: bool | None
    text: str
    needed: bool = True

    @property
    def is_trouble(self) -> bool:
        return self.needed and self.ok is not True
