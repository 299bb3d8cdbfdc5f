"""`secrets scan` finds what it should, wherever it is in a file, and shows nothing of it."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from edgeloop.operate import secrets
from edgeloop.operate.secrets import SecretScan, known_secrets
from edgeloop.settings import Settings
from tests.cli.running import run_command

TOKEN = "ghp_" + "a1B2c3D4e5" * 4
SCAN = SecretScan({"MY_TOKEN": "Kx7-öwn-secret"})


def scanned(scan: SecretScan, path: Path) -> list[tuple[str, int, str]]:
    folder = path if path.is_dir() else path.parent
    return [
        (leak.path.removeprefix(f"{folder}/"), leak.line, leak.kind) for leak in scan.path(path)
    ]


def test_each_is_named_by_file_line_and_kind_and_masked(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.py").write_text(f"x = 1\ny = '{TOKEN}'\nz = 'Kx7-öwn-secret'\n")
    (tmp_path / "b.txt").write_text(
        "postgresql://me:hunter22@host/db and https://me:password@host\n"
    )
    leaks = list(SCAN.path(tmp_path))
    assert [leak.sentence.removeprefix(f"{tmp_path}/") for leak in leaks] == [
        "b.txt:1: password in an address: postgresql://me:***",
        "sub/a.py:2: GitHub token: y = '***",
        "sub/a.py:3: the value of MY_TOKEN: z = '***",
    ]


def test_a_secret_across_two_pieces_of_a_large_file_is_found_once(tmp_path: Path):
    for before in range(secrets.PIECE_BYTES - 50, secrets.PIECE_BYTES + 10, 20):
        (tmp_path / "a.log").write_text("x\n" * (before // 2) + TOKEN + "\n" + "y\n" * 3000)
        assert scanned(SCAN, tmp_path / "a.log") == [("a.log", before // 2 + 1, "GitHub token")]


def test_snapshots_of_code_and_other_archives_are_opened(tmp_path: Path):
    with tarfile.open(tmp_path / "code.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("src/a.py")
        info.size = len(TOKEN)
        tar.addfile(info, io.BytesIO(TOKEN.encode()))
    with zipfile.ZipFile(tmp_path / "order.zip", "w") as archive:
        archive.writestr("order.json", TOKEN)
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(TOKEN.encode()))
    (tmp_path / "cut.zip").write_bytes(
        (tmp_path / "order.zip").read_bytes()[:30] + f" {TOKEN}".encode()
    )
    names = {path for path, _, _ in scanned(SCAN, tmp_path)}
    assert names == {
        *("code.tar.gz!src/a.py", "order.zip!order.json", "job.log.gz!content", "cut.zip")
    }


def test_an_archive_that_unpacks_without_end_is_left(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(secrets, "MOST_UNPACKED_BYTES", 5_000_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(4_000_000) + b" " + TOKEN.encode())
        archive.writestr("b", bytes(4_000_000) + b" " + TOKEN.encode())
    assert [path for path, _, _ in scanned(SCAN, tmp_path)] == ["bomb.zip!a"]


def test_only_regular_files_of_the_folder_are_read(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.write_text(TOKEN)
    folder = tmp_path / "folder"
    (folder / "venv/lib").mkdir(parents=True)
    (folder / "venv/pyvenv.cfg").touch()
    (folder / "venv/lib/a.py").write_text(TOKEN)
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(outside)
    (folder / ".env").write_text(TOKEN)
    (folder / "secrets.json").write_text(TOKEN)
    assert scanned(SCAN, folder) == []
    everything = SecretScan({}, everything=True)
    assert [path for path, _, _ in scanned(everything, folder)] == [".env", "secrets.json"]
    assert scanned(SCAN, folder / ".env") == [(".env", 1, "GitHub token")]  # it was named


def test_secrets_of_the_settings_and_the_environment_are_known(tmp_path: Path, monkeypatch):
    key = "c2VjcmV0" * 8 + "=="
    computes = {
        "far": {"kind": "ray", "address": "http://h:1", "headers": {"X-Token": "abc-def-1"}}
    }
    (tmp_path / "edgeloop.yaml").write_text(json.dumps({"computes": computes}))
    monkeypatch.setenv("SOME_API_KEY", "of-the-environment")
    store = f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={key}"
    known = known_secrets(Settings.load(tmp_path, store=store))
    assert known["SOME_API_KEY"] == "of-the-environment" and known["the store's key"] == key
    assert known["computes.far.headers.X-Token"] == "abc-def-1"
    assert "http://h:1" not in known.values()


def test_documentation_and_examples_have_none():
    root = Path(__file__).parents[2]
    places = [root / name for name in ("docs", "examples", "README.md", "edgeloop", "deploy")]
    assert [leak.sentence for place in places for leak in SecretScan({}).path(place)] == []


@pytest.mark.slow
def test_the_command_says_where_and_ends_with_1(tmp_path: Path):
    (tmp_path / "a.txt").write_text(f"t: {TOKEN}\n\x1b[31mof-the-environment")
    (tmp_path / "job.json").write_text(f'{{"project": "{tmp_path}", "sock": "/run/user/agent.1"}}')
    places = {"PWD": str(tmp_path), "SSH_AUTH_SOCK": "/run/user/agent.1", "HOME_KEY": str(tmp_path)}
    environ = {"SOME_API_KEY": "of-the-environment", **places}
    found = run_command(("secrets", "scan"), tmp_path, environ)
    assert found.code == 1 and TOKEN not in found.out and "of-the-env" not in found.out
    assert "a.txt:1: GitHub token: t: ***" in found.out and "\x1b" not in found.out
    assert "a.txt:2: the value of SOME_API_KEY" in found.out
    assert found.err.startswith("edgeloop: 2 secrets found: remove them there, and replace those")
    listed = run_command(("secrets", "scan", "--json", "a.txt"), tmp_path, {})
    assert (listed.code, json.loads(listed.out)) == (
        1,
        [{"path": "a.txt", "line": 1, "kind": "GitHub token", "context": "t: "}],
    )
    piped = run_command(("secrets", "scan", "-"), tmp_path, {}, stdin="nothing to see")
    assert (piped.code, piped.out) == (0, "No secrets found.\n")
    assert "no such file or folder" in run_command(("secrets", "scan", "x"), tmp_path, {}).sentence
