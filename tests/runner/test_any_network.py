"""The eight everyday exports, and a stacked hourglass of Archai, from upload to the portal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from edgeloop.testing.models import save_pair_model
from edgeloop.view.portal.app import create_app
from tests.conftest import clean_environ
from tests.exports import EVERYDAY, export_everyday
from tests.nets_archai import export_archai
from tests.runner.conftest import Farm

pytestmark = pytest.mark.slow

FEW = ("--quick-images", "2", "--thorough-images", "2", "--calibration-images", "2")
COMPARED = {"pair", "two_classes", "classifier"}


@pytest.mark.parametrize(
    ("everyday", "device"),
    [
        pytest.param(("dynamic_size",), "host", id="one"),
        pytest.param(tuple(EVERYDAY), "htp", id="all", marks=pytest.mark.soak),
    ],
)
def test_everyday_exports_walk_from_upload_to_portal(
    tmp_path: Path, faces: Path, everyday: tuple[str, ...], device: str
) -> None:
    farm = Farm.make(tmp_path / "project", faces, clean_environ())
    settings = farm.folder / "edgeloop.yaml"
    settings.write_text(settings.read_text().replace("benchmark_runs: 2", "benchmark_runs: 1"))
    for number, name in enumerate(everyday):
        export = EVERYDAY[name]
        path = export_everyday(name, tmp_path / "exports", external=not number % 2)
        sizes = "x".join(map(str, export.shape))
        shape = ("--shape", f"image={sizes}") if export.needs_shape else ()
        farm.edgeloop("upload", str(path), "--name", name, *shape)
    others = [save_pair_model(tmp_path / "pair.onnx")]
    if len(everyday) > 1:
        others.append(export_archai(tmp_path / "archai.onnx", size=64))
    for path in others:
        farm.edgeloop("upload", str(path), "--name", path.stem)
    farm.drain(*FEW, device=device)

    with farm.workspace() as workspace:
        rows = {str(row["name"]): row for row in workspace.status()}
        assert {row["status"] for row in rows.values()} == {"complete"}, rows
        for name, row in rows.items():
            assert float(row["mean"]) > 0, name
            if name in COMPARED:
                assert (row["task"], row["f1_1k"]) == ("tensors", "n/a"), name
                assert float(row["sqnr_db"]) > 8, name
                assert "instead of scored" in str(row["notes"]), name
            else:
                assert (row["task"], row["metric"]) == ("segmentation", "f1"), name
                assert isinstance(row["f1_1k"], float), name

        with TestClient(create_app(workspace), "http://127.0.0.1:8750") as visitor:
            page = visitor.get("/models/pair").text
            assert "Agreement with the float model, per output" in page
            assert "features" in page and "scores" in page
            assert "SQNR" in visitor.get("/").text
            assert visitor.get("/api/v1/pareto?y=sqnr_db").json()["points"]

    def compared(name: str) -> list[dict[str, Any]]:
        few = ("--dataset", str(faces), "--device", device, "--images", "2", "--json")
        variants: list[dict[str, Any]] = json.loads(farm.edgeloop("compare", name, *few).stdout)
        assert len(variants) == (4 if device == "htp" else 2)
        return variants

    agreeing = compared("pair")
    assert all(variant["sqnr_db"] > 8 for variant in agreeing[1:])
    assert not any("f1" in variant for variant in agreeing)
    assert all("f1" in variant for variant in compared("dynamic_size"))
    farm.edgeloop("report", "-o", "report.html")
    report = (farm.folder / "report.html").read_text()
    assert "Agreement with float" in report
    assert '<td class="v">features</td>' in report
