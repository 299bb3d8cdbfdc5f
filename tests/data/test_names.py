"""Names, references, and the folders they lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.errors import BadInput, BadName, NoSuchDataset
from edgeloop.node.ledger import check_name, find_local, parse_reference

BAD = [
    *(
        "",
        "/",
        "working/",
        "working/..",
        "working/../x",
        "../working/x",
        "working//x",
        "working/x/",
    ),
    *("working/a@b", "working/a\\b", "working/a\nb", "working/ a", "working/.a", "working/a."),
    *("working/\ud83d", "working/" + "x" * 200, "/working/x"),
]


@pytest.mark.parametrize(
    "name", ["working/faces128", "raw/Face Synthetics/v1.2", "raw/gesichter-ü"]
)
def test_a_path_below_raw_or_working_is_a_name(name: str):
    assert check_name(name) == name


@pytest.mark.parametrize("name", [*BAD, "faces", "data/working/faces"])
def test_other_names_are_refused(name: str):
    with pytest.raises(BadName):
        check_name(name)


def test_a_reference_may_name_a_version():
    assert parse_reference("working/faces@4") == ("working/faces", 4)
    assert parse_reference("faces") == ("faces", None)


@pytest.mark.parametrize(
    "text", ["faces@", "faces@0", "faces@-1", "faces@x", "faces@1@2", "faces@1.5", "@1", *BAD]
)
def test_other_references_are_refused(text: str):
    with pytest.raises(BadName):
        parse_reference(text)


def test_a_name_or_a_path_leads_to_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "data/working/faces"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    expected = ("working/faces", folder)
    for text in ("faces", "working/faces", "data/working/faces", "./data/working/faces/", folder):
        assert find_local(tmp_path, str(text)) == expected
    assert find_local(tmp_path, "faces/sub") == ("working/faces/sub", folder / "sub")
    monkeypatch.chdir(folder)
    assert find_local(tmp_path, ".") == expected
    with pytest.raises(NoSuchDataset, match=r"elsewhere is not below .*data/working or"):
        find_local(tmp_path, str(tmp_path / "elsewhere"))
    (folder / "x.png").touch()
    with pytest.raises(NoSuchDataset, match="that is a file, and a dataset is a folder"):
        find_local(tmp_path, str(folder / "x.png"))
    with pytest.raises(BadName):
        find_local(tmp_path, str(tmp_path / "data/working"))
    with pytest.raises(BadName, match="assigns the version itself"):
        find_local(tmp_path, "faces@3")
    with pytest.raises(
        NoSuchDataset, match=r"data/working/face or .*data/raw/face .*'working/faces'"
    ):
        find_local(tmp_path, "face")
    (tmp_path / "data/raw/faces").mkdir(parents=True)
    with pytest.raises(BadInput, match="working/faces or raw/faces"):
        find_local(tmp_path, "faces")


def test_a_dataset_may_be_a_link_to_a_larger_disk(tmp_path: Path):
    (tmp_path / "large disk/faces").mkdir(parents=True)
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "data/raw/faces").symlink_to(tmp_path / "large disk/faces")
    assert find_local(tmp_path, "faces")[0] == "raw/faces"
    assert find_local(tmp_path, str(tmp_path / "data/raw/faces"))[0] == "raw/faces"
