"""What the published REST API asks of a body: which fields, of what type, which are a must.

Written by hand after the models that the SDK carries, which are generated from the published
specification, and the REST reference for what a job must have. A field that is not named here is
refused, since a service may ignore a misspelt one in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.peers.azureml.routing import Request, ServiceError

Check = Callable[[Any, str], list[str]]


@dataclass(frozen=True)
class Must:
    check: Check


def text(value: Any, at: str) -> list[str]:
    return [] if isinstance(value, str) else [f"{at} must be a string, not {value!r}"]


def whole(value: Any, at: str) -> list[str]:
    fine = isinstance(value, int) and not isinstance(value, bool)
    return [] if fine else [f"{at} must be an integer, not {value!r}"]


def scalar(value: Any, at: str) -> list[str]:
    """The service turns numbers into strings here, and the SDK counts on that."""
    return [] if isinstance(value, str | int) else [f"{at} must be a string, not {value!r}"]


def yes_no(value: Any, at: str) -> list[str]:
    return [] if isinstance(value, bool) else [f"{at} must be true or false, not {value!r}"]


def anything(_value: Any, _at: str) -> list[str]:
    return []


def span(value: Any, at: str) -> list[str]:
    pattern = r"P(?=.)(\d+D)?(T(\d+H)?(\d+M)?([\d.]+S)?)?"
    fine = isinstance(value, str) and re.fullmatch(pattern, value)
    return [] if fine else [f"{at} must be an ISO 8601 duration, not {value!r}"]


def resource_id(value: Any, at: str) -> list[str]:
    fine = isinstance(value, str) and value.startswith(
        ("/subscriptions/", "azureml:", "azureml://")
    )
    return [] if fine else [f"{at} must be a resource id, not {value!r}"]


def data_uri(value: Any, at: str) -> list[str]:
    """What the documentation lists for inputs and outputs: assets, datastores and Azure storage."""
    known = ("azureml:", "/subscriptions/", "https://", "http://", "wasbs://", "abfss://", "adl://")
    fine = isinstance(value, str) and value.startswith(known)
    return [] if fine else [f"{at} must be a URI of data that the service knows, not {value!r}"]


def one_of(*allowed: str) -> Check:
    def check(value: Any, at: str) -> list[str]:
        return [] if value in allowed else [f"{at} must be one of {', '.join(allowed)}: {value!r}"]

    return check


def many(item: Check) -> Check:
    """A mapping from names to items."""

    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, dict):
            return [f"{at} must be an object, not {value!r}"]
        return [line for name, one in value.items() for line in item(one, f"{at}.{name}")]

    return check


def each(item: Check) -> Check:
    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, list):
            return [f"{at} must be a list, not {value!r}"]
        return [line for n, one in enumerate(value) for line in item(one, f"{at}[{n}]")]

    return check


def record(fields: Mapping[str, Check | Must]) -> Check:
    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, dict):
            return [f"{at} must be an object, not {value!r}"]
        found = [f"{at}.{name} is no field of it" for name in value if name not in fields]
        for name, field in fields.items():
            test = field.check if isinstance(field, Must) else field
            if value.get(name) is None:  # null is as good as left out
                found += [f"{at}.{name} is required"] if isinstance(field, Must) else []
            else:
                found += test(value[name], f"{at}.{name}")
        return found

    return check


def by(discriminator: str, kinds: Mapping[str, Check]) -> Check:
    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, dict):
            return [f"{at} must be an object, not {value!r}"]
        kind = str(value.get(discriminator))
        if kind not in kinds:
            return [f"{at}.{discriminator} must be one of {', '.join(kinds)}: {kind!r}"]
        return kinds[kind](value, at)

    return check


class Checker:
    """Refuses a body that the REST API would not know, and remembers that it did."""

    def __init__(
        self, shapes: Mapping[str, Check], names: Mapping[str, str], complaints: list[str]
    ) -> None:
        self._shapes, self._names, self._complaints = shapes, names, complaints

    def check(self, kind: str, request: Request) -> dict[str, Any]:
        body = request.json
        found = self._shapes[kind](body, "body")
        name, pattern = request.parameters.get("name", ""), self._names[kind]
        if not re.fullmatch(pattern, name):
            found.append(f"the name {name!r} does not match the pattern ^{pattern}$")
        if found:
            self._complaints += [f"{request.method} {request.path}: {line}" for line in found]
            raise ServiceError(400, "InvalidRequestContent", "; ".join(found))
        return body
