"""The notebook runs from top to bottom, and every chart is there."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import httpx
import nbformat
import pytest
from click.testing import CliRunner
from nbclient import NotebookClient
from PIL import Image

from edgeloop import Workspace
from edgeloop.cli.app import app
from edgeloop.runner.presence import record_use
from tests.cli.terminals import Terminal
from tests.peers.process import accepts_connections, wait_until
from tests.report.tables import table
from tests.report.test_charts import PERF, SCORES

NOTEBOOK = Path(__file__).parents[1] / "edgeloop/view/results.ipynb"
CURVES = "class,recall,precision\nskin,0,1\nskin,0.5,0.9\nskin,1,0.4\nnose,0.1,0.8\nnose,1,0.2\n"
INTERVAL = "f1_low,,,0.6\nf1_high,,,0.75\n"
DRAWING = {
    *("front", "animation", "chip", "interval", "others", "training", "quantization", "layers"),
    *("classes", "curves", "use"),
}


def ran(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, str]]]:
    """The outputs of each code cell, by its id. A cell that raises ends it here."""
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    for name in ("EDGELOOP_STORE", "EDGELOOP_EXPERIMENT", "MODEL_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    book = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=120, kernel_name="python3", resources=where).execute()
    outputs = {cell.id: cell.outputs for cell in book.cells if cell.cell_type == "code"}
    kinds = {output.output_type for found in outputs.values() for output in found}
    assert kinds <= {"execute_result", "display_data"}, f"warnings or errors: {outputs}"
    return {name: [dict(output.data) for output in found] for name, found in outputs.items()}


def check_pictures(outputs: dict[str, list[dict[str, str]]]) -> None:
    assert set(outputs) == DRAWING | {"open"}
    for name in DRAWING:
        assert outputs[name], f"{name} shows nothing"
        for forms in outputs[name]:
            with Image.open(io.BytesIO(base64.b64decode(picture_of(forms)))) as picture:
                assert picture.width > 300
                assert len(picture.convert("RGB").getcolors(1 << 24)) > 30, f"{name} is empty"


def picture_of(forms: dict[str, str]) -> str:
    return forms.get("image/gif") or forms["image/png"]


def sentences(outputs: dict[str, list[dict[str, str]]], start: str) -> list[str]:
    """Cells whose chart says that something is missing."""
    return [
        name
        for name, found in outputs.items()
        if any(f">{start} " in forms.get("text/html", "") for forms in found)
    ]


def frames(forms: dict[str, str]) -> int:
    with Image.open(io.BytesIO(base64.b64decode(forms["image/gif"]))) as picture:
        return getattr(picture, "n_frames", 1)


def own_store(folder: Path) -> None:
    from datetime import UTC, datetime

    with Workspace.open(f"sqlite:{folder / '.edgeloop'}") as workspace:
        store = workspace.store
        for row in table(12):
            name = row["name"]
            store.models("default").insert(name, {**row, "f1_10k": row["f1_1k"]})
            store.blobs.put(f"default/{name}/perf_results_1.csv", PERF.encode())
            store.blobs.put(f"default/{name}/pr_curve_f1_10k.csv", CURVES.encode())
            results = (SCORES + INTERVAL).encode()
            store.blobs.put(f"default/{name}/test_results_f1_10k.csv", results)
        day = datetime(2026, 11, 3, 8, tzinfo=UTC)
        record_use(store.usage(), "htp:snapdragon-888", day, day.replace(hour=20))


def test_it_is_kept_without_outputs():
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert cells
    assert not [cell.id for cell in cells if cell.outputs or cell.execution_count]
    assert set(book.metadata) == {"kernelspec", "language_info"}


def test_the_command_writes_it_and_spares_an_older_one(tmp_path: Path):
    file = tmp_path / "charts.ipynb"
    written = CliRunner().invoke(app, ["notebook", "--no-open", str(file)])
    assert written.output == f"{file} written.\n"
    assert file.read_bytes() == NOTEBOOK.read_bytes()
    file.write_text("mine")
    again = CliRunner().invoke(app, ["notebook", "--no-open", str(file)])
    assert again.output == f"{file} is there already; --force writes a new one.\n"
    assert file.read_text() == "mine"
    assert CliRunner().invoke(app, ["notebook", "--json", "--force", str(file)]).exit_code == 0
    assert file.read_bytes() == NOTEBOOK.read_bytes()


def test_the_command_starts_jupyterlab_on_loopback_if_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lacking = CliRunner().invoke(app, ["notebook", str(tmp_path / "charts.ipynb")])
    assert lacking.exit_code == 1 and "pip install 'edgeloop[notebook]'" in lacking.output
    monkeypatch.undo()
    stand_in = "import pathlib, sys; pathlib.Path('opened').write_text(' '.join(sys.argv[1:]))"
    (tmp_path / "jupyterlab.py").write_text(stand_in)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert CliRunner().invoke(app, ["notebook", "charts.ipynb"]).exit_code == 0
    assert (tmp_path / "opened").read_text() == "--ip 127.0.0.1 --allow-root charts.ipynb"


@pytest.mark.soak
def test_without_a_store_it_draws_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    outputs = ran(tmp_path, monkeypatch)
    check_pictures(outputs)
    assert "demo data" in outputs["open"][0]["text/plain"]
    assert sentences(outputs, "No") == sentences(outputs, "There is no") == []
    assert "demo-host" in outputs["others"][0]["text/html"]
    assert frames(outputs["animation"][0]) >= 3


@pytest.mark.slow
def test_it_draws_the_store_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own_store(tmp_path)
    outputs = ran(tmp_path, monkeypatch)
    check_pictures({**outputs, "others": outputs["front"]})
    assert "12 models of experiment 'default'" in outputs["open"][0]["text/plain"]
    assert sentences(outputs, "No") == []
    assert sentences(outputs, "There is no") == ["others"]
    assert "95 % interval" in outputs["interval"][0]["text/html"]
    assert "calm-heron" in outputs["front"][0]["text/html"]
    assert "/enc/Conv" in outputs["layers"][0]["text/html"]


@pytest.mark.soak
def test_a_store_with_nothing_in_it_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / ".edgeloop").mkdir()
    outputs = ran(tmp_path, monkeypatch)
    assert set(sentences(outputs, "No")) == DRAWING - {"others", "animation"}


@pytest.mark.soak
def test_jupyterlab_opens_it_on_the_loopback_address_until_ctrl_c(tmp_path: Path):
    """The real server, in a terminal; the browser is a command that does nothing."""
    places = {name: str(tmp_path / name) for name in ("runtime", "config", "data")}
    environ = {f"JUPYTER_{name.upper()}_DIR": place for name, place in places.items()}
    (tmp_path / "project").mkdir()
    terminal = Terminal(["notebook"], tmp_path / "project", BROWSER="true", **environ)
    terminal.read_until("open this file in a browser", 120)
    pages = [path.read_text() for path in Path(places["runtime"]).glob("jpserver-*-open.html")]
    address_of_page = r"(http://127\.0\.0\.1:\d+)(/lab/tree/results\.ipynb)\?token=(\w+)"
    found = re.search(address_of_page, "\n".join(pages))
    assert found is not None, pages
    address, page_path, token = found.groups()
    port = int(address.rpartition(":")[2])
    wait_until(lambda: accepts_connections(port), 60, "JupyterLab to listen")
    with httpx.Client(base_url=address, timeout=30) as client:
        assert client.get("/api/contents/results.ipynb").status_code == 403, "without the token"
        client.headers["Authorization"] = f"token {token}"
        page = client.get(page_path)
        assert page.status_code == 200 and "<title>JupyterLab</title>" in page.text
        book = client.get("/api/contents/results.ipynb").json()
        assert book["type"] == "notebook" and len(book["content"]["cells"]) > len(DRAWING)
    terminal.type(b"\x03")
    terminal.read_until("Shut down this Jupyter server", 30)
    terminal.type(b"y\n")
    assert terminal.wait(60) == 130, terminal.seen
    assert "Stopped; results.ipynb is kept." in terminal.seen
