"""What was found that nobody needs, and how it goes.

A finding is looked for without changing anything. Removing it looks again at each item right before
it goes, so time may pass between the two, and a removal that is killed can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

DEFAULT_AGE_S = 7 * 86_400.0
SAFETY_S = 1_800.0  # beyond a lease and the difference of clocks: whoever is that late is dead
REUSED_AGE_S = 2 * 86_400.0  # what is found by its content may be in use again at any moment


@dataclass(frozen=True)
class GcOptions:
    """What to look for.

    Attributes:
        older_s: What is younger stays, but for entries of runners that died a day ago, hints of
            models that are gone, stages' folders of dead processes, and `cache_bytes`.
        logs_age_s: Logs of jobs that ended longer ago go; None: no log goes for its age.
        logs_bytes: The oldest logs go until all logs together are not larger; None: no limit.
        cache_bytes: The longest unused of this machine's caches go until they are not larger.
        boards: Whether boards of this machine are looked at.
        experiments: Only these; empty: all of the store.
    """

    older_s: float = DEFAULT_AGE_S
    logs_age_s: float | None = None
    logs_bytes: int | None = None
    cache_bytes: int | None = None
    boards: bool = False
    experiments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One kind of thing. `remove` returns how many of the items went; the others are in use again,
    or somebody else removed them."""

    kind: str
    where: str  # the store, this machine, or a board
    count: int
    size: int
    why: str
    remove: Callable[[], int] = field(repr=False, compare=False)
    items: Sequence[str] = ()
    verb: str = "remove"  # or `publish`: results of a machine that died get their names


@dataclass(frozen=True)
class Report:
    """What was found. `notes` say what was left out, and what it would take."""

    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()


@dataclass
class ReportDraft:
    """A report in the making: kinds without items are left out."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        kind: str,
        where: str,
        sizes: Sequence[int],
        why: str,
        remove: Callable[[], int],
        items: Sequence[str],
        verb: str = "remove",
    ) -> None:
        if items:
            found = Finding(kind, where, len(items), sum(sizes), why, remove, tuple(items), verb)
            self.findings.append(found)
