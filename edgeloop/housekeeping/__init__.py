"""Housekeeping: what nobody needs any more, in the store, on this machine and on boards."""

from __future__ import annotations

from edgeloop.housekeeping.findings import Finding, GcOptions, Report
from edgeloop.housekeeping.secrets import Leak, SecretScan, known_secrets
from edgeloop.housekeeping.sweep import find_leftovers, remove_leftovers

__all__ = [
    "Finding",
    "GcOptions",
    "Leak",
    "Report",
    "SecretScan",
    "find_leftovers",
    "known_secrets",
    "remove_leftovers",
]
