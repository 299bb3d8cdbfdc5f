"""What lies on a board and nobody has used for long: programs of SDKs, inputs and models.

All times are the board's own: no clock of a host is trusted. Nothing goes from a board that a
runner holds; it is held while something goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from edgeloop.platforms.base import DeviceLeftover
from edgeloop.platforms.snpe.board.adb import Adb, words
from edgeloop.platforms.snpe.board.lease import BoardLease

_SDK = re.compile(r"sdk/[0-9a-f]{8,128}(\.tmp)?")
_FILE = re.compile(r"(data|models)/[0-9a-f]{8,128}\.(raw|dlc)(\.tmp)?")
_KILOBYTE = 1024


class BoardLeftovers:
    """`kept_sdk` is the digest of the SDK that runners of this machine use; empty: none."""

    def __init__(self, adb: Adb, root: str, kept_sdk: str, older_s: float, lease_s: float) -> None:
        self._adb = adb
        self._root = root
        self._kept = f"sdk/{kept_sdk}"
        self._older_s = older_s
        self._lease = BoardLease(adb, root, lease_s)

    def find(self) -> list[DeviceLeftover]:
        """Raises DeviceBusy where a runner holds the board."""
        self._adb.probe()
        self._lease.check_free()
        found = []
        for kind, why, pattern in (
            ("SDKs", "that no runner has used lately", _SDK),
            ("inputs and models", "that no runner has used lately", _FILE),
        ):
            old = self._old(pattern)
            names, sizes = [name for name, _ in old], [size for _, size in old]
            found.append(
                DeviceLeftover(
                    f"adb:{self._adb.serial}", kind, names, sizes, why, self._remover(pattern)
                )
            )
        return [leftover for leftover in found if leftover.names]

    def _remover(self, pattern: re.Pattern[str]) -> Callable[[], int]:
        def remove() -> int:
            self._lease.take()
            try:
                names = [name for name, _ in self._old(pattern)]
                for start in range(0, len(names), 500):
                    part = "\n".join(names[start : start + 500])
                    script = f"cd {words(self._root)} && xargs rm -rf"
                    answer = self._adb.shell(script, send=[part.encode()])
                    if answer.code:
                        reason = f"files cannot be removed there: {answer.last_line}"
                        raise self._adb.unavailable(reason)
                return len(names)
            finally:
                self._lease.release()

        return remove

    def _old(self, pattern: re.Pattern[str]) -> Sequence[tuple[str, int]]:
        """Names below the root and bytes, of what is not kept."""
        answer = self._adb.shell(f"""
[ -d {words(self._root)} ] || exit 0
cd {words(self._root)} || exit 1
echo "now $(date +%s)"
for folder in sdk/*; do
  [ -d "$folder" ] || continue
  echo "$(stat -c %Y "$folder") $(( $(du -sk "$folder" | cut -f1) * {_KILOBYTE} )) $folder"
done
for folder in data models; do
  [ -d "$folder" ] && find "$folder" -type f -exec stat -c '%Y %s %n' {{}} +
done
true""")
        if answer.code:
            raise self._adb.unavailable(f"its files cannot be listed: {answer.last_line}")
        now, found = 0, []
        for line in answer.text.splitlines():
            parts = line.strip().split(" ", 2)
            if parts[0] == "now" and len(parts) == 2 and parts[1].isdecimal():
                now = int(parts[1])
            elif len(parts) == 3 and parts[0].isdecimal() and parts[1].isdecimal():
                found.append((int(parts[0]), int(parts[1]), parts[2]))
        return [
            (name, size)
            for used, size, name in sorted(found)
            if pattern.fullmatch(name) and used < now - self._older_s and name != self._kept
        ]
