"""Housekeeping: what nobody needs any more, in the store, on this machine and on boards; whether a
store is sound, and what can be saved if it is not; secrets where they should not be."""

from __future__ import annotations

from edgeloop.housekeeping.findings import Finding, GcOptions, Report
from edgeloop.housekeeping.integrity import StoreHealth, StoreProblem, check_store
from edgeloop.housekeeping.repair import Saved, mend, save, set_aside, write_lost
from edgeloop.housekeeping.secrets import Leak, SecretScan, known_secrets
from edgeloop.housekeeping.sweep import find_leftovers, reclaim_orphans, remove_leftovers

__all__ = [
    "Finding",
    "GcOptions",
    "Leak",
    "Report",
    "Saved",
    "SecretScan",
    "StoreHealth",
    "StoreProblem",
    "check_store",
    "find_leftovers",
    "known_secrets",
    "mend",
    "reclaim_orphans",
    "remove_leftovers",
    "save",
    "set_aside",
    "write_lost",
]
