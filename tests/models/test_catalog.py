"""What people do to models that are there, while machines may work on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.errors import (
    BadInput,
    BadName,
    LeaseLost,
    ModelBusy,
    NoSuchModel,
    StoreUnavailable,
    WaitTimeout,
)
from edgeloop.models.catalog import Catalog
from edgeloop.models.leases import Leases, Outcome
from edgeloop.models.plan import default_plan, records_of, with_records
from edgeloop.store import Store
from tests.cli.running import blobs_of, hints_of, rows_of
from tests.conftest import StoreUnderTest
from tests.models.test_upload import BlobsThatBreak, catalog_on, dead_upload
from tests.nets import save_tiny

NAMES = ("brave-otter", "brave-owl", "calm-heron")
CONVERTED = {
    "quantized": True,
    "macs": 1,
    "params": 1,
    "shape": "[1]",
    "output_shape": "[1]",
}


@pytest.fixture
def shop(
    make_place: Callable[[str], StoreUnderTest], make_store: Callable[[StoreUnderTest], Store]
) -> Store:
    """An embedded store."""
    return make_store(make_place("sqlite"))


@pytest.fixture
def catalog(shop: Store, tmp_path: Path) -> Catalog:
    catalog = catalog_on(shop)
    for number, name in enumerate(NAMES):
        catalog.upload(save_tiny(tmp_path / f"{name}.onnx", number), name)
    return catalog


def leases_on(store: Store) -> Leases:
    return Leases(store.models("default"), store.queue("default"), default_plan())


def names(rows: Iterable[object]) -> list[str]:
    return [row.key for row in rows]  # type: ignore[attr-defined]


def test_rows_come_by_name_and_by_glob_each_once(catalog: Catalog):
    assert names(catalog.rows()) == list(NAMES)
    assert names(catalog.rows(["calm-heron", "*"])) == ["calm-heron", "brave-otter", "brave-owl"]
    assert names(catalog.rows(["brave-o[tx]*"])) == ["brave-otter"]
    assert names(catalog.rows(["*-owl"])) == ["brave-owl"]


def test_a_name_or_glob_without_a_model_is_an_error_and_a_lone_star_is_not(shop: Store):
    assert names(catalog_on(shop).rows(["*"])) == []
    for pattern in ("x", "x*", "?", "*x"):
        with pytest.raises(NoSuchModel):
            names(catalog_on(shop).rows([pattern]))


def test_a_tag_cell_that_cannot_be_read_has_no_tags(shop: Store, catalog: Catalog):
    table = shop.models("default")
    table.update(catalog.get("brave-owl"), {"tags": "garbage"})
    table.update(catalog.get("calm-heron"), {"tags": '["a"]'})
    assert names(catalog.rows(tag="a")) == ["calm-heron"]


def test_files_of_attempts_that_were_not_accepted_do_not_show(shop: Store, catalog: Catalog):
    leases = leases_on(shop)
    lease = leases.claim(["quantize"], "n")
    assert lease is not None
    folder = f"default/{lease.model}"
    for attempt in ("one", "two"):
        shop.blobs.put(f"{folder}/.attempts/{attempt}/model.dlc", attempt.encode())
    leases.commit(lease, Outcome(CONVERTED, {"model.dlc": ".attempts/two/model.dlc"}))
    assert [file.name for file in catalog.files(lease.model)] == [
        "model.dlc",
        f"{lease.model}.onnx",
    ]


def test_download_gives_an_accepted_file_its_own_name(
    shop: Store, catalog: Catalog, tmp_path: Path
):
    leases = leases_on(shop)
    lease = leases.claim(["quantize"], "n")
    assert lease is not None
    shop.blobs.put(f"default/{lease.model}/.attempts/one/model.dlc", b"dlc")
    leases.commit(lease, Outcome(CONVERTED, {"model.dlc": ".attempts/one/model.dlc"}))
    paths = catalog.download(lease.model, tmp_path / "out", "*.dlc")
    assert paths == [tmp_path / "out/model.dlc"] and paths[0].read_bytes() == b"dlc"


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", ".."])
def test_a_row_cannot_make_a_download_leave_its_folder(
    shop: Store, catalog: Catalog, tmp_path: Path, name: str
):
    row = catalog.get("calm-heron")
    records = records_of(row.values)
    shop.blobs.put("default/calm-heron/.attempts/1/x", b"evil")
    records["convert"] = replace(records["upload"], files={name: ".attempts/1/x"})
    shop.models("default").update(row, with_records(records))
    with pytest.raises(BadName):
        catalog.download("calm-heron", tmp_path / "deep/out")
    assert not list(tmp_path.rglob("evil")) and not (tmp_path / "deep").exists()


def test_a_row_cannot_make_a_reset_delete_another_models_files(shop: Store, catalog: Catalog):
    row = catalog.get("calm-heron")
    records = records_of(row.values)
    stray = {"model.dlc": "../brave-owl/brave-owl.onnx"}
    records["convert"] = replace(records["upload"], files=stray)
    shop.models("default").update(row, with_records(records))
    catalog.reset("calm-heron")
    assert "default/brave-owl/brave-owl.onnx" in blobs_of(shop)


def test_delete_that_was_cut_off_can_be_said_again(shop: Store, catalog: Catalog):
    real = shop.blobs

    class Away(BlobsThatBreak):
        def delete(self, keys: Iterable[str]) -> None:
            raise StoreUnavailable(store="x", reason="gone")

    shop.blobs = Away(real, KeyboardInterrupt(), 0)
    with pytest.raises(StoreUnavailable):
        catalog.delete("calm-heron")
    shop.blobs = real
    assert rows_of(shop)["calm-heron"]["status"] == "deleting"
    assert leases_on(shop).claim(["quantize"], "n", only=lambda n: n == "calm-heron") is None
    catalog.delete("calm-heron")
    assert "calm-heron" not in rows_of(shop) and not blobs_of(shop, "default/calm-heron/")


def test_a_lease_on_a_deleted_model_is_lost(shop: Store, catalog: Catalog):
    leases = leases_on(shop)
    lease = leases.claim(["quantize"], "n")
    assert lease is not None
    catalog.delete(lease.model)
    with pytest.raises(LeaseLost):
        leases.commit(lease, Outcome(CONVERTED))
    assert lease.model not in rows_of(shop)


def test_a_lease_on_a_stage_that_was_reset_is_lost_and_others_are_kept(
    shop: Store, catalog: Catalog
):
    leases = leases_on(shop)
    mine = leases.claim(["quantize"], "n", only=lambda name: name == "calm-heron")
    other = leases.claim(["onnx"], "n", only=lambda name: name == "calm-heron")
    assert mine is not None and other is not None
    assert catalog.reset("calm-heron", ["convert"]) == {
        "convert",
        "benchmark",
        "f1_1k",
        "f1_1k_f",
        "f1_10k",
    }
    with pytest.raises(LeaseLost):
        leases.commit(mine, Outcome(CONVERTED))
    leases.commit(other, Outcome({"f1_onnx": 0.5}))
    assert rows_of(shop)["calm-heron"]["f1_onnx"] == 0.5


@pytest.mark.parametrize(
    ("stage", "columns"),
    [
        ("benchmark", ["device", "boards", "latency_kind", "peak_rss_bytes"]),
        ("f1_onnx", ["f1_onnx_images", "f1_onnx_set", "f1_onnx_low", "f1_onnx_high"]),
        ("f1_1k", ["sqnr_db", "cosine", "max_error", "top1_agreement", "f1_1k_low", "f1_1k_high"]),
    ],
)
def test_a_reset_clears_every_column_about_a_result(
    shop: Store, catalog: Catalog, stage: str, columns: list[str]
):
    said = dict.fromkeys(columns, "of the old result")
    row = catalog.get("calm-heron")
    shop.models("default").update(row, {**said, "f1_10k_set": "faces", "notes": "none"})
    catalog.reset("calm-heron", [stage])
    after = rows_of(shop)["calm-heron"]
    assert not set(columns) & set(after)
    assert after["notes"] == "none", "it belongs to the conversion"
    assert ("f1_10k_set" in after) == (stage != "benchmark")


def test_a_model_that_another_tool_holds_is_neither_reset_nor_deleted_until_it_is_unlocked(
    shop: Store, catalog: Catalog
):
    table = shop.models("default")
    table.update(catalog.get("calm-heron"), {"node": "archai-host", "macs": 7})
    files = catalog.files("calm-heron")
    with pytest.raises(ModelBusy, match="archai-host"):
        catalog.reset("calm-heron")
    with pytest.raises(ModelBusy, match="edgeloop unlock calm-heron"):
        catalog.delete("calm-heron")
    assert rows_of(shop)["calm-heron"]["macs"] == 7 and catalog.files("calm-heron") == files
    assert catalog.unlock("calm-heron", "another-host") == []
    assert catalog.unlock("calm-heron") == ["a claim of another tool"]
    catalog.reset("calm-heron")
    assert "macs" not in rows_of(shop)["calm-heron"]
    assert leases_on(shop).claim(["quantize"], "n") is not None
    catalog.delete("calm-heron")  # a runner of ours is told, and loses its lease
    assert "calm-heron" not in rows_of(shop)


def test_a_lease_that_was_unlocked_is_lost(shop: Store, catalog: Catalog):
    leases = leases_on(shop)
    lease = leases.claim(["quantize"], "n")
    assert lease is not None
    assert catalog.unlock(lease.model, "another") == []
    assert catalog.unlock(lease.model) == ["convert"]
    with pytest.raises(LeaseLost):
        leases.renew(lease)


def test_unlock_does_not_bring_back_what_is_being_deleted(shop: Store, catalog: Catalog):
    """Its files may be gone already. An upload that was taken back left its node in such a row."""
    row = {"name": "half", "status": "deleting", "node": "there:upload"}
    shop.models("default").insert("half", row)
    assert catalog.unlock("half") == []
    assert catalog.get("half").values == row


def test_a_half_made_model_is_neither_reset_nor_unlocked(shop: Store, tmp_path: Path):
    from tests.nets import save_external

    dead_upload(shop, save_external(tmp_path / "net.onnx"), "half")
    with pytest.raises(ModelBusy, match="edgeloop delete half"):
        catalog_on(shop).reset("half")
    assert catalog_on(shop).unlock("half") == []
    assert rows_of(shop)["half"]["status"] == "uploading"


def test_held_by_finds_one_machines_models(shop: Store, catalog: Catalog):
    leases = leases_on(shop)
    first, second = leases.claim(["quantize"], "a"), leases.claim(["quantize"], "b")
    assert first is not None and second is not None
    assert names(catalog.held_by("a")) == [first.model]
    assert names(catalog.held_by("c")) == []


def test_a_priority_below_zero_is_refused(catalog: Catalog):
    with pytest.raises(BadInput):
        catalog.set_priority("calm-heron", -1)


def test_hints_follow_a_change_of_priority(shop: Store, catalog: Catalog):
    catalog.set_priority("calm-heron", 7)
    mine = [hint for hint in hints_of(shop) if "calm-heron" in hint]
    assert len(mine) == 2 and all("|00000007.000+" in hint for hint in mine)


def test_wait_ends_when_all_have_ended_and_gives_up_in_time(shop: Store, catalog: Catalog):
    table = shop.models("default")
    for name, status in zip(NAMES, ("complete", "error", "new"), strict=True):
        table.update(catalog.get(name), {"status": status})
    catalog.wait(NAMES[:2], timeout_s=0)
    with pytest.raises(WaitTimeout, match="calm-heron has not finished"):
        catalog.wait(NAMES, timeout_s=0)
    with pytest.raises(NoSuchModel):
        catalog.wait(["gone"], timeout_s=0)
