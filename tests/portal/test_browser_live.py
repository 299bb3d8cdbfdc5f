"""What happens while one looks: a runner at work, a job that prints, a change, a store that goes
away; and who is let in."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from edgeloop.testing.faces import make_faces
from edgeloop.view.portal import feed
from edgeloop.view.portal.tokens import opening_page
from tests.peers.browser import Browser
from tests.peers.postgres import Postgres
from tests.portal.browsing import browser, make_project, portal_of
from tests.portal.farm import SHOWN, fill
from tests.portal.serving import Site, portal_here, run_here
from tests.runner.conftest import NETS, SIZES

__all__ = ["browser"]

LONG_MS = 120_000
TOKEN = "sixteen-letters-or-more"
SCRIPT = """
import json, pathlib, time
print("one", flush=True)
go = pathlib.Path("{go}")
while not go.exists():
    time.sleep(0.02)
print("\\x1b[32mtwo\\x1b[0m <b>bold</b>", flush=True)
pathlib.Path("outputs").mkdir(exist_ok=True)
lines = [json.dumps({{"epoch": n, "loss": 1 / 2**n}}) + "\\n" for n in range(4)]
pathlib.Path("outputs/metrics.jsonl").write_text("".join(lines))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An empty project, and a portal that lets one change things."""
    folder = make_project(tmp_path_factory.mktemp("live"))
    with portal_of(folder, "--allow-changes") as found:
        yield found


def test_from_an_empty_page_to_a_model_that_a_runner_measures(browser: Browser, site: Site) -> None:
    """The same page all the time: nobody loads it again."""
    with browser.tab(site.at("/")) as tab:
        page = tab.page
        expect(page.locator(".empty")).to_contain_text("edgeloop upload model.onnx")
        expect(page.locator("#live")).to_have_text("live")
        with site.workspace() as workspace:
            workspace.upload(NETS / "unet-w8.onnx", "small", benchmark_only=True)
        row = page.locator("tr[data-name=small]")
        expect(row).to_contain_text("next: convert")
        make_faces(site.folder / "faces", 30, 64, seed=3)
        where = ("--dataset", "faces", "--device", "htp", *SIZES)
        runner = subprocess.Popen(
            [sys.executable, "-m", "edgeloop", "runner", "--drain", *where],
            cwd=site.folder,
            env=site.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            expect(row).to_contain_text("running", timeout=LONG_MS)
            expect(row.locator(".who")).not_to_be_empty()
            expect(row).to_contain_text("complete", timeout=LONG_MS)
            interval = re.compile(r"^est[\d.]+ \(?[\d.]+ – [\d.]+\)?$")
            expect(row.locator(".is-estimate")).to_have_text(interval)
        finally:
            runner.wait(60)
        row.get_by_role("link").click()
        expect(page.locator("ol.stages li").nth(1)).to_contain_text("1 run, deterministic")
        expect(page.locator("#files")).to_contain_text("perf_results_1.csv")
        tab.keep_picture("model-measured")


def test_a_job_is_followed_its_files_fetched_and_it_is_run_again_and_aborted(
    browser: Browser, site: Site, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    (site.folder / "talk.py").write_text(SCRIPT.format(go=go))
    run_here(site.folder, "job", "submit", "talk.py", "--name", "talk", "--compute", "local")
    with browser.tab(site.at("/jobs")) as tab:
        page = tab.page
        expect(page.get_by_role("row", name="talk")).to_contain_text("running", timeout=LONG_MS)
        page.get_by_role("link", name="talk").click()
        log = page.locator("#log")
        expect(log).to_contain_text("one")
        expect(page.locator("#log-state")).to_have_text("following")
        page.get_by_role("button", name="Pause").click()
        go.touch()
        expect(page.locator("#head")).to_contain_text("completed", timeout=LONG_MS)
        assert "two" not in log.inner_text()
        page.get_by_role("button", name="Follow").click()
        expect(log).to_contain_text("two <b>bold</b>")
        expect(page.locator("#log-state")).to_have_text("the log has ended")
        curve = page.get_by_role("img", name="loss: 4 values between 0.125 and 1")
        expect(curve.locator("polyline")).to_have_attribute("points", re.compile("^0.00,0.00 "))
        with page.expect_download() as download:
            page.get_by_role("link", name="metrics.jsonl").click()
        assert download.value.path().read_text().endswith('"loss": 0.125}\n')
        tab.keep_picture("job-light")
        go.unlink()
        page.get_by_role("button", name="Resubmit").click()
        page.get_by_role("button", name="Resubmit", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("talk.2", timeout=LONG_MS)
        expect(page.locator("#log")).to_contain_text("one", timeout=LONG_MS)
        page.get_by_role("button", name="Abort").click()
        page.get_by_role("button", name="Abort", exact=True).click()
        expect(page.locator("#head")).to_contain_text("canceled", timeout=LONG_MS)
        expect(page.get_by_role("button", name="Resubmit")).to_be_visible()


def test_a_model_is_reset_moved_up_and_deleted_from_its_page(browser: Browser, site: Site) -> None:
    with site.workspace() as workspace:
        row = {"name": "spare", "status": "complete", "f1_onnx": 0.5, "benchmark_only": 0}
        workspace.store.models("default").insert("spare", row)
    with browser.tab(site.at("/models/spare")) as tab:
        page = tab.page
        page.get_by_label("Priority").fill("3")
        page.get_by_role("button", name="Set", exact=True).click()
        expect(page.locator("#facts")).to_contain_text("priority")
        page.get_by_label("Test again").select_option("f1_onnx")
        page.get_by_role("button", name="Reset").click()
        expect(page.locator("#head")).to_contain_text("new")
        with site.workspace() as workspace:
            now = workspace.model("spare").row
            assert now["priority"] == 3 and "f1_onnx" not in now
        page.get_by_role("button", name="Delete this model").click()
        page.get_by_role("button", name="Keep it").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.get_by_role("button", name="Delete this model").click()
        tab.keep_picture("delete")
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Models")
        expect(page.locator("tr[data-name=spare]")).to_have_count(0)
    with site.workspace() as workspace:
        assert workspace.store.models("default").get("spare") is None


def test_tags_and_a_note_are_kept_and_seen_by_others(browser: Browser, site: Site) -> None:
    with site.workspace() as workspace:
        workspace.store.models("default").insert("noted", {"name": "noted", "status": "complete"})
    note = "Ship it <b>after</b> the fair."
    with browser.tab(site.at("/models/noted")) as other, browser.tab(other.page.url) as tab:
        tab.page.get_by_label("Tags, separated by commas").fill("to ship, , baseline,to ship")
        tab.page.get_by_label("Note", exact=True).fill(note)
        tab.page.get_by_role("button", name="Save").click()
        for each in (tab, other):
            expect(each.page.locator("#comment")).to_have_text(note)
            expect(each.page.locator("#head .tag")).to_have_text(["to ship", "baseline"])
        tab.page.get_by_label("Tags, separated by commas").fill("x" * 61)
        tab.page.get_by_role("button", name="Save").click()
        expect(tab.page.locator("#refused span")).to_contain_text("60 characters")
        tab.expect_failure(422)
    with site.workspace() as workspace:
        row = workspace.model("noted").row
        assert (row["comment"], row["tags"]) == (note, '["to ship", "baseline"]')
        assert [each.key for each in workspace.find((), "to ship")] == ["noted"]


def test_what_the_server_refuses_is_said_on_the_page(browser: Browser, site: Site) -> None:
    with site.workspace() as workspace:
        workspace.store.models("default").insert("idea", {"name": "idea", "status": "candidate"})
    with browser.tab(site.at("/models/idea")) as tab:
        tab.page.get_by_role("button", name="Reset").click()
        expect(tab.page.locator("#refused")).to_contain_text("there is nothing to test")
        tab.expect_failure(400)


def test_a_number_that_is_too_large_is_refused_in_words(browser: Browser, site: Site) -> None:
    with site.workspace() as workspace:
        workspace.store.models("default").insert("far", {"name": "far", "status": "complete"})
    with browser.tab(site.at("/models/far")) as tab:
        tab.page.get_by_label("Priority").fill("100000000")
        tab.page.get_by_role("button", name="Set", exact=True).click()
        said = "priority: Input should be less than or equal to 99999999"
        expect(tab.page.locator("#refused span")).to_have_text(said)
        tab.expect_failure(422)


def test_a_portal_with_a_token_asks_for_it(browser: Browser, tmp_path: Path) -> None:
    make_project(tmp_path)
    with (
        portal_here(tmp_path, token=TOKEN) as found,
        browser.tab(found.at("/devices")) as tab,
    ):
        page = tab.page
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        tab.keep_picture("login")
        page.get_by_label("Token").fill("a-wrong-one-of-length")
        page.get_by_role("button", name="Open the portal").click()
        expect(page.get_by_role("alert")).to_contain_text("not the portal's token")
        tab.expect_failure(401)
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Open the portal").click()
        expect(page.locator("#live")).to_have_text("live")
        assert TOKEN not in page.url
        page.goto(found.at("/jobs"))
        expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")


def test_one_click_on_the_printed_link_is_enough(browser: Browser, tmp_path: Path) -> None:
    """Also from the private file that --open opens, and later from a page of another site: the
    cookie is strict, and a browser does not send it when others lead to us."""
    make_project(tmp_path)
    fill(tmp_path, count=20)
    state = tmp_path / "state"
    with portal_of(tmp_path, environ={"EDGELOOP_STATE": str(state)}, asks=True) as found:
        token = (state / "portal/token").read_text()
        assert (state / "portal/token").stat().st_mode & 0o777 == 0o600
        assert found.url.endswith(f"/?token={token}")
        with browser.tab(found.url) as tab:
            expect(tab.page.locator("#live")).to_have_text("live", timeout=LONG_MS)
            expect(tab.page.locator("#rows tr")).to_have_count(20, timeout=LONG_MS)
            assert token not in tab.page.url
            tab.keep_picture("first visit")
        opened = opening_page(found.url, state)
        assert token not in opened
        home = found.url.partition("?")[0]
        with browser.tab(f"{home}login") as tab:
            page = tab.page
            page.goto(opened)
            expect(page.locator("#rows tr")).to_have_count(20, timeout=LONG_MS)
            assert token not in page.url
            wiki = tmp_path / "wiki.html"
            wiki.write_text(f'<a href="{home}devices">devices</a>')
            page.goto(wiki.as_uri())
            page.get_by_role("link").click()
            title = page.get_by_role("heading", level=1)
            expect(title).to_have_text("Devices", timeout=LONG_MS)
            tab.troubles.clear()  # Chromium has its own opinion of files; the first tab had none


def test_a_store_that_goes_away_is_said_and_so_is_its_return(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LONGEST_PAUSE_S", feed.PAUSE_S)
    make_project(tmp_path)
    with Postgres() as server:
        name = server.make_database()
        address = f"{server.url_of(name)}?blobs=file://{tmp_path / 'blobs'}"
        environ = {"EDGELOOP_STORE": address}
        fill(tmp_path, environ, count=20)
        with portal_here(tmp_path, environ) as found, browser.tab(found.at("/")) as tab:
            page = tab.page
            expect(page.locator("#rows tr")).to_have_count(20)
            server.stop()
            banner = page.locator("#banner .banner")
            expect(banner).to_contain_text("What you see was read", timeout=LONG_MS)
            expect(page.locator("#rows tr")).to_have_count(20)
            live = page.locator("#live")
            expect(live).to_have_text(re.compile(r"^as of \d\d:\d\d$"))
            tab.keep_picture("away")
            page.goto(found.at("/devices"))  # a page that is opened now says it from the start
            expect(live).to_have_text(re.compile(r"^as of \d\d:\d\d$"))
            expect(live).to_have_attribute("title", re.compile("The store does not answer"))
            page.goto(found.at("/"))
            server.start()
            expect(banner).to_have_count(0, timeout=LONG_MS)
            expect(live).to_have_text("live")
            expect(page.locator(f"tr[data-name={SHOWN}]")).to_be_visible()
