"""Boards over adb: the files on them, the lease that guards them, and the runs."""
