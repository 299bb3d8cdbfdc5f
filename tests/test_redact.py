"""Secrets do not get through the edge."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    ],
)
def test_what_is_no_secret_stays(text: str):
    assert redact(text) == text


@pytest.mark.parametrize("text", ["a" * 2_000_000, "http://a:80/x," * 50_000])
def test_a_line_without_end_is_read_once(text: str):
    """In a process of its own: a search that costs the square of a line's length takes hours."""
    code = (
        "import sys; from edgeloop._util.redact import redact; "
        "text = sys.stdin.read(); print(redact(text) == text)"
    )
    got = subprocess.run(
        [sys.executable, "-c", code],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert got.stdout == "True\n"
