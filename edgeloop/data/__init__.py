"""Datasets: folders that travel by a content manifest. `log` tells how versions come and go.

Used inside jobs too: nothing here needs more than the standard library and the store's files.
"""

from __future__ import annotations

from edgeloop.data.datasets import Datasets
from edgeloop.data.ledger import Version
from edgeloop.data.names import Reference, check_name, find_local, parse_reference
from edgeloop.data.pull import Pulled
from edgeloop.data.push import Progress, Pushed
from edgeloop.data.verify import Verified

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
