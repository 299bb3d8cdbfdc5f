"""Many jobs from one: every combination of the values that a sweep names.

`--sweep lr=1e-3,1e-4 --sweep bs=8,16` makes four jobs, NAME-1 to NAME-4; the glob `NAME-*` selects
them all. The values become params, so they are in each job's record.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgeloop.errors import BadInput, BadJob

if TYPE_CHECKING:
    from edgeloop.jobs.spec import JobSpec

LARGEST = 10_000
_QUOTED = re.compile(r"\A(['\"])((?:(?!\1).)*)\1\Z", re.DOTALL)
_CLOSES = {"[": "]", "(": ")", "{": "}"}


def parse_sweep(texts: Iterable[str]) -> dict[str, list[str]]:
    """The values of `--sweep`, as the key `sweep` of a specification."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name:
            reason = f"{text!r} has no values: write it as lr=1e-3,1e-4"
            raise BadJob(where="--sweep", reason=reason)
        if name in found:
            raise BadJob(where="--sweep", reason=f"{name} is given twice: join its values")
        try:
            found[name] = split_values(values)
        except BadInput as error:
            raise BadJob(where="--sweep", reason=f"{name}: {error}") from None
    return found


def split_values(text: str) -> list[str]:
    """At commas, but for those inside quotes or brackets; quotes around a whole value go."""
    values, current, open_brackets, quote = [], "", "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _CLOSES:
            open_brackets += _CLOSES[char]
        elif open_brackets and char == open_brackets[-1]:
            open_brackets = open_brackets[:-1]
        elif char == "," and not open_brackets:
            values.append(current)
            current = ""
            continue
        current += char
    values.append(current)
    if quote or open_brackets:
        raise BadInput(reason=f"a quote or bracket is not closed in {text!r}")
    values = [value.strip() for value in values]
    if "" in values:
        raise BadInput(reason=f"a value is missing in {text!r}")
    return [_QUOTED.sub(r"\2", value) for value in values]


def expand(spec: JobSpec, name: str) -> list[JobSpec]:
    """One specification per combination, with names that sort in this order.

    The last param changes fastest. Without a sweep there is one, with that name.
    """
    if not spec.sweep:
        return [replace(spec, name=name)]
    count = 1
    for values in spec.sweep.values():
        count *= len(values)
    if count > LARGEST:
        reason = f"it would make {count:,} jobs; {LARGEST:,} are the limit"
        raise BadJob(where="sweep", reason=reason)
    width = len(str(count))
    return [
        replace(
            spec,
            name=f"{name}-{number:0{width}d}",
            params={**spec.params, **dict(zip(spec.sweep, values, strict=True))},
            sweep={},
        )
        for number, values in enumerate(itertools.product(*spec.sweep.values()), start=1)
    ]
