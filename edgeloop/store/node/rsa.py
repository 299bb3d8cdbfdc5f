"""The one signature that a service account of Google needs: RS256, with whole numbers alone."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping

_SHA256_MARK = bytes.fromhex("3031300d060960864801650304020105000420")
_OCTETS = 0x04
_VALID_S = 3600


def signed_assertion(account: Mapping[str, str], scope: str, audience: str) -> str:
    """A JSON web token that says who we are."""
    now = int(time.time())
    head = {"alg": "RS256", "typ": "JWT", "kid": account.get("private_key_id", "")}
    claims = {"iss": account["client_email"], "scope": scope, "aud": audience, "iat": now}
    text = f"{_encoded(head)}.{_encoded({**claims, 'exp': now + _VALID_S})}"
    return f"{text}.{_base64(_signature(account['private_key'], text.encode()))}"


def _signature(pem: str, content: bytes) -> bytes:
    lines = [line.strip() for line in pem.strip().splitlines() if "-----" not in line]
    modulus, exponent = _private_key(base64.b64decode("".join(lines)))
    length = (modulus.bit_length() + 7) // 8
    digest = _SHA256_MARK + hashlib.sha256(content).digest()
    padded = b"\0\1" + b"\xff" * (length - len(digest) - 3) + b"\0" + digest
    return pow(int.from_bytes(padded, "big"), exponent, modulus).to_bytes(length, "big")


def _private_key(der: bytes) -> tuple[int, int]:
    """The modulus and the private exponent: of PKCS #8, which wraps PKCS #1, or of that alone."""
    items = _items(_items(der)[0][1])
    wrapped = [content for tag, content in items if tag == _OCTETS]
    if wrapped:
        items = _items(_items(wrapped[0])[0][1])
    numbers = [int.from_bytes(content, "big") for _, content in items]
    return numbers[1], numbers[3]


def _items(content: bytes) -> list[tuple[int, bytes]]:
    """The values that follow each other: a tag, a length, that many bytes."""
    found, at = [], 0
    while at < len(content):
        tag, length = content[at], content[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(content[at : at + size], "big"), at + size
        found.append((tag, content[at : at + length]))
        at += length
    return found


def _encoded(value: Mapping[str, object]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
