"""Which networks there are, read without building any: their family, their kind, and doubts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

FORMATS = ("w8a8", "w8a16", "float")
HERE = Path(__file__).parent
PUBLISHED, ESTIMATES, NETWORKS, SKELETONS = (
    HERE / name for name in ("published.csv", "estimates.csv", "networks.yaml", "skeletons.zip")
)


@dataclass(frozen=True)
class KnownNetwork:
    """`family` is what a fit holds out together: variants of one design are one family. `doubt`
    says why the published graph may not be the rebuilt one, in the formats `doubted`."""

    name: str
    family: str
    kind: str
    doubt: str = ""
    doubted: tuple[str, ...] = FORMATS

    def doubt_of(self, form: str) -> str:
        return self.doubt if form in self.doubted else ""


@cache
def known_networks() -> dict[str, KnownNetwork]:
    """By name, in the order of the file."""
    content = yaml.safe_load(NETWORKS.read_text(encoding="utf-8"))
    return {
        name: KnownNetwork(
            name,
            family,
            fields["kind"],
            fields.get("doubt", ""),
            tuple(fields.get("doubted", FORMATS)),
        )
        for family, networks in content.items()
        for name, fields in networks.items()
    }
