"""Queries and bodies as they are written, not as they could be meant: `true` is not 1."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from fastapi.requests import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict


class StrictBody(BaseModel):
    """Types are not converted, and keys that are not known are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _whole(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"0|-?[1-9][0-9]{0,18}", value):
        raise ValueError("write a whole number in digits")
    return value


def _flag(value: object) -> object:
    if isinstance(value, str) and value not in ("true", "false", "1", "0"):
        raise ValueError("write true or false")
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
Flag = Annotated[bool, BeforeValidator(_flag)]


def known_query(request: Request) -> None:
    """Refuses parameters that the route does not have, and those that are there twice without being
    a list: the first and the last of them would be taken for the truth by different programs."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    fields = {field.alias: field for field in route.dependant.query_params}
    asked = Counter(name for name, _ in _pairs(request))
    wrong = [
        {"loc": ("query", name), "msg": sentence, "type": kind}
        for name, count in asked.items()
        for is_wrong, sentence, kind in (
            (name not in fields, f"There is no such parameter: {_known(fields)}.", "unknown"),
            (name in fields and count > 1 and not _is_list(fields[name]), "Give it once.", "twice"),
        )
        if is_wrong
    ]
    if wrong:
        raise RequestValidationError(wrong)


STRICT_QUERY = Depends(known_query)


def _pairs(request: Request) -> list[tuple[str, str]]:
    query = bytes(request.scope.get("query_string", b"")).decode("latin-1")
    return parse_qsl(query, keep_blank_values=True)


def _known(fields: object) -> str:
    names = ", ".join(sorted(map(str, fields)))  # type: ignore[call-overload]
    return f"this takes {names}" if names else "this takes none"


def _is_list(field: object) -> bool:
    return "list" in str(getattr(getattr(field, "field_info", None), "annotation", ""))
