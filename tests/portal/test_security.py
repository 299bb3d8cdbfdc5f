"""Who gets in, from where, and what strangers cannot do.

Requests that no browser sends are in `tests/hostile/http.py`.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.testclient import TestClient

from edgeloop.errors import StoreUnavailable
from edgeloop.settings import Settings
from edgeloop.view.portal.app import WRONG_DELAY_S, create_app
from edgeloop.view.portal.auth import LASTS_S, Sessions, local_path
from edgeloop.view.portal.state import PortalOptions
from edgeloop.view.portal.tokens import own_token
from edgeloop.workspace import Workspace
from tests.cli.conftest import command, edgeloop, project
from tests.portal.conftest import TOKEN, MakeClient, clients_of
from tests.portal.live import live

__all__ = ["command", "edgeloop", "project"]

PAGES = ("/", "/pareto", "/devices", "/jobs", "/searches", "/models/nobody", "/login", "/nothing")
API = ("/api/v1/models", "/api/v1/jobs", "/api/v1/events", "/api/openapi.json", "/metrics")


ROW = {"name": "a", "status": "complete"}


def insert(workspace: Workspace) -> None:
    workspace.store.models(workspace.experiment).insert("a", dict(ROW))


@pytest.fixture(scope="module")
def make_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeClient]:
    """Portals on a store with one model, for requests that may change nothing."""
    folder = tmp_path_factory.mktemp("shared")
    with Workspace(Settings.load(folder, {})) as workspace:
        insert(workspace)
        with clients_of(workspace) as make:
            yield make
        assert workspace.status() == [ROW]


@pytest.fixture(scope="module")
def reader(make_shared: MakeClient) -> TestClient:
    return make_shared()


@pytest.fixture(scope="module")
def stranger(make_shared: MakeClient) -> TestClient:
    return make_shared(token=TOKEN)


@pytest.fixture(scope="module")
def writer(make_shared: MakeClient) -> TestClient:
    return make_shared(allow_changes=True)


# What a browser is told


@pytest.mark.parametrize("path", [*PAGES, "/api/v1/models", "/static/base.css", "/metrics"])
def test_every_answer_forbids_what_no_page_of_ours_does(reader: TestClient, path: str):
    headers = reader.get(path).headers
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", PAGES)
def test_no_page_has_anything_inline(reader: TestClient, path: str):
    text = reader.get(path).text.lower()
    assert "<script>" not in text and " onclick=" not in text and " style=" not in text
    assert "<style" not in text and "javascript:" not in text


# Names


@pytest.mark.parametrize(
    "host", ["localhost:9", "127.0.0.1", "[::1]:8750", "LOCALHOST", "127.8.9.1"]
)
def test_names_of_this_machine_are(reader: TestClient, host: str):
    assert reader.get("/api/v1/models", headers={"host": host}).status_code == 200


# The token


@pytest.mark.parametrize("path", API)
def test_programs_without_the_token_are_refused(stranger: TestClient, path: str):
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}):
        got = stranger.get(path, headers=headers)
        assert (got.status_code, got.headers["www-authenticate"]) == (401, "Bearer")
        assert "set-cookie" not in got.headers
    for method in ("HEAD", "OPTIONS", "POST", "PUT", "DELETE", "TRACE"):
        assert stranger.request(method, path).status_code == 401, method


def test_programs_with_the_token_get_in(make_client: MakeClient):
    client = make_client(token=TOKEN)
    for path in ("/api/v1/models", "/metrics", "/"):
        assert client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_people_are_led_to_the_form_and_back(make_client: MakeClient):
    client = make_client(token=TOKEN)
    sent = client.get("/pareto?x=macs")
    assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=%2Fpareto%3Fx%3Dmacs")
    assert client.get(sent.headers["location"]).status_code == 200
    wrong = client.post("/login", data={"token": "wrong", "next": "/pareto"})
    assert wrong.status_code == 401 and "set-cookie" not in wrong.headers
    right = client.post("/login", data={"token": TOKEN, "next": "/pareto?x=macs"})
    assert (right.status_code, right.headers["location"]) == (303, "/pareto?x=macs")
    assert client.get("/pareto?x=macs").status_code == 200
    assert client.get("/api/v1/models").status_code == 200


def test_a_wrong_token_in_the_form_costs_time_and_the_right_one_none(
    stranger: TestClient, monkeypatch: pytest.MonkeyPatch
):
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("edgeloop.view.portal.app.asyncio", SimpleNamespace(sleep=wait))
    assert stranger.post("/login", data={"token": "wrong"}).status_code == 401
    assert waits == [WRONG_DELAY_S] and WRONG_DELAY_S >= 0.5
    assert stranger.post("/login", data={"token": TOKEN}).status_code == 303
    assert waits == [WRONG_DELAY_S]
    stranger.cookies.clear()


def test_a_request_with_a_length_and_chunks_is_refused(reader: TestClient):
    """A proxy in front may believe the one, and we the other. Our own server refuses it before."""
    headers = {"content-length": "2", "transfer-encoding": "chunked"}
    got = reader.post("/api/v1/models", content=b"{}", headers=headers)
    assert (got.status_code, got.headers["connection"]) == (400, "close")


@pytest.mark.parametrize("path", ["/api/v1/failing", "/failing"])
def test_an_error_shows_no_secret_of_the_store(make_client: MakeClient, path: str):
    def fail() -> None:
        raise StoreUnavailable(store="postgresql://me:hunter2hunter2@db/lab", reason="timeout")

    client = make_client()
    client.app.add_api_route(path, fail)  # type: ignore[attr-defined]
    got = client.get(path)
    assert got.status_code == 503 and "postgresql://me:***@db/lab" in got.text
    assert "hunter" not in got.text


def test_a_link_with_the_token_leads_to_an_address_without(make_client: MakeClient):
    client = make_client(token=TOKEN)
    got = client.get(f"/pareto?x=macs&token={TOKEN}&y=f1_1k")
    assert (got.status_code, got.headers["location"]) == (303, "/pareto?x=macs&y=f1_1k")
    cookie = got.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
    assert client.get(got.headers["location"]).status_code == 200
    assert TOKEN not in client.get("/").text
    wrong = make_client(token=TOKEN).get("/?token=wrong")
    assert wrong.headers["location"] == "/login?wrong=1" and "set-cookie" not in wrong.headers


def test_health_needs_no_token_and_says_nothing_of_the_store(make_client: MakeClient):
    got = make_client(token=TOKEN).get("/api/v1/health")
    assert got.status_code == 200
    assert set(got.json()) == {"status", "version", "read_at"}


def test_a_forged_or_old_cookie_is_none(make_client: MakeClient):
    client = make_client(token=TOKEN)
    mine = Sessions(TOKEN)
    old = Sessions(TOKEN, clock=lambda: -2.0 * LASTS_S).begin()
    session, _, digest = mine.begin().partition(".")
    forged = [
        Sessions("another-token-of-another").begin(),
        f"{session}x.{digest}",
        f"{session}.{digest[:-1]}0" if digest[-1] != "0" else f"{session}.{digest[:-1]}1",
        "",
        ".",
        old,
        TOKEN,
        "\u00fc.\u00fc",
    ]
    for value in forged:
        header = f"edgeloop_portal_8750={value}".encode()
        got = client.get("/api/v1/models", headers={"cookie": header})  # type: ignore[dict-item]
        assert got.status_code == 401, value
    good = {"cookie": f"edgeloop_portal_8750={mine.begin()}"}
    assert client.get("/api/v1/models", headers=good).status_code == 200


@pytest.mark.parametrize(
    "wanted",
    [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "\\\\evil",
        "x",
        "",
        "///a",
        "/\t/e",
    ],
)
def test_the_form_never_leads_elsewhere(wanted: str):
    assert httpx.URL("http://127.0.0.1/").join(local_path(wanted)).host == "127.0.0.1"
    assert local_path(wanted).startswith("/") and not local_path(wanted).startswith("//")


# Changes


def change(client: TestClient, headers: dict[str, str] | None = None) -> int:
    answer = client.post("/api/v1/models/a/priority", json={"priority": 3}, headers=headers)
    return int(answer.status_code)


def page_headers(client: TestClient) -> dict[str, str]:
    """As a page of ours would send them."""
    token = client.get("/api/v1/session").json()["token"]
    here = {"sec-fetch-site": "same-origin", "origin": str(client.base_url).rstrip("/")}
    return {**here, "x-edgeloop-token": token}


def test_nothing_is_changed_unless_it_is_allowed(make_client: MakeClient, workspace: Workspace):
    insert(workspace)
    client = make_client()
    for verb in ("reset", "priority", "annotation", "delete"):
        got = client.post(
            f"/api/v1/models/a/{verb}", json={"priority": 1}, headers=page_headers(client)
        )
        assert got.status_code in (403, 422)
    for verb in ("abort", "resubmit"):
        got = client.post(f"/api/v1/jobs/a/{verb}", json={}, headers=page_headers(client))
        assert got.status_code == 403 and "--allow-changes" in got.json()["detail"]
    assert change(client, page_headers(client)) == 403
    got = client.post("/api/v1/models/a/delete", json={}, headers=page_headers(client))
    assert "--allow-changes" in got.json()["detail"]
    assert workspace.status() == [ROW]


def test_a_page_of_ours_may_change(make_client: MakeClient, workspace: Workspace):
    insert(workspace)
    client = make_client(allow_changes=True)
    headers = page_headers(client)
    assert change(client, headers) == 200
    assert workspace.status()[0]["priority"] == 3
    got = client.post("/api/v1/models/a/reset", json={"stages": ["f1_1k"]}, headers=headers)
    assert got.json() == {"name": "a", "done": "reset", "stages": ["f1_1k"]}
    assert workspace.status()[0]["status"] == "new"
    assert client.post("/api/v1/models/a/delete", json={}, headers=headers).status_code == 200
    assert workspace.status() == []


def test_a_stage_of_a_further_device_is_reset_from_the_page(
    make_client: MakeClient, workspace: Workspace
):
    """Its name has a space and a colon in it."""
    devices = {"qcs8550": "snpe:qcs8550", "htp:x-elite": "qnn:x-elite"}
    measured = {"mean": 0.002, "mean_on_htp_x_elite": 0.0005, "f1_1k_on_htp_x_elite": 0.9}
    targets = json.dumps({"primary": "qcs8550", "devices": devices})
    row = {"name": "both", "status": "waiting", "targets": targets, **measured}
    workspace.store.models(workspace.experiment).insert("both", row)
    client = make_client(allow_changes=True)
    page = client.get("/models/both").text
    assert '<option value="benchmark htp:x-elite">benchmark htp:x-elite</option>' in page
    got = client.post(
        "/api/v1/models/both/reset",
        json={"stages": ["benchmark htp:x-elite"]},
        headers=page_headers(client),
    )
    assert got.json()["stages"] == ["benchmark htp:x-elite", "f1_1k htp:x-elite"]
    (left,) = workspace.status()
    assert left["mean"] == 0.002 and not {"mean_on_htp_x_elite", "f1_1k_on_htp_x_elite"} & {*left}


def test_strangers_may_not(make_client: MakeClient, workspace: Workspace):
    insert(workspace)
    client = make_client(allow_changes=True)
    good = page_headers(client)
    assert change(client) == 403
    assert change(client, {**good, "x-edgeloop-token": "0" * 64}) == 403
    assert change(client, {**good, "sec-fetch-site": "cross-site"}) == 403
    assert change(client, {**good, "sec-fetch-site": "same-site"}) == 403
    assert change(client, {**good, "origin": "http://evil.example"}) == 403
    assert change(client, {**good, "origin": "null"}) == 403
    other = page_headers(make_client(allow_changes=True))
    assert change(client, {**good, "x-edgeloop-token": other["x-edgeloop-token"]}) == 403
    form = client.post("/api/v1/models/a/delete", data={"a": "b"}, headers=good)
    assert form.status_code in (403, 415, 422)
    assert change(client, good) == 200
    assert "priority" in workspace.status()[0]


def test_a_program_with_the_token_may_change(make_client: MakeClient, workspace: Workspace):
    insert(workspace)
    client = make_client(token=TOKEN, allow_changes=True)
    assert change(client) == 401
    assert change(client, {"authorization": f"Bearer {TOKEN}"}) == 200


def test_cookies_of_other_programs_do_not_lock_anybody_out(make_client: MakeClient):
    client = make_client(token=TOKEN, host="0.0.0.0")
    client.get("/", params={"token": TOKEN})
    own = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    client.cookies.clear()
    for others in ('theme={"a": 1}', "a b", "=;;", "x=\xff"):
        got = client.get("/", headers={"cookie": f"{others}; {own}".encode("latin-1")})
        assert got.status_code == 200, others


def test_the_guard_looks_at_the_path_that_is_routed(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
):
    """Old versions of Starlette put the Host header before it: `Host: x/static/` opened all."""
    client = make_client(token=TOKEN, host="0.0.0.0")
    made_up = URL("http://x/static//api/v1/models")
    monkeypatch.setattr(Request, "url", property(lambda _: made_up))
    assert client.get("/api/v1/models").status_code == 401


# Starting


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_an_address_that_others_reach_needs_a_token(edgeloop, host: str):
    got = edgeloop("portal", "--host", host, "--port", 0, "--no-token")
    assert got.code == 2
    assert "needs a token" in got.err and "--no-token" in got.err


@pytest.mark.parametrize("text", ["short", "sixteen letters or so", "sechzehn-längere-zeichen"])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(edgeloop, monkeypatch, text: str):
    monkeypatch.setenv("EDGELOOP_PORTAL_TOKEN", text)
    got = edgeloop("portal", "--port", 0)
    assert got.code == 2 and ("16 characters" in got.err or "ASCII" in got.err)


def test_a_token_on_the_command_line_is_refused(edgeloop):
    """Every user of a machine reads the arguments of all processes."""
    got = edgeloop("portal", "--token", TOKEN, "--port", 0)
    assert got.code == 2 and "EDGELOOP_PORTAL_TOKEN" in got.err and "--token-file" in got.err
    assert TOKEN not in got.err


def test_files_that_hold_no_token_are_refused(edgeloop, tmp_path: Path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff" * 40)
    (tmp_path / "long").write_text("x" * 10_000)
    os.mkfifo(tmp_path / "pipe")
    for name in ("empty", "binary", "long", "pipe", "missing", ""):
        got = edgeloop("portal", "--port", 0, "--token-file", tmp_path / name)
        assert got.code in (1, 2) and name in got.err and "Traceback" not in got.err


def test_a_token_is_made_once_and_nobody_else_can_read_it(tmp_path: Path):
    state = tmp_path / "state"
    made = own_token(folder=state)
    assert made.file and (made.file.stat().st_mode & 0o777) == 0o600
    assert (made.file.parent.stat().st_mode & 0o777) == 0o700
    assert own_token(folder=state) == made and len(made.text) >= 32
    renewed = own_token(renew=True, folder=state)
    assert renewed.text != made.text and own_token(folder=state) == renewed
    made.file.chmod(0o644)  # others may have read it
    assert own_token(folder=state).text != renewed.text
    made.file.unlink()
    stolen = tmp_path / "of-somebody-else"
    stolen.write_text("a-token-that-somebody-else-knows")
    made.file.symlink_to(stolen)
    assert own_token(folder=state).text != stolen.read_text()
    assert stolen.read_text() == "a-token-that-somebody-else-knows"
    nowhere = own_token(folder=Path("/dev/null/state"))
    assert nowhere.file is None and len(nowhere.text) >= 32


@pytest.mark.slow
def test_the_users_own_token_is_in_the_link_and_nowhere_else(tmp_path: Path):
    environ = {"EDGELOOP_STATE": str(tmp_path / "state"), "EDGELOOP_PORTAL_TOKEN": ""}
    with live(tmp_path, "--host", "0.0.0.0", "--new-token", environ=environ) as portal:
        link = httpx.URL(portal.said["link"]).copy_with(host="127.0.0.1")
        token = link.params["token"]
        assert token == own_token(folder=tmp_path / "state").text
        assert token.encode() not in Path(f"/proc/{portal.process.pid}/cmdline").read_bytes()
        assert token.encode() not in Path(f"/proc/{portal.process.pid}/environ").read_bytes()
        assert httpx.get(link.copy_with(query=None)).status_code == 303
        assert httpx.get(link.join("/api/v1/session")).status_code == 401
        with httpx.Client(follow_redirects=True) as client:
            got = client.get(link)
            assert got.status_code == 200 and got.url.query == b""
            assert token not in got.text
        code, err = portal.end()
        assert code == 130 and token not in err


def test_who_is_led_here_by_another_site_is_let_in_by_a_page_of_ours(make_client: MakeClient):
    """A browser sends a strict cookie neither then nor after a redirect."""
    client = make_client(token=TOKEN)
    led = {"sec-fetch-site": "cross-site"}
    got = client.get(f"/pareto?token={TOKEN}&x=%22%3E%3Cscript%3E", headers=led)
    assert got.status_code == 200 and "set-cookie" in got.headers and TOKEN not in got.text
    assert 'url=/pareto?x=%22%3E%3Cscript%3E"' in got.text
    stranger = make_client(token=TOKEN)
    got = stranger.get("/devices?a=b&c=d", headers=led)
    assert got.status_code == 200 and 'url=/devices?a=b&amp;c=d"' in got.text
    assert stranger.get("/devices", headers={"sec-fetch-site": "same-origin"}).status_code == 303
    assert stranger.get("/api/v1/models", headers=led).status_code == 401


# Behind a proxy, and with TLS


def test_the_name_of_a_proxy_is_ours(workspace: Workspace):
    insert(workspace)
    public = "https://portal.example"
    options = PortalOptions(token=TOKEN, allow_changes=True, public_url=public)
    with TestClient(create_app(workspace, options), public, follow_redirects=False) as client:
        got = client.get("/", params={"token": TOKEN})
        assert got.status_code == 303 and "Secure" in got.headers["set-cookie"]
        good = page_headers(client)
        assert change(client, {**good, "origin": public}) == 200
        assert change(client, {**good, "origin": public, "host": "127.0.0.1:8750"}) == 200
        assert change(client, {**good, "origin": "https://evil.example"}) == 403
        assert client.get("/", headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--public-url", "portal.example"), "https://portal.example"),
        (("--public-url", "https://a.example/portal"), "root"),
        (("--public-url", "https://[x"), "address"),
        (("--tls-cert", "a.pem"), "--tls-key"),
        (("--tls", "--tls-cert", "a", "--tls-key", "b"), "leave out"),
        (("--no-token", "--new-token"), "exclude"),
    ],
)
def test_options_that_contradict_each_other_are_refused(edgeloop, words: tuple[str, ...], said):
    got = edgeloop("portal", "--port", 0, *words)
    assert got.code == 2 and said in got.err


@pytest.mark.server
def test_a_certificate_that_is_none_is_refused(edgeloop, tmp_path: Path):
    from tests.peers.certificate import Certificate

    made = Certificate.make(tmp_path)
    (tmp_path / "other").mkdir()
    other = Certificate.make(tmp_path / "other")
    (tmp_path / "junk.pem").write_text("junk")
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", made.key, "-aes256", "-passout", "pass:x", "-out", locked],
        check=True,
    )
    for key, said in (
        (other.key, "is not the key of"),
        (tmp_path / "junk.pem", "not PEM"),
        (tmp_path / "nothing", "is not a file"),
        (locked, "is encrypted"),
    ):
        got = edgeloop("portal", "--port", 0, "--tls-cert", made.file, "--tls-key", key)
        assert got.code == 1 and said in got.err and "Traceback" not in got.err


@pytest.mark.slow
def test_a_portal_with_tls_speaks_nothing_else(tmp_path: Path):
    environ = {"EDGELOOP_STATE": str(tmp_path / "state"), "EDGELOOP_PORTAL_TOKEN": ""}
    with live(tmp_path, "--tls", "--new-token", environ=environ) as portal:
        link = portal.said["link"]
        assert link.startswith("https://127.0.0.1:")
        certificate = next((tmp_path / "state/portal").glob("tls-*.pem"))
        key = certificate.with_suffix(".key")
        assert (key.stat().st_mode & 0o777) == 0o600
        trusted = ssl.create_default_context(cafile=certificate)
        with httpx.Client(verify=trusted, follow_redirects=True) as client:
            got = client.get(link)
            assert got.status_code == 200
            assert "Secure" in got.history[0].headers["set-cookie"]
            assert client.get(link.partition("?")[0] + "api/v1/models").status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(link.replace("https:", "http:"))
        with pytest.raises(httpx.ConnectError):
            httpx.get(link)  # of a stranger's certificate
        was = key.read_bytes()
    with live(tmp_path, "--tls", "--token-file", "state/portal/token", environ=environ) as portal:
        assert key.read_bytes() == was and "token" not in portal.said["link"]
