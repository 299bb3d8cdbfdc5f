"""Values of a job's secret variables, in what its node shows and stores: masked, however they are
written and wherever the log was cut while it was read."""

from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeloop._util.redact import KnownSecrets, MaskedStream
from edgeloop.node.files import FolderBlobs
from edgeloop.node.outputs import recover
from edgeloop.node.ticket import Pace
from tests.jobs.wrapped import LIMIT_S, Wrapped, python_of
from tests.peers.process import wait_until

TOKEN = "s3cr/t+with ümläut&more"
KEY = "first line of it\nsecond line of it\n}\nthe last line"
SECRETS = {"TOKEN": TOKEN, "KEY": KEY, "PIN": "123"}


def masked(text: str, *values: str) -> str:
    return KnownSecrets(values).mask(text)


@pytest.mark.parametrize(
    "written",
    [
        *(TOKEN, repr({"x": TOKEN}), json.dumps(["x", TOKEN]), quote(TOKEN), quote(TOKEN, safe="")),
        *(base64.b64encode(f"{user}:{TOKEN}".encode()).decode() for user in ("a", "ab", "abc")),
        base64.urlsafe_b64encode(TOKEN.encode()).decode(),
        f"postgresql://me:{TOKEN.replace(' ', '%20')}@host",
    ],
)
def test_a_value_is_masked_however_it_is_written(written: str):
    text = masked(f"before {written} after", TOKEN, TOKEN.replace(" ", "%20"))
    assert text.startswith("before ") and "***" in text and text.endswith(" after")
    for form in (TOKEN, quote(TOKEN), base64.b64encode(TOKEN.encode()).decode()[:-4]):
        assert form not in text


def test_lines_are_masked_one_by_one_and_short_texts_stay():
    assert masked("a second line of it, } and 123", KEY, "123") == "a ***, } and 123"
    assert masked("overlapping: abcdefghi", "abcdef", "defghi") == "overlapping: ***"
    assert masked("nothing of it", KEY, TOKEN) == "nothing of it"
    assert masked("a dot: 1.5", "1x5y", "") == "a dot: 1.5"
    assert masked("\ud800\udcff", "secret") == "\ud800\udcff"
    assert masked("\ud800 secret", "secret").endswith(" ***")


def test_a_password_inside_an_address_counts_by_itself():
    assert masked("login with hunter2222", "postgresql://me:hunter2222@host/db") == "login with ***"


_WORDS = st.text("ab\n", max_size=9)


@given(st.lists(_WORDS, max_size=3), _WORDS.map(str.encode), st.lists(st.binary(max_size=9)))
def test_cuts_of_a_log_make_no_difference(values: list[str], text: bytes, others: list[bytes]):
    secrets, stream, shown = KnownSecrets(values), MaskedStream(), b""
    parts = [part for other in others for part in (other, text, text[:3], text[3:])]
    for part in parts:
        shown += stream.feed(part, secrets)
    shown += stream.feed(b"", secrets, is_over=True)
    assert shown == MaskedStream().feed(b"".join(parts), secrets, is_over=True)
    for value in values:
        for line in value.splitlines():
            assert len(line) < 4 or line.encode() not in shown


SCRIPT = """
import base64, json, os, time
token, key = os.environ["TOKEN"], os.environ["KEY"]
print("as it is:", token, "and", os.environ["PIN"], flush=True)
print(key, repr(key), base64.b64encode(("me:" + token).encode()).decode())
print("x" * 70_000 + token, flush=True)
open("outputs/own.txt", "w").write(token)
open("second line of it", "w").close()
with open("outputs/metrics.jsonl", "w") as metrics:
    metrics.write(json.dumps({"epoch": 1, "note": ["by " + token], token: 2}) + "\\n")
content = token.encode()
os.write(1, b"the half: " + content[:9])
open("outputs/half", "w").close()
while not os.path.exists("outputs/go"):
    time.sleep(0.02)
os.write(1, content[9:] + b" and the rest\\n")
raise SystemExit("the key was " + token)
"""


@pytest.fixture(params=["here", pytest.param("3.8", marks=pytest.mark.soak)])
def wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> Wrapped:
    wrapped = Wrapped(
        FolderBlobs(tmp_path / "store"), tmp_path / "node", python=python_of(request.param)
    )
    wrapped.order_script(SCRIPT, variables=SECRETS, secrets=tuple(SECRETS))
    return wrapped


def leaks(text: str) -> list[str]:
    parts = [TOKEN, TOKEN[:9], TOKEN[9:], *KEY.splitlines(), "s3cr/t", "=="]
    return [part for part in parts if len(part) >= 4 and part in text]


@pytest.mark.slow
def test_a_script_that_prints_its_secrets_shows_none(wrapped: Wrapped):
    with wrapped.running() as launcher:
        wrapped.wait_for_file("half")
        wait_until(lambda: "the half: " in wrapped.log(), LIMIT_S, "the log in the store")
        assert wrapped.log().endswith("the half: "), "what may be a secret is held back"
        (wrapped.outputs / "go").touch()
        shown = launcher.communicate(timeout=LIMIT_S)[0].decode()
    progress = wrapped.final()
    for text in (shown, wrapped.log(), progress.to_json().decode()):
        assert leaks(text) == [], text
    assert shown == wrapped.log()
    assert shown.startswith("as it is: *** and 123\n***\n***\n}\n***")
    assert "the half: *** and the rest\n" in shown
    assert progress.reason.endswith("exit code 1: the key was ***")
    assert progress.metrics == {"epoch": 1, "note": ["by ***"], "***": 2}
    assert [file.name for file in progress.files.largest_kept] == ["***"]
    assert wrapped.stored()["own.txt"] == TOKEN.encode(), "a file of its own is not changed"


@pytest.mark.slow
def test_a_log_that_another_process_finishes_is_masked_too(wrapped: Wrapped):
    wrapped.pace = Pace(log_s=600, outputs_s=600, heartbeat_s=0.5, patience_s=60)
    with wrapped.running() as launcher:
        wrapped.wait_for_file("half")
        assert wrapped.log() == ""
        supervisor = wrapped.supervisor()
        os.kill(launcher.pid, signal.SIGSTOP)  # it would finish the job itself
        os.kill(supervisor, signal.SIGKILL)
        launcher.kill()
        launcher.wait()
        assert recover(wrapped.scratch, wrapped.blobs, f"found dead with {TOKEN}")
    assert wrapped.log().startswith("as it is: *** and 123\n") and TOKEN not in wrapped.log()
    assert wrapped.final().reason == "found dead with ***"
