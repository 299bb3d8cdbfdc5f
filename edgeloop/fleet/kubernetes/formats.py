"""The small formats of Kubernetes: names, labels, quantities, images."""

from __future__ import annotations

import ipaddress
import re
from decimal import Decimal

LABEL_LIMIT, NAME_LIMIT, PORT_NAME_LIMIT = 63, 253, 15
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_KEY = re.compile(r"[-._A-Za-z0-9]+")
_VARIABLE = re.compile(r"[^=\x00-\x1f]+")
_QUANTITY = re.compile(
    r"(?P<number>\+?([0-9]+(\.[0-9]*)?|\.[0-9]+))"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?"
)
_PATH = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{{1,5}})?/)?{_PATH}(/{_PATH})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(@[a-z0-9]+([+._-][a-z0-9]+)*:[0-9a-fA-F]{32,})?"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def is_label(text: object) -> bool:
    """A DNS label: the name of a container, a volume, a namespace."""
    return _fits(_LABEL, text, LABEL_LIMIT)


def is_name(text: object) -> bool:
    """A DNS subdomain: the name of most objects."""
    return (
        isinstance(text, str)
        and len(text) <= NAME_LIMIT
        and all(_LABEL.fullmatch(part) for part in text.split("."))
    )


def is_service_name(text: object) -> bool:
    return _fits(_SERVICE, text, LABEL_LIMIT)


def is_port_name(text: object) -> bool:
    return _fits(_PORT_NAME, text, PORT_NAME_LIMIT)


def is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535


def is_label_key(text: object) -> bool:
    if not isinstance(text, str):
        return False
    prefix, slash, name = text.rpartition("/")
    return (not slash or is_name(prefix)) and _fits(_QUALIFIED, name, LABEL_LIMIT)


def is_label_value(text: object) -> bool:
    return text == "" or _fits(_QUALIFIED, text, LABEL_LIMIT)


def is_key(text: object) -> bool:
    """A key of a ConfigMap or a Secret."""
    return _fits(_KEY, text, NAME_LIMIT) and text not in (".", "..")


def is_variable(text: object) -> bool:
    return _fits(_VARIABLE, text, NAME_LIMIT)


def is_image(text: object) -> bool:
    return _fits(_IMAGE, text, 1000)


def is_percent(text: object) -> bool:
    return isinstance(text, str) and bool(re.fullmatch(r"[0-9]{1,2}%|100%", text, re.ASCII))


def is_cidr(text: object) -> bool:
    try:
        ipaddress.ip_network(str(text), strict=True)
    except ValueError:
        return False
    return "/" in str(text)


def quantity(value: object) -> Decimal | None:
    """`500m`, `2Gi`, `1e3`, 2: the number that it stands for."""
    text = str(value) if isinstance(value, str | int | float) else ""
    found = _QUANTITY.fullmatch(text) if not isinstance(value, bool) else None
    if found is None:
        return None
    number, suffix = Decimal(found["number"]), found["suffix"] or ""
    if suffix in _BINARY:
        return number * Decimal(1024 ** (_BINARY.index(suffix) + 1))
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    return number.scaleb(int(suffix[1:])) if suffix else number


def _fits(pattern: re.Pattern[str], text: object, limit: int) -> bool:
    return isinstance(text, str) and 0 < len(text) <= limit and bool(pattern.fullmatch(text))
