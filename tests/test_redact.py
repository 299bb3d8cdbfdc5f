"""Secrets do not get through the edge."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgeloop._util.redact import redact


@pytest.mark.parametrize(
    "text",
    [
        "AccountName=a;AccountKey=SECRET+/==;EndpointSuffix=x",
        "accountkey=SECRET==",
        "SharedAccessSignature=sv=1&sig=SECRET",
        "https://a.blob.core.windows.net/c?sv=1&sig=SECRET%3D&se=2",
        "postgresql://user:SECRET@host/db",
        "postgresql+psycopg://user:SECRET@host:5432/db?x=y",
        "postgresql://:SECRET@host/db",
        "postgresql://user:p@SECRET@host/db",
        "host=h user=u password=SECRET dbname=d",
        "'postgresql://user:SECRET@host/db' and 'AccountKey=SECRET;'",
        "password='SECRET' and password=\"SECRET\"",
        r"password='it\'s SECRET'",
        "AWS_ACCESS_KEY=SECRET",
        "GET /?token=SECRET&x=1",
        '{"client_key": "SECRET", "other": 1}',
        r"{\"password\": \"SECRET\"}",
        "{'api_key': 'SECRET'}",
        "Authorization: Bearer SECRET-aB3dE5gH7",
        "authorization: basic U0VDUkVUSECRET",
        "Authorization: SharedKey account:SECRET+/=",
        "x-api-key: SECRET",
        "-----BEGIN RSA PRIVATE KEY-----\nMIISECRET\nabc=\n-----END RSA PRIVATE KEY-----",
        r"-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----",
        f"the key is SECRET{'a' * 80}==",
        "eyJSECRETaaaaaaa.eyJSECRET.SECRET",
        "https://ghp_SECRETaaaaaaaaaaaaaaaaaaaaaaaaaa@github.com/a/b",
    ],
)
def test_a_secret_is_taken_out(text: str):
    assert "SECRET" not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "The store azure:https://a.blob.core.windows.net cannot be reached: refused.",
        "The store postgresql://host:5432/db cannot be reached.",
        "mail somebody@example.com about net.onnx: it was not uploaded",
        "sqlite:/srv/models",
        "Send the portal's token: Authorization: Bearer TOKEN. Basic authentication is not enough.",
        "max_tokens=5 tokens: 7, the token: no such thing",
        '{"password": "${DB_PASSWORD}"}',
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ],
)
def test_what_is_no_secret_stays(text: str):
    assert redact(text) == text


def test_half_a_secret_is_one_too():
    """Whoever asks for a log from the middle of a password reads no half of it."""
    text = "first password=SECRETSECRET then postgresql://user:SECRETSECRET@host/db last"
    for start in range(len(text)):
        for end in range(start, len(text)):
            shown = redact(text, start, end)
            assert not re.search("[SECRT]{2}", shown), (start, end, shown)
    assert redact(text, 0, 10) == "first pass"


FRAGMENTS = (
    *("a", "a://b:", "a://b:@", "://", "@", "http://a:80/x,", "password=", "password='", "'", "\\"),
    *('"token": "', "eyJaaaaaaaaaaaa.", "eyJa-", "bearer ", "Bearer aaaaaaaa", "x-", "x-a-key:"),
    *("SharedKey a", "-----BEGIN ", "PRIVATE KEY-----", "A" * 86 + "==", "secret_", "ghp_", " "),
    *("_key", "sig=", "sig=&", "\n", "account", "shared_access_", 'token"', 'token"    :', "="),
)
BYTES, TIMES = 300_000, 12.0
ORDINARY = (
    "2026-11-16 epoch 3/10: loss=0.43 see https://example.com:8080/a or mail me@example.com\n"
)


def cost(unit: str) -> float:
    """Seconds of the processor, the least of several runs: a busy machine does not matter."""
    text = (unit * (BYTES // len(unit) + 1))[:BYTES]

    def once() -> float:
        began = time.process_time()
        redact(text)
        return time.process_time() - began

    return min(once() for _ in range(5))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@example(["a://b:"])
@given(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4))
def test_time_grows_with_the_text_and_not_with_its_square(unit: list[str]):
    """A hostile text costs about twice as much as an ordinary one of its size. With 4,000
    steps for each address it is almost thirty times as much."""
    assert cost("".join(unit)) < TIMES * max(cost(ORDINARY), 0.01)


FORMER = (
    re.compile(r"(?i)\b(?:AccountKey|SharedAccessSignature|password|sig)=([^;&\s'\"]+)"),
    re.compile(r"\b\w+://[^:/@\s]*:(\S{1,4000})@"),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_what_was_redacted_once_still_is(text: str):
    """The plain patterns say what a secret is; the quick search finds all of it."""
    for pattern in FORMER:
        for match in pattern.finditer(text):
            first, last = match.span(1)
            assert all(redact(text, at, at + 1) == "***" for at in range(first, last)), text
