"""Models that a browser uploads: what is stored, what is refused, and that nothing is left over."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from edgeloop.view.portal import auth, uploads
from tests.conftest import clean_environ
from tests.peers.browser import Browser
from tests.peers.process import wait_until
from tests.portal.browsing import browser, make_project
from tests.portal.serving import Site, portal_here
from tests.qdq import constant
from tests.runner.conftest import NETS

__all__ = ["browser"]

NET = NETS / "unet-w8.onnx"
BINARY = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = make_project(tmp_path_factory.mktemp("uploads"))
    with portal_here(folder, allow_changes=True) as found:
        yield found


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where uploads are written; empty when each of them has ended."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    wait_until(lambda: not list(folder.glob("edgeloop-upload-*")), 20, "the upload to be removed")


def headers_of(site: Site, client: httpx.Client) -> dict[str, str]:
    token = client.get(site.at("/api/v1/session")).json()["token"]
    return {**BINARY, "x-edgeloop-token": token, "sec-fetch-site": "same-origin"}


def sent(
    site: Site,
    content: bytes,
    file: str = "net.onnx",
    headers: dict[str, str] | None = None,
    **query: str,
) -> httpx.Response:
    with httpx.Client(timeout=60) as client:
        own = headers_of(site, client)
        return client.post(
            site.at("/api/v1/uploads"),
            params={"file": file, **query},
            content=content,
            headers={**own, **(headers or {})},
        )


def models(site: Site) -> list[str]:
    with site.workspace() as workspace:
        return [str(row["name"]) for row in workspace.status()]


def test_a_model_is_stored_as_the_command_stores_it(site: Site, tmp_path: Path) -> None:
    answer = sent(site, NET.read_bytes(), "unet-w8.onnx", name="by-portal")
    assert answer.status_code == 200, answer.text
    assert answer.json()["name"] == "by-portal" and answer.json()["is_new"] is True
    assert answer.json()["outlook"] == "latency, segmentation"
    with site.workspace() as workspace:
        [path] = workspace.catalog.download("by-portal", tmp_path / "got", "*.onnx")
        assert path.name == "unet-w8.onnx" and path.read_bytes() == NET.read_bytes()
        assert workspace.status("by-portal")[0]["status"] == "new"
    again = sent(site, NET.read_bytes(), "unet-w8.onnx").json()
    assert (again["name"], again["is_new"]) == ("by-portal", False)


def with_data_elsewhere() -> bytes:
    from onnx import TensorProto, helper

    weights = constant("w", (3, 3, 3, 3))
    weights.ClearField("raw_data")
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="weights.bin")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "net",
        [value("x", TensorProto.FLOAT, (1, 3, 8, 8))],
        [value("y", TensorProto.FLOAT, (1, 3, 6, 6))],
        [weights],
    )
    return helper.make_model(graph).SerializeToString()


REFUSED = {
    "empty": (b"", "net.onnx", "empty"),
    "no ONNX": (b"\x89PNG not a model", "net.onnx", "not an ONNX model"),
    "half of a model": (NET.read_bytes()[:20_000], "net.onnx", "cut off"),
    "another ending": (b"x", "net.exe", "only ONNX files"),
    "a path": (b"x", "../net.onnx", "may not hold slashes"),
    "a path of Windows": (b"x", "..\\net.onnx", "may not hold slashes"),
    "an absolute path": (b"x", "/etc/net.onnx", "may not hold slashes"),
    "no name": (b"x", "", "may not hold slashes"),
    "data elsewhere": (with_data_elsewhere(), "net.onnx", "weights.bin"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_model_is_refused_in_one_sentence(
    site: Site, temporary: Path, name: str
) -> None:
    content, file, why = REFUSED[name]
    before = models(site)
    answer = sent(site, content, file)
    assert answer.status_code == 400, answer.text
    assert why in answer.json()["detail"] and str(temporary) not in answer.text
    assert models(site) == before


@pytest.mark.parametrize("model", ["../up", "a/b", ".", "<b>", "x" * 300])
def test_names_of_models_are_checked_before_the_file(site: Site, model: str) -> None:
    assert sent(site, b"x", name=model).status_code == 400
    assert model not in models(site)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-edgeloop-token": "wrong"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "https://example.org"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-encoding": "gzip"}, 415),
    ],
)
def test_only_pages_of_the_portal_upload(site: Site, headers: dict[str, str], status: int) -> None:
    answer = sent(site, b"x", headers=headers)
    assert answer.status_code == status and answer.json()["detail"]


def test_a_portal_that_only_shows_takes_no_file(browser: Browser, tmp_path: Path) -> None:
    with portal_here(make_project(tmp_path)) as site:
        answer = sent(site, NET.read_bytes())
        assert answer.status_code == 403 and "--allow-changes" in answer.json()["detail"]
        with browser.tab(site.at("/")) as tab:
            expect(tab.page.locator("h1")).to_have_text("Models")
            assert tab.page.locator("#upload, input[type=file]").count() == 0
        assert models(site) == []


def raw(site: Site, *lines: str, body: bytes = b"") -> socket.socket:
    """A request whose body may never come."""
    with httpx.Client() as client:
        headers = headers_of(site, client)
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    host, port = site.url.split("//")[1].rstrip("/").split(":")
    opened = socket.create_connection((host, int(port)), timeout=30)
    told = [f"{name}: {value}" for name, value in headers.items()]
    head = ["POST /api/v1/uploads?file=net.onnx HTTP/1.1", f"Host: {host}:{port}"]
    text = "\r\n".join([*head, f"Cookie: {cookie}", *told, *lines, "", ""])
    opened.sendall(text.encode() + body)
    return opened


def status_of(opened: socket.socket) -> int:
    with opened:
        return int(opened.recv(4096).split()[1])


def test_a_file_is_refused_by_its_announced_length(site: Site, temporary: Path) -> None:
    """Nothing of it is read, or written."""
    assert status_of(raw(site, f"Content-Length: {auth.MOST_UPLOAD + 1}")) == 413
    assert status_of(raw(site, "Content-Length: -1")) == 400
    assert status_of(raw(site, "Transfer-Encoding: chunked")) == 411
    assert list(temporary.iterdir()) == []


def test_an_upload_that_is_cut_off_leaves_nothing(site: Site, temporary: Path) -> None:
    opened = raw(site, "Content-Length: 1000000", body=b"x" * 200_000)
    wait_until(lambda: list(temporary.glob("*/net.onnx")), 20, "the file to be begun")
    opened.close()
    wait_until(lambda: not list(temporary.iterdir()), 20, "the file to be removed")
    assert "net" not in models(site)


def test_an_upload_that_falls_silent_ends(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "SILENT_S", 0.2)
    assert status_of(raw(site, "Content-Length: 1000", body=b"x")) == 408


def test_a_full_disk_is_said_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "ROOM_LEFT", 1 << 60)
    answer = sent(site, NET.read_bytes())
    assert answer.status_code == 507 and "disk" in answer.json()["detail"]


def test_only_a_few_uploads_run_at_once(site: Site, temporary: Path) -> None:
    opened = [raw(site, "Content-Length: 1000000", body=b"x") for _ in range(4)]
    wait_until(lambda: len(list(temporary.iterdir())) == 4, 20, "the uploads to begin")
    assert sent(site, b"x").status_code == 503
    for one in opened:
        one.close()
    wait_until(lambda: not list(temporary.iterdir()), 20, "the uploads to end")
    assert sent(site, b"x").status_code == 400


# In a browser


def test_files_are_chosen_with_keys_alone(browser: Browser, tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=alert(1)>.onnx"
    hostile.write_bytes(b"not a model")
    (tmp_path / "notes.txt").write_text("x")
    folder = tmp_path / "project"
    folder.mkdir()
    with (
        portal_here(make_project(folder), clean_environ(), allow_changes=True) as site,
        browser.tab(site.at("/")) as tab,
    ):
        page = tab.page
        page.on("filechooser", lambda _: None)  # Playwright takes choosers from here on, not later
        expect(page.locator("#no-models")).to_be_visible()
        expect(page.locator("#live")).to_have_text("live")
        page.get_by_role("button", name="Upload models").focus()
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Enter")
        chooser.value.set_files([str(hostile), str(tmp_path / "notes.txt")])
        lines = page.locator("#uploads li")
        expect(lines.nth(0)).to_contain_text("not an ONNX model")
        expect(lines.nth(1)).to_contain_text("Not an ONNX file.")
        assert page.locator("#uploads img").count() == 0
        tab.expect_failure(400)
        page.set_viewport_size({"width": 390, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.emulate_media(color_scheme="dark")
        tab.keep_picture("upload-refused-390-dark")
        page.reload()
        page.locator("#upload-files").set_input_files(str(NET))
        expect(page.locator("#rows tr")).to_have_count(1)  # the page is loaded again
        expect(page.locator("#rows")).to_contain_text("next: convert")
        tab.keep_picture("upload-done-390-dark")


def test_files_are_dropped_on_the_page(browser: Browser, site: Site) -> None:
    content = list((NETS / "unet-w16.onnx").read_bytes())
    with browser.tab(site.at("/"), size=(1400, 900)) as tab:
        page = tab.page
        transfer = page.evaluate_handle(
            """(content) => {
              const transfer = new DataTransfer();
              transfer.items.add(new File([new Uint8Array(content)], 'dropped.onnx'));
              return transfer;
            }""",
            content,
        )
        page.dispatch_event("main", "dragenter", {"dataTransfer": transfer})
        expect(page.locator("#upload")).to_have_class("drop is-over")
        tab.keep_picture("upload-over-1400-light")
        page.dispatch_event("main", "drop", {"dataTransfer": transfer})
        line = page.locator("#uploads li")
        expect(line).to_contain_text("latency, segmentation")
        tab.keep_picture("upload-done-1400-light")
        name = line.get_by_role("link").inner_text()
        expect(page.locator(f"tr[data-name={name}]")).to_contain_text("next: convert")
        line.get_by_role("link").click()
        expect(page.locator("h1")).to_have_text(name)
