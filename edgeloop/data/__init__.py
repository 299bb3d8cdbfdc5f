"""Datasets: versioned folders, stored by content. `ledger` explains how versions are published.

Used inside jobs too: needs only the standard library and the store's files.
"""

from __future__ import annotations

from edgeloop.data.datasets import Datasets
from edgeloop.data.ledger import Version
from edgeloop.data.names import Reference, check_name, find_local, parse_reference
from edgeloop.data.pull import Pulled, Verified
from edgeloop.data.push import Progress, Pushed

__all__ = [
    "Datasets",
    "Progress",
    "Pulled",
    "Pushed",
    "Reference",
    "Verified",
    "Version",
    "check_name",
    "find_local",
    "parse_reference",
]
