"""The schema of a store: its number, and how an older store becomes a newer one.

A store has one row that says which schema it has, and the oldest schemas whose readers and writers
may still use it (`StoreVersion` in `location.py`, which asks for it before a store is first used).
A store without that row has schema 0: a version of Edgeloop from before schemas wrote it, or
Archai.

To change what is stored, add a step under the next number. That raises `SCHEMA`. Say whether
versions of older schemas may go on reading and writing: if they may, the first write of a newer
version takes the step; if not, only `edgeloop store upgrade` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.store.base import Store
    from edgeloop.store.location import StoreVersion


@dataclass(frozen=True)
class Upgrade:
    """One step, to the schema whose number it has.

    Attributes:
        summary: What it does, for people; it follows "schema 1 ".
        work: The function that does it, as `module:name`. It takes the store and whether this is a
            dry run, and returns how many rows it changed or would change. Runners may be at work
            meanwhile, and it may be killed and repeated: every change is a compare-and-set.
        oldest_reader: The oldest schema whose versions may still read the store.
        oldest_writer: The oldest schema whose versions may still write to it.
    """

    summary: str
    work: str
    oldest_reader: int = 0
    oldest_writer: int = 0


UPGRADES: Mapping[int, Upgrade] = {
    1: Upgrade(
        summary="moves the hints of waiting models to their present keys",
        work="edgeloop.models.upgrades:rewrite_hints",
    ),
}
SCHEMA = max(UPGRADES)


@dataclass(frozen=True)
class Upgraded:
    """A step that was taken: `changed` rows."""

    schema: int
    summary: str
    changed: int


def pending(version: StoreVersion) -> dict[int, Upgrade]:
    """The steps that this version of Edgeloop would take, in order."""
    return {n: step for n, step in sorted(UPGRADES.items()) if n > version.schema}


def excludes(version: StoreVersion) -> bool:
    """Whether the steps shut out versions of Edgeloop that may use the store now."""
    return any(
        step.oldest_reader > version.oldest_reader or step.oldest_writer > version.oldest_writer
        for step in pending(version).values()
    )


def upgrade(store: Store, is_dry_run: bool = False) -> Iterator[Upgraded]:
    """Bring a store to the present schema, step by step. It may be killed and repeated.

    Versions that a step shuts out are refused before it begins: an upgrade that was cut off has
    raised the oldest writer and not the schema, so the next one continues it. Raises StoreTooNew.
    """
    from pkgutil import resolve_name

    from edgeloop._version import __version__
    from edgeloop.store.location import check_use, raise_version, read_version, unversioned

    plain = unversioned(store)
    version = read_version(plain)
    check_use(plain, version, "write to")
    for schema, step in pending(version).items():
        if not is_dry_run:
            shut_out = replace(
                version,
                oldest_reader=max(version.oldest_reader, step.oldest_reader),
                oldest_writer=max(version.oldest_writer, step.oldest_writer),
            )
            version = raise_version(plain, shut_out)
        changed: int = resolve_name(step.work)(plain, is_dry_run)
        if not is_dry_run:
            version = raise_version(plain, replace(version, schema=schema, edgeloop=__version__))
        yield Upgraded(schema, step.summary, changed)
