"""What travels with a job: git's rules, as git itself applies them, and what never leaves."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgeloop._util.redact import holds_private_key
from edgeloop.errors import BadJob
from edgeloop.jobs.snapshot import CodeFolder, source_files

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"
NAMES = ("a", "b", "ab", "a.txt", "b.txt", "foo", "foo.d", "c d", "é", "[x]", "a-b", "#h", "!n")
PATHS = [
    *NAMES,
    *(f"{folder}/{name}" for folder in ("a", "foo", "d.d") for name in ("a", "b.txt", "foo", "é")),
    *(f"{folder}/b/{name}" for folder in ("foo", "d.d") for name in ("a", "ab", "x/foo")),
]

piece = st.sampled_from(
    [
        *("a", "b", "foo", ".txt", ".d", "x", "é", "*", "**", "?", "/", "/**/", "**/", "/**"),
        *("[ab]", "[!a]", "[^b]", "[a-f]", "[[:alpha:]]", "[[:punct:]]", "[]a]", "[a", "[[:no:]]"),
        *("\\", "\\a", "\\*", "\\ ", " ", "[x\\]]", "-", "#", "!", "[a/]", "[--0]", "\t", "d.d"),
    ]
)
line = st.builds(
    lambda start, middle, end: start + "".join(middle) + end,
    st.sampled_from(["", "!", "/", "!/", "#", "\\!", "\\#"]),
    st.lists(piece, min_size=1, max_size=5),
    st.sampled_from(["", "/", " ", "\r", "/ ", "  "]),
)
ignore_file = st.lists(line, max_size=6).map("\n".join)


def write(root: Path, files: dict[str, str]) -> Path:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


def travel(root: Path) -> set[str]:
    return {found.path for found in source_files(root)}


def kept_by_git(root: Path) -> set[str]:
    """Every file that git would add, by git's own word."""
    clean = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    run = ["git", "-c", "core.excludesFile=", "-C", str(root)]
    if not (root / ".git").exists():
        subprocess.run([*run, "init", "-q"], check=True, env=clean, timeout=60)
    listed = subprocess.run(
        [*run, "ls-files", "-z", "--others", "--exclude-standard"],
        check=True,
        env=clean,
        timeout=60,
        capture_output=True,
    )
    return set(listed.stdout.decode().split("\0")) - {""}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    files = [path for path in PATHS if not any(other.startswith(f"{path}/") for other in PATHS)]
    return write(root, dict.fromkeys(files, ""))


@given(top=ignore_file, below=ignore_file, deep=ignore_file)
@example(top="*\n!*/\n!foo", below="", deep="")
@example(top="a/**", below="!b", deep="")
@example(top="foo**/a", below="", deep="")
@example(top="foo/*\n!foo/b", below="b/x/\n!a", deep="")
@example(top="foo", below="!foo", deep="!*")
@example(top="/foo/\n!foo/b.txt", below="", deep="")
@example(top="\ufeffa.txt\nb.txt", below="", deep="")
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_ignore_files_mean_what_they_mean_to_git(tree: Path, top: str, below: str, deep: str):
    for folder, content in (("", top), ("foo", below), ("foo/b", deep)):
        (tree / folder / ".gitignore").write_bytes(content.encode())
    assert travel(tree) == kept_by_git(tree)


@pytest.mark.parametrize(
    ("present", "left_out"),
    [
        ([".edgeloopignore", ".amlignore", ".gitignore"], ".edgeloopignore"),
        ([".amlignore", ".gitignore"], ".amlignore"),
        ([".gitignore"], ".gitignore"),
    ],
)
def test_the_first_kind_of_ignore_file_counts_alone(
    tmp_path: Path, present: list[str], left_out: str
):
    write(tmp_path, {name: f"by{name}" for name in present})
    write(tmp_path, {f"by{name}": "" for name in present} | {f"sub/x{left_out}": ""})
    write(tmp_path, {f"sub/{name}": f"x{name}" for name in present})
    wanted = {f"by{name}" for name in present if name != left_out}
    assert {path for path in travel(tmp_path) if "by" in path} == wanted
    assert f"sub/x{left_out}" not in travel(tmp_path)


NEVER = [
    *(".git/config", ".hg/x", ".svn/x", "sub/.git", "pkg/__pycache__/a.pyc", ".edgeloop/db"),
    *("venv/pyvenv.cfg", "venv/lib/a.py", "deep/conda/conda-meta/history", "deep/conda/a.py"),
    *("searches/laptop/nets/a.onnx", "searches/laptop/search.yaml", "searches/notes.csv"),
    *("mine/store.db", "mine/blobs/a", "mine/sub/a.py", "cache/CACHEDIR.TAG", "cache/a.py"),
    *("files/_jobs/a/ticket.json", "files/_records/default/a.json", "packed/_code/a.tar.gz"),
    *("packed/_wrapper/a.pyz", "packed/faces/net.onnx"),
    *("work/.edgeloop-workdir", "work/files/a", "best/search.yaml", "best/.lock", "best/nets/a.py"),
    *("runs/r/job.json", "outputs/x", "data/raw/faces/1.png", "data/working/f/1.png"),
]
SECRET = [
    *(".azureml/datastore.json", "sub/.azureml/datastore.json"),
    *(".env", ".env.production", "prod.env", "sub/.ENV", "tls.pem", "a.key", "a.pfx", "a.P12"),
    *(".envrc", ".env-prod", ".env_local", ".envs/prod/django"),
    *("a.jks", "a.ppk", "id_rsa", "id_rsa.old", "id_dsa", "id_ecdsa", "id_ed25519.bak", ".netrc"),
    *("a.keystore", "team.kdbx", "AuthKey.p8", "vpn.ovpn", "web.keytab"),
    *(".pypirc", ".git-credentials", ".ssh/known_hosts", ".aws/config", ".azure/x", ".gnupg/x"),
    *(".kube/config", "home/.kube/config", ".docker/config.json", ".config/gcloud/credentials.db"),
    *(".config/gcloud/legacy_credentials/a/adc.json", "application_default_credentials.json"),
    *("service-account.json", "conf/service_account.prod.json", "client_secret_1.json"),
    *(".npmrc", ".pgpass", ".boto", ".s3cfg", ".databrickscfg", ".vault-token", ".my.cnf"),
    *("terraform.tfstate", "infra/terraform.tfstate.backup", "prod.tfvars", ".terraform/x"),
    *("secrets.yaml", ".streamlit/secrets.toml", "kaggle.json", "rclone.conf", ".htpasswd"),
]
ALWAYS = [
    *("data/split.py", "src/runs/a.py", "src/outputs/a.py", "src/data/raw/a.py", "keys.py"),
    *("searches/laptop.yaml", "src/searches/a.py", "app/store.db", "conf/search.yaml"),
    *("environment.yml", "src/env.py", "envs/grid.py", "tokenizer.json", ".docker/Dockerfile"),
    *("secrets.py", "src/secrets/vault.py", ".kube/deployment.yaml", "service.json", "key.py"),
]


def test_what_must_never_travel_does_not_whatever_the_ignore_file_says(tmp_path: Path):
    write(tmp_path, dict.fromkeys([*NEVER, *SECRET, "a[1].pem", *ALWAYS], ""))
    (tmp_path / ".edgeloopignore").write_text(
        "!*\n!**/*\n!.env*\n!*.pem\n!a[1].pem\n!.ssh/*\n" + "".join(f"!{path}\n" for path in NEVER)
    )
    assert travel(tmp_path) == {*ALWAYS, ".edgeloopignore"}


def test_what_may_hold_secrets_is_named_and_sent_only_where_a_line_names_it(tmp_path: Path):
    write(tmp_path, dict.fromkeys([*SECRET, "a.py"], ""))
    code = CodeFolder(tmp_path)
    assert {file.path for file in code.files()} == {"a.py"}
    assert all(
        path in code.withheld
        or any(path.startswith(one) for one in code.withheld if one[-1] == "/")
        for path in SECRET
    )
    (tmp_path / ".gitignore").write_text("!.env\n")
    assert travel(tmp_path) == {"a.py", ".gitignore"}  # that is for git
    named = "".join(f"!{path}\n" for path in SECRET)
    (tmp_path / ".edgeloopignore").write_text(f"{named}!../other/.env\n!.ssh/../../x\n")
    code = CodeFolder(tmp_path)
    found = {file.path: file.is_allowed for file in code.files()}
    assert {path for path, is_allowed in found.items() if is_allowed} == {*SECRET}


def test_what_the_ignore_file_leaves_out_is_not_reported(tmp_path: Path):
    write(tmp_path, {".env": "", "a.py": "", ".gitignore": ".env"})
    code = CodeFolder(tmp_path)
    assert {file.path for file in code.files()} == {"a.py", ".gitignore"} and not code.withheld


def test_a_folder_apart_is_left_out_wherever_it_is_and_however_it_is_reached(tmp_path: Path):
    write(tmp_path, {"a.py": "", "state/x": "", "deep/cache/x": "", "deep/b.py": "", "other/x": ""})
    (tmp_path / "link").symlink_to("state")
    (tmp_path / "file").symlink_to("state/x")
    apart = [tmp_path / "state", tmp_path / "deep/../deep/cache", tmp_path, tmp_path.parent]
    found = {file.path for file in source_files(tmp_path, apart)}
    assert found == {"a.py", "deep/b.py", "other/x"}


@pytest.mark.parametrize("head", [KEY, f"# mine\n{KEY}", KEY.replace("OPENSSH", "RSA")])
def test_a_private_key_is_known_by_its_first_line(head: str):
    assert holds_private_key(head.encode())
    assert holds_private_key(b"-----BEGIN PRIVATE KEY-----\n")
    assert holds_private_key(b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n")


ENCRYPTED = b'k="-----BEGIN RSA PRIVATE KEY-----\\nProc-Type: 4,ENCRYPTED\\n\\n' + b"A" * 64


@pytest.mark.parametrize(
    "content",
    [
        b"x" * 5000 + b"\n" + KEY.encode(),
        b'{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\n'
        + b"MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" * 4
        + b'"}',
        b"key: |\n    -----BEGIN EC PRIVATE KEY-----\n    MHcC\n",
        b"MARK = '-----BEGIN PRIVATE KEY-----'" + b" " * 5000 + ENCRYPTED,
        KEY.encode("utf-16"),
    ],
    ids=["late", "json", "yaml", "after a mention", "utf-16"],
)
def test_a_private_key_is_found_anywhere_in_a_file(content: bytes):
    assert holds_private_key(content)


def test_a_text_about_private_keys_is_no_key():
    assert not holds_private_key(b"MARK = '-----BEGIN PRIVATE KEY-----'  # what we look for")
    assert not holds_private_key(b"-----BEGIN PUBLIC KEY-----\n")


def test_links_to_files_and_folders_of_the_code_are_followed(tmp_path: Path):
    write(tmp_path, {"lib/a.py": "x", "lib/.gitignore": "b.py", "lib/b.py": ""})
    (tmp_path / "same.py").symlink_to("lib/a.py")
    (tmp_path / "again").symlink_to(tmp_path / "lib")
    (tmp_path / "nowhere").symlink_to("gone.py")
    assert travel(tmp_path) == {
        *("lib/a.py", "lib/.gitignore", "same.py", "again/a.py", "again/.gitignore"),
    }


def test_links_that_go_round_end(tmp_path: Path):
    write(tmp_path, {"a/x.py": "", "b/y.py": ""})
    (tmp_path / "a/to-b").symlink_to("../b")
    (tmp_path / "b/to-a").symlink_to("../a")
    (tmp_path / "a/up").symlink_to("..")
    (tmp_path / "self").symlink_to("self")
    assert travel(tmp_path) == {
        *("a/x.py", "a/to-b/y.py", "a/to-b/to-a/x.py"),
        *("b/y.py", "b/to-a/x.py", "b/to-a/to-b/y.py"),
    }


def test_a_link_out_of_the_code_is_refused_by_name(tmp_path: Path):
    code = write(tmp_path / "code", {"train.py": ""})
    (code / "faces").symlink_to(tmp_path)
    with pytest.raises(BadJob, match="faces: this link leads out of the code folder"):
        travel(code)
    (code / ".gitignore").write_text("faces")
    assert travel(code) == {"train.py", ".gitignore"}


def test_a_link_lets_no_secret_out(tmp_path: Path):
    write(tmp_path, {".env": "TOKEN=1", ".ssh/config": "x", ".git/config": "x", "a.py": ""})
    (tmp_path / "settings.txt").symlink_to(".env")
    (tmp_path / "conf").symlink_to(".ssh/config")
    (tmp_path / "all").symlink_to(".ssh")
    (tmp_path / "remotes").symlink_to(".git/config")
    (tmp_path / "repository").symlink_to(".git")
    assert travel(tmp_path) == {"a.py"}


def test_sockets_and_pipes_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, {"a.py": ""})
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # a socket's path has a short limit
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("talk")
        assert travel(tmp_path) == {"a.py"}
