"""The bank of a search: every member of the space that was screened, and those that will be.

It is kept in a file beside the other files of the search, so that a search that was killed does not
compile anything twice. A missing or damaged file costs time and nothing else. Lines are appended:

    {"bank": 1, "conditions": …, "first": 0}    how values were obtained, and the first batch
    {"batch": 12, "members": [{…}, …]}          what is screened for the candidate of this number
    {"member": "id_…", "values": {…}}           what was found
    {"member": "id_…", "error": …}              what cannot be built or compiled

Values of other conditions are of no use: such a file is replaced. A line that cannot be read, such
as one that a kill cut off, is skipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgeloop._util.files import open_regular, write_atomic
from edgeloop.architectures import Architecture
from edgeloop.errors import EdgeloopError, LocalFileError
from edgeloop.search.sampler.trial import Params, key_of

BANK = "bank.jsonl"
FORMAT = 1
ELSEWHERE = -1  # the batch of members that an earlier search has screened
MOST_MEMBERS = 200_000
_LONGEST_LINE = 4 << 20
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class BankMember:
    """A member of the space: planned, then screened. `values` has what is known without training;
    a member that cannot be built or compiled has an `error`."""

    params: Params
    arch: Architecture
    batch: int
    values: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    is_screened: bool = False


class Bank:
    """Members in the order in which they were planned, whatever the order of their results.

    Parameters that build the same architecture are one member: the first that was planned.
    """

    def __init__(
        self, conditions: str, make: Callable[[Params], Architecture], file: Path | None = None
    ) -> None:
        self._conditions, self._make, self._file = conditions, make, file
        self._members: dict[str, BankMember] = {}
        self._repeats: list[Params] = []
        self._found: dict[str, tuple[dict[str, float], str]] = {}  # results without a plan
        self.batches: list[int] = []  # the number of every batch that was planned, in order
        self.first: int | None = None  # the first batch; None: no file says so

    @classmethod
    def open(
        cls, file: Path | None, conditions: str, make: Callable[[Params], Architecture]
    ) -> Bank:
        """What the file has of these conditions; an empty bank if there is none."""
        bank = cls(conditions, make, file)
        if file is not None:
            bank._read(file)
            bank._mend(file)
        return bank

    def adopt(self, file: Path) -> int:
        """Add what the bank of another search has of these conditions; returns how many are new."""
        other, before = Bank(self._conditions, self._make), len(self)
        other._read(file)
        for member in other.members:
            if member.is_screened:
                self.add(member.params, member.values, member.error)
        return len(self) - before

    @property
    def members(self) -> list[BankMember]:
        return list(self._members.values())

    @property
    def repeats(self) -> list[Params]:
        """Planned parameters whose architecture another member has."""
        return self._repeats

    def __len__(self) -> int:
        return len(self._members)

    def get(self, arch_id: str) -> BankMember | None:
        return self._members.get(arch_id)

    def begin(self, first: int) -> None:
        """A new file, whose first batch has this number; what was added before is kept."""
        self.first = first
        lines = [{"bank": FORMAT, "conditions": self._conditions, "first": first}]
        known = [member for member in self._members.values() if member.batch == ELSEWHERE]
        if known:
            lines.append(_plan_line(ELSEWHERE, (member.params for member in known)))
            lines += [_result_line(m.arch.id, m.values, m.error) for m in known if m.is_screened]
        if self._file is not None:
            try:
                write_atomic(self._file, b"".join(map(_encoded, lines)))
            except OSError as error:
                raise LocalFileError(path=self._file, reason=error.strerror or "") from None

    def plan(self, batch: int, several: Iterable[Params]) -> list[BankMember]:
        """Members to screen; those that are in the bank already are left out."""
        planned = list(several)
        self._append(_plan_line(batch, planned))
        return self._plan(batch, planned)

    def put(self, arch_id: str, values: Mapping[str, float], error: str = "") -> None:
        """The result of a member."""
        self._put(arch_id, values, error)
        self._append(_result_line(arch_id, values, error))

    def add(self, params: Params, values: Mapping[str, float], error: str = "") -> None:
        """A member that was screened elsewhere under the same conditions. Nothing changes if it is
        in the bank already."""
        arch = self._make(params)
        if arch.id in self._members and self._members[arch.id].is_screened:
            return
        if self.first is not None:
            self._append(_plan_line(ELSEWHERE, [params]))
            self._append(_result_line(arch.id, values, error))
        self._plan(ELSEWHERE, [params])
        self._put(arch.id, values, error)

    def _plan(self, batch: int, several: Iterable[Params]) -> list[BankMember]:
        if batch != ELSEWHERE:
            self.batches.append(batch)
        fresh: list[BankMember] = []
        for params in several:
            try:
                arch = self._make(params)
            except EdgeloopError:
                continue  # written by somebody else
            if arch.id in self._members:
                if key_of(params) != key_of(self._members[arch.id].params):
                    self._repeats.append(params)
                continue
            if len(self._members) >= MOST_MEMBERS:
                break
            self._members[arch.id] = BankMember(params, arch, batch)
            if arch.id in self._found:
                self._put(arch.id, *self._found.pop(arch.id))
            fresh.append(self._members[arch.id])
        return fresh

    def _put(self, arch_id: str, values: Mapping[str, float], error: str) -> None:
        member = self._members.get(arch_id)
        if member is None:
            self._found[arch_id] = (dict(values), error)
        else:
            self._members[arch_id] = replace(
                member, values=dict(values), error=error, is_screened=True
            )

    def _append(self, line: Mapping[str, Any]) -> None:
        """Without a flush to disk: what a power cut loses is screened again. So is what does not
        fit on a full disk, about which the tables of the search complain."""
        if self._file is None:
            return
        with suppress(OSError), self._file.open("ab") as file:
            file.write(_encoded(line))

    def _read(self, file: Path) -> None:
        lines = _lines(file)
        head = next(lines, None)
        if head is None or head.get("bank") != FORMAT:
            return
        first = head.get("first")
        if head.get("conditions") != self._conditions or not isinstance(first, int):
            return
        self.first = first
        for line in lines:
            batch, several = line.get("batch"), line.get("members")
            if isinstance(batch, int) and isinstance(several, list):
                self._plan(batch, [params for params in several if _are_params(params)])
            elif isinstance(line.get("member"), str) and len(self._found) < MOST_MEMBERS:
                values, error = line.get("values", {}), line.get("error", "")
                if _are_values(values) and isinstance(error, str) and (values or error):
                    self._put(line["member"], values, error)

    def _mend(self, file: Path) -> None:
        """A line that was cut off must not swallow the next one."""
        if self.first is None:
            return
        with file.open("ab+") as whole:
            size = whole.seek(0, 2)
            whole.seek(max(0, size - 1))
            if whole.read(1) != b"\n":
                whole.write(b"\n")


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """All lines that hold a JSON object; nothing if the file cannot be read."""
    left = _MOST_BYTES
    try:
        with open_regular(file) as opened:
            while left > 0 and (line := opened.readline(_LONGEST_LINE)):
                left -= len(line)
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(found, dict):
                    yield found
    except OSError:
        return


def _plan_line(batch: int, several: Iterable[Params]) -> dict[str, Any]:
    return {"batch": batch, "members": list(several)}


def _result_line(arch_id: str, values: Mapping[str, float], error: str) -> dict[str, Any]:
    found: dict[str, Any] = {"member": arch_id, "values": dict(values)}
    return found | ({"error": error} if error else {})


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    """A NumPy number, such as a space may give among its choices."""
    return value.item()


def _are_params(found: object) -> bool:
    kinds = bool | int | float | str | None
    return isinstance(found, dict) and all(isinstance(value, kinds) for value in found.values())


def _are_values(found: object) -> bool:
    return isinstance(found, dict) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
        for value in found.values()
    )
