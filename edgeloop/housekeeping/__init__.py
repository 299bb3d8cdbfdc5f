"""Housekeeping: what nobody needs any more, in the store, on this machine and on boards."""

from __future__ import annotations

from edgeloop.housekeeping.findings import Finding, GcOptions, Report
from edgeloop.housekeeping.sweep import find_leftovers, remove_leftovers

__all__ = ["Finding", "GcOptions", "Report", "find_leftovers", "remove_leftovers"]
