"""What lies on a board: the SDK's programs once a version, inputs once each, models.

Every name on the board is a digest of the content, so a name that is there is the right file, and
no text of a user's ever reaches the board's shell. What arrives is checked before it gets its
name. Inputs and models share a cap; the longest unused go first, those in use never.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import DeviceUnavailable
from edgeloop.platforms.snpe import BoardOptions
from edgeloop.platforms.snpe.adb import (
    Adb,
    ShellResult,
    entry_of,
    entry_of_file,
    packed,
    pieces_of,
    squeezed,
    words,
)
from edgeloop.platforms.snpe.run import Turns
from edgeloop.platforms.snpe.sdk import Sdk

CHUNK_BYTES = 64 * 10**6
CHUNK_FILES = 1_000
_FLOATS = np.arange(256, dtype=np.float32) / np.float32(255)
_PLENTY_BYTES = 500 * 10**6
RESERVE_BYTES = 16 * 10**6  # left free for outputs and for the board itself
_AS_SUMS = r"cut -c67- SUMS | tr '\n' '\0' | xargs -0 sha256sum | cmp -s - SUMS"
_PROGRAMS = "cat cmp cut df find grep head id sed sha256sum stat tail tar timeout touch tr xargs"


class BoardFiles:
    """With `options.squeeze`, images and results are compressed with gzip; None: if the board has
    it. Floats made of bytes shrink to a third, class maps to a tenth."""

    def __init__(
        self,
        adb: Adb,
        root: str,
        sdk: Sdk,
        turns: Turns,
        options: BoardOptions,
    ) -> None:
        self._adb = adb
        self._root = root
        self._sdk = sdk
        self._turns = turns
        self._cap_bytes = options.cap_bytes
        self._limit_s = options.transfer_s
        self._squeeze = options.squeeze
        self._lock = threading.Lock()
        self._pushing = threading.Lock()  # two sessions may want the same file there
        self._there: set[str] = set()
        self._free = self._total = 0  # bytes, as far as known; nothing else writes here
        self._in_use: Counter[str] = Counter()
        self.squeezes = False
        self.is_sdk_suspect = False  # its program did not start: its files are looked at once more

    @property
    def sdk_home(self) -> str:
        return f"{self._root}/sdk/{self._sdk.digest}"

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def look(self) -> None:
        """What is there already; and what an interrupted push left behind goes."""
        home = words(self.sdk_home)
        answer = self._adb.shell(f"""
cd {words(self._root)} || exit 1
rm -rf data/tmp-* sdk/*.tmp models/*.tmp
for program in {_PROGRAMS}; do
  command -v "$program" > /dev/null || echo "lacks:$program"
done
command -v gzip >/dev/null && echo gzip
{f"( cd {home} && {_AS_SUMS} ) || rm -rf {home}" if self.is_sdk_suspect else ""}
[ -d {home} ] && touch {home} && echo sdk
true""")
        self.is_sdk_suspect = False
        self._check(answer)
        reported = answer.text.split()
        lacking = [word.removeprefix("lacks:") for word in reported if word.startswith("lacks:")]
        if lacking:
            programs = ", ".join(lacking)
            reason = f"its shell lacks {programs}: Android 8 or newer is needed"
            raise self._adb.unavailable(reason)
        self.squeezes = "gzip" in reported if self._squeeze is None else self._squeeze
        names = [name for _, _, name in self._survey()]
        with self._lock:
            self._there = set(names)
        if "sdk" not in reported:
            self._push_sdk()

    def forget(self) -> None:
        with self._lock:
            self._there.clear()

    @contextmanager
    def using(self, names: Sequence[str]) -> Iterator[None]:
        """These stay on the board meanwhile."""
        with self._lock:
            self._in_use.update(names)
        try:
            yield
        finally:
            with self._lock:
                self._in_use.subtract(names)

    def push(self, model: Path, name: str, inputs: Mapping[str, InputFile]) -> None:
        """What is not there yet; `inputs` by their names on the board."""
        with self._pushing:
            self._push_model(model, name)
            self._push_inputs(inputs)

    def _push_model(self, model: Path, name: str) -> None:
        if self._has(name):
            return
        with self._turns.travel():
            self.make_room(model.stat().st_size)
            fresh, digest = words(f"{name}.tmp"), words(Path(name).stem)
            answer = self._adb.shell(
                f"""
cd {words(self._root)} && cat > {fresh} || exit 1
[ "$(sha256sum < {fresh} | cut -d' ' -f1)" = {digest} ] || {{ rm -f {fresh}; exit 7; }}
mv -f {fresh} {words(name)}""",
                self._limit_s,
                pieces_of(model),
            )
        self._check(answer)
        self._arrived([name])

    def _push_inputs(self, inputs: Mapping[str, InputFile]) -> None:
        """A stream for many."""
        missing = {name: file for name, file in inputs.items() if not self._has(name)}
        chunk: dict[str, bytes] = {}
        room = 0
        for name, file in missing.items():
            chunk[name] = file.content()
            room += len(chunk[name])
            if room >= CHUNK_BYTES or len(chunk) >= CHUNK_FILES:
                self._push_chunk(chunk, room)
                chunk, room = {}, 0
        if chunk:
            self._push_chunk(chunk, room)

    def make_room(self, size: int) -> None:
        """Under the cap and on the disk; raises when even what is not in use does not suffice.
        With plenty of room the board is not asked."""
        plenty = self._free > size + _PLENTY_BYTES and self._total + size <= self._cap_bytes
        files = [] if plenty else self._survey()
        goes: list[str] = []
        for _, length, name in files:
            if self._fits(size):
                break
            with self._lock:
                if self._in_use[name]:
                    continue
                self._there.discard(name)
            goes.append(name)
            self._total, self._free = self._total - length, self._free + length
        if goes:
            removal = f"cd {words(self._root)} && xargs -n 500 rm -f"
            self._check(self._adb.shell(removal, send=["\n".join(goes).encode()]))
        if self._free < size + RESERVE_BYTES:
            raise self.full()
        self._total, self._free = self._total + size, self._free - size

    def _fits(self, size: int) -> bool:
        return self._total + size <= self._cap_bytes and self._free >= size + RESERVE_BYTES

    def _survey(self) -> list[tuple[int, int, str]]:
        """(last use, size, name) of inputs and models, the longest unused first."""
        answer = self._adb.shell(f"""
cd {words(self._root)} || exit 1
echo "disk $(df -k . | tail -n 1)"
find data models -type f -exec stat -c '%Y %s %n' {{}} +""")
        self._check(answer)
        self._free, files = _disk(answer.text)
        self._total = sum(length for _, length, _ in files)
        return files

    def full(self) -> DeviceUnavailable:
        return self._adb.unavailable(f"its disk is full: free some space beside {self._root}")

    def _push_chunk(self, chunk: dict[str, bytes], room: int) -> None:
        sums = "".join(
            f"{hashlib.sha256(chunk[name]).hexdigest()}  {Path(name).name}\n"
            for name in sorted(chunk)
        )
        entries = [entry_of(Path(name).name, content) for name, content in chunk.items()]
        stream = packed([*entries, entry_of("SUMS", sums.encode())])
        folder = f"tmp-{hashlib.sha256(sums.encode()).hexdigest()[:16]}"
        with self._turns.travel():
            self.make_room(room)
            answer = self._adb.shell(
                f"""
cd {words(f"{self._root}/data")} && rm -rf {folder} && mkdir {folder} && cd {folder} || exit 1
{"gzip -dc | " if self.squeezes else ""}tar xf - && sha256sum *.raw | cmp -s - SUMS || {{
  cd ..; rm -rf {folder}; df -k . >&2; exit 7
}}
mv -f *.raw .. && cd .. && rm -rf {folder}""",
                self._limit_s,
                squeezed(stream) if self.squeezes else stream,
            )
        self._check(answer)
        self._arrived(chunk)

    def _push_sdk(self) -> None:
        files = self._sdk.board_files()
        digests = [hashlib.file_digest(path.open("rb"), "sha256").hexdigest() for _, path in files]
        sums = "".join(f"{d}  {name}\n" for d, (name, _) in zip(digests, files, strict=True))
        entries = [entry_of_file(name, path, 0o755) for name, path in files]
        fresh = words(f"{self.sdk_home}.tmp")
        with self._turns.travel():
            self.make_room(sum(entry.size for entry in entries))
            answer = self._adb.shell(
                f"""
rm -rf {fresh} && mkdir -p {fresh} && cd {fresh} || exit 1
tar xf - && {_AS_SUMS} || {{
  cd /; rm -rf {fresh}; exit 7
}}
cd / && mv {fresh} {words(self.sdk_home)}""",
                self._limit_s,
                packed([*entries, entry_of("SUMS", sums.encode())]),
            )
        self._check(answer)

    def _has(self, name: str) -> bool:
        with self._lock:
            return name in self._there

    def _arrived(self, names: Iterable[str]) -> None:
        with self._lock:
            self._there.update(names)

    def _check(self, answer: ShellResult) -> None:
        if not answer.code:
            return
        if "No space left" in answer.err:
            raise self.full()
        if answer.code == 7:
            raise self._adb.unavailable("a file arrived damaged there; the cable may be bad")
        raise self._adb.unavailable(f"files cannot be written there: {answer.last_line}")


@dataclass(frozen=True)
class InputFile:
    """What a model is fed with on a board: floats, or pixels that become floats from 0 to 1 when
    they are sent, since few of them have to be."""

    values: NDArray[Any]

    @property
    def name(self) -> str:
        digest = hashlib.sha256(f"{self.values.shape}{self._kind}".encode())
        digest.update(np.ascontiguousarray(self.values).data)
        return f"data/{digest.hexdigest()}.raw"

    @property
    def _kind(self) -> str:
        return "" if self.values.dtype == np.uint8 else self.values.dtype.name

    def content(self) -> bytes:
        is_pixels = self.values.dtype == np.uint8
        return (_FLOATS[self.values] if is_pixels else self.values).tobytes()


def model_name(model: Path) -> str:
    with model.open("rb") as file:
        return f"models/{hashlib.file_digest(file, 'sha256').hexdigest()}.dlc"


def _disk(text: str) -> tuple[int, list[tuple[int, int, str]]]:
    """Bytes free, and (last use, size, name) of the files, the longest unused first."""
    lines = text.splitlines()
    first = next((line for line in lines if line.startswith("disk ")), "")
    numbers = [int(word) for word in first.split() if word.isdecimal()]
    free = 1024 * numbers[2] if len(numbers) >= 3 else 0
    files = []
    for line in lines:
        parts = line.split(" ", 2)
        if len(parts) == 3 and parts[0].isdecimal() and parts[1].isdecimal():
            files.append((int(parts[0]), int(parts[1]), parts[2]))
    return free, sorted(files)
