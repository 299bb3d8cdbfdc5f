"""What counts as a secret of a job, and where it stands: in no record."""

from __future__ import annotations

import importlib
import json
import stat
import time
from pathlib import Path

import pytest

from edgeloop._util.redact import KINDS, LONGEST, find_secrets, is_secret_variable
from edgeloop.errors import BadJob
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.secrets import exposed_tokens, secret_argument, secret_values
from edgeloop.jobs.snapshot import CodeSnapshot
from edgeloop.jobs.spec import read_spec, spec_of_script
from edgeloop.node.ticket import ticket_key
from edgeloop.settings import Settings

GITHUB = "ghp_" + "a1B2c3D4e5" * 4
AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzQ1x2Y3v4K"
KEY = "A" * 40 + "B" * 46 + "=="


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("WANDB_API_KEY", "0123abc"),
            ("HF_TOKEN", "x7"),
            ("token", "abc"),
            ("DB_PASSWORD", "a b"),
        ),
        *(
            ("PGPASSWORD", "pw"),
            ("CLIENT_SECRET", "s"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("PWD_DB", "s"),
        ),
        *(
            ("accessKey", "s"),
            ("AZURE_STORAGE_CONNECTION_STRING", "a=b"),
            ("SENTRY_DSN", "https://x"),
        ),
        *(
            ("KEY", "abc"),
            ("SSH_KEY", "abc"),
            ("MY_CREDENTIALS", "abc"),
            ("NEPTUNE_API_TOKEN", "ey="),
        ),
        *(("URL", "https://me:hunter22@host/x"), ("X", GITHUB), ("Y", f"AccountKey={KEY};")),
        *(
            ("Z", "https://a.blob/c?sv=1&sig=abcdefghijklmnopqrstuvwxyz%3D"),
            ("W", "AKIA" + "A7" * 8),
        ),
        *(("DB_PWD", "hunter2"), ("GPG_PASSPHRASE", "hunter2"), ("GPG_KEY", "lQWGBGF")),
        *(("API_TOKEN", "/no/path/of/this/machine"), ("pwd", "hunter2"), ("MY_AUTH", "x:y")),
    ],
)
def test_a_secret_is_known_by_its_name_or_by_how_it_looks(name: str, value: str):
    assert is_secret_variable(name, value)
    assert secret_values({name: value}, ()) == {name: value}
    assert secret_values({name: "${ELSEWHERE}"}, [name]) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("WANDB_MODE", "offline"), ("EPOCHS", "30"), ("KEYBOARD", "de"), ("MONKEY", "x")),
        *(("TOKENIZERS_PARALLELISM", "false"), ("MAX_TOKENS", "512"), ("PUBLIC_KEY", "ssh-rsa x")),
        *(("AUTHOR", "ada"), ("KEY_FILE", "/srv/k"), ("PASS", ""), ("TOKEN", "${TOKEN}")),
        *(("URL", "https://host/x"), ("SPARSE", "1"), ("PATH", "/bin"), ("TOKEN_URL", "https://a")),
        *(("PWD", "/gone/since"), ("OLDPWD", "/x"), ("SSH_AUTH_SOCK", "/tmp/ssh-x/agent.1")),
        *(("XAUTHORITY", "/x"), ("GPG_KEY", "A035C8C19219BA821ECEA86B64E628F8D684696D")),
        *(("TOKEN_PATH", "a/b"), ("SECRETS_DIR", "x"), ("AUTH", "/usr/bin:/usr"), ("SSH_KEY", "/")),
    ],
)
def test_what_is_no_secret_is_recorded(name: str, value: str):
    assert not is_secret_variable(name, value)
    assert secret_values({name: value}, [name]) == ({name: value} if "$" not in value else {})


EXAMPLES = {
    "private key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n",
    "age key": "AGE-SECRET-KEY-1" + "Q" * 58,
    "storage account key": f"AccountName=a;AccountKey={KEY};x",
    "shared access signature": "https://a/c?sv=2&sig=abcdefghijklmnop%2Fqrstuvwxyz0123%3D",
    "signed S3 or Google address": "https://b/k?X-Amz-Signature=" + "0a" * 32,
    "session token": "X-Amz-Security-Token=" + "IQoJb3" * 20,
    "AWS access key": "AKIAIOSFODNN7EXAMPLE",
    "Google API key": "AIza" + "Sy_0123456789abcdefghijklmnopqrstuvwxyz"[:35],
    "Google OAuth token": "ya29." + "a0AfH6SM" * 5,
    "GitHub token": GITHUB,
    "GitLab token": "glpat-" + "x1Y2z3" * 4,
    "Hugging Face token": "hf_" + "aBcDeF" * 6,
    "Slack token": "xoxb-123456789012-abcdefABCDEF",
    "PyPI token": "pypi-" + "AgEIcHlwaS" * 6,
    "npm token": "npm_" + "a1B2c3" * 6,
    "Databricks token": "dapi" + "0123456789abcdef" * 2,
    "API key": "sk-proj-" + "A1b2C3d4" * 5,
    "API key in an assignment": "WANDB_API_KEY=" + "0a1b2c3d4e" * 4,
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    "bearer token": "Authorization: Bearer 0123456789abcdef.xyz",
    "password in an address": "postgresql://me:hunter22@host/db",
    "password": "Server=x;Password=hunter2222;",
    "AWS secret key": 'AWS_SECRET_ACCESS_KEY="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"',
    "secret in an assignment": 'CLIENT_SECRET = "aB3dE6gH9jK2mN5pQ8sT"',
}


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_every_kind_is_found_in_the_middle_of_a_text(kind: str):
    text = f"before\n some = {EXAMPLES[kind]!r}\nafter" if kind != "private key" else EXAMPLES[kind]
    found = list(find_secrets(text))
    assert [match.kind for match in found] == [kind]
    assert all(match.end - match.start <= LONGEST for match in found)


@pytest.mark.parametrize(
    "text",
    [
        *("a://b:" * 200_000, "a://" + "b" * 1_000_000, "://:@" * 200_000, "sig=" * 250_000),
        *("eyJ" + "a" * 1_000_000, "eyJaaaaaaaaaaa.eyJ" * 50_000, "AccountKey=" * 90_000),
        *("-----BEGIN " * 90_000, "-----BEGIN PRIVATE KEY-----" * 40_000, "password=" * 110_000),
        *("Bearer " * 140_000, "sk-" * 330_000, "authorization: Bearer " + "a" * 1_000_000),
        *("api_key " * 120_000, "sk-a1" * 200_000, "api_key=" + "a" * 1_000_000),
        *("aws_secret_key=" * 70_000, "token='a" * 120_000, "token='" + "aB" * 500_000),
    ],
    ids=lambda text: text[:20],
)
def test_no_text_takes_long_to_search(text: str):
    began = time.process_time()
    assert sum(1 for _ in find_secrets(text)) < 100_000
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("x.py --password hunter2hunter2", "the value of --password"),
        ("x.py --hf-token abcdefgh --lr 1", "the value of --hf-token"),
        ("x.py --api_key=abcdefgh", "the value of --api_key"),
        (f"x.py {GITHUB}", "GitHub token"),
        ("x.py --max-tokens 100000 --pad-token <|endoftext|> --key image_path", None),
        ("x.py --token-type wordpiece --token --verbose --password ${HIDDEN_ONE}", None),
        ("x.py --token 123456789 --secret /usr/bin --tokenizer bert-base --password", None),
    ],
)
def test_arguments_are_secret_by_their_options_in_one_word_or_two(words: str, kind: str | None):
    assert secret_argument(words.split()) == kind


def test_no_word_of_plain_code_is_taken_for_a_token():
    for text in (
        'tokens = "theQuickBrownFox"',
        'token = "lower-case-words-and-no-digits-at-all"',
        'api_key = os.environ["MY_LONG_API_KEY_NUMBER_1"]',
        'secret = "the words of a sentence, 20 of them And More"',
        '<div class="sk-estimator-doc-link-and-more-words">',
        'aws_secret_access_key: "${AWS_SECRET_ACCESS_KEY}"',
        "hf_" + "hub_download_of_a_model_and_more",
    ):
        assert list(find_secrets(text)) == [], text


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("state", "cache"):
        monkeypatch.setenv(
            f"EDGELOOP_{name.upper()}", str(tmp_path.parent / f"{tmp_path.name}-{name}")
        )
    monkeypatch.setenv("HF_TOKEN", "hf-of-the-environment")
    (tmp_path / "edgeloop.yaml").write_text("experiment: default\n")
    (tmp_path / "show.py").write_text(
        "import os\n"
        "names = ('WANDB_API_KEY', 'HF_TOKEN', 'CODE')\n"
        "print(sorted((n, len(v)) for n, v in os.environ.items() if n in names))\n"
    )
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_a_value_reaches_the_job_and_every_attempt_and_stands_in_no_record(project: Path):
    (project / "job.yaml").write_text(
        "script: show.py\nsecrets: [HF_TOKEN, CODE]\n"
        "variables: {WANDB_API_KEY: plain-secret-1, CODE: plain-secret-2, MODE: fast}\n"
    )
    jobs = Jobs(Settings.load(project))
    told: list[str] = []
    [first] = jobs.submit(read_spec(project / "job.yaml"), tell=told.append)
    assert "without job.yaml, which may hold secrets" in told[0]
    again = jobs.resubmit(jobs.wait([first], timeout_s=60)[0])
    for run in jobs.wait([first, again], timeout_s=60):
        log = b"".join(jobs.log(run).more()).decode()
        assert run.state == "completed" and "('CODE', 14), ('HF_TOKEN', 21)" in log, log
        assert "('WANDB_API_KEY', 14)" in log
        record = json.loads((project / f"runs/{run.name}/job.json").read_text())
        assert record["spec"]["variables"] == {
            "HF_TOKEN": "${HF_TOKEN}",
            "WANDB_API_KEY": "${secret:WANDB_API_KEY}",
            "CODE": "${secret:CODE}",
            "MODE": "fast",
        }
        kept = project / f"runs/{run.name}/secrets.json"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
        ticket = project / ".edgeloop/blobs" / ticket_key(run.record.id)
        assert stat.S_IMODE(ticket.stat().st_mode) == 0o600
        assert "plain-secret" not in repr(run) + repr(jobs.spec(run))
    holders = {
        name.rpartition("/")[2]
        for name, content in contents(project).items()
        if b"plain-secret" in content or b"hf-of-the-environment" in content
    }
    assert holders == {"job.yaml", "secrets.json", "ticket.json"}


def test_a_secret_that_is_not_on_this_machine_is_asked_for(project: Path, monkeypatch):
    spec = spec_of_script("show.py", (), {"variables": {"WANDB_API_KEY": "abc"}})
    jobs = Jobs(Settings.load(project))
    told: list[str] = []
    [run] = jobs.submit(spec, [f"--token={GITHUB}"], tell=told.append)
    jobs.wait([run], timeout_s=60)
    assert told[1] == (
        "warning: the value of the secret WANDB_API_KEY has fewer than 4 characters, so logs and "
        "results show it"
    )
    assert "warning: an argument looks like a secret (GitHub token)" in told[2]
    assert GITHUB not in "".join(told) and told[0].startswith("snapshot 2 files, ")
    (project / f"runs/{run.name}/secrets.json").unlink()
    with pytest.raises(
        BadJob, match="the secret WANDB_API_KEY is not on this machine: set the var"
    ):
        jobs.spec(run)
    monkeypatch.setenv("WANDB_API_KEY", "other")
    assert jobs.spec(run).filled_variables()["WANDB_API_KEY"] == "other"


def test_tokens_in_code_are_refused_by_file_and_line_unless_they_are_allowed(project: Path):
    for name in ("kubeconfig.yaml", "prod-kubeconfig.yml", "auth.json"):
        (project / name).write_text("{}")
    (project / "show.py").write_text(f"print(1)\nTOKEN = '{GITHUB}'\n")
    (project / "lib").mkdir()
    (project / "lib/more.py").write_text('x = 1\n\nos.environ["AWS_SECRET_ACCESS_KEY"] = "' + AWS)
    (project / "data.bin").write_bytes(b"\0" + GITHUB.encode())
    (project / "edgeloop.yaml").unlink()
    told: list[str] = []
    jobs = Jobs(Settings.load(project))
    with pytest.raises(BadJob) as refused:
        jobs.submit(spec_of_script("show.py", (), {}), tell=told.append)
    assert str(refused.value) == (
        "lib/more.py:3: holds what looks like a secret (AWS secret key), and nothing was sent; so "
        "do show.py:2 (GitHub token). Pass the value with --secret and read it from the "
        "environment, exclude the file with a line in .edgeloopignore, or send it anyway: "
        "--allow-secrets lib/more.py --allow-secrets show.py (or a line '!lib/more.py' in that "
        "file)"
    )
    assert not told and not list(jobs.blobs.list("_code/")) and not (project / "runs").exists()
    with pytest.raises(BadJob, match=r"^show.py:2: holds .* and nothing was sent\. Pass"):
        jobs.submit(spec_of_script("show.py", (), {"allow_secrets": ["lib"]}))
    allowed = {"allow_secrets": ["*.py", "lib/**", "auth.json"]}
    [run] = jobs.submit(spec_of_script("show.py", (), allowed), tell=told.append)
    assert jobs.wait([run], timeout_s=60)[0].state == "completed"
    assert told[0].startswith("snapshot 4 files, ")
    assert "without kubeconfig.yaml, prod-kubeconfig.yml, which may hold" in told[0]
    assert jobs.spec(run).allow_secrets == ("*.py", "lib/**", "auth.json")
    (project / ".edgeloopignore").write_text("!lib/more.py\nshow.py\n")
    snapshot = CodeSnapshot.take(project)
    snapshot.refuse_tokens()
    assert "lib/more.py" in snapshot and "show.py" not in snapshot


IN_FILES = {
    "train.sh": "export WANDB_API_KEY=" + "0a1b2c3d4e" * 4,
    "wandb_login.py": 'wandb.login(key="' + "0a1b2c3d4e" * 4 + '")',
    "app.ini": f"account_key = {KEY}",
    "settings.py": 'OPENAI_API_KEY = "sk-' + "a1B2c3D4" * 6 + '"',
    "deep.py": 'client("sk-' + "0a1b2c3d" * 4 + '")',
    "config.yaml": "store: postgresql://me:xK9pw2@db.lab/rows",
    "session.txt": EXAMPLES["JSON web token"],
}


@pytest.mark.parametrize("name", IN_FILES)
def test_a_token_is_found_in_a_file_however_it_is_written(name: str):
    assert [line for line, _ in exposed_tokens(f"\n{IN_FILES[name]}\n".encode())] == [2]


HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
HARMLESS = {
    "package-lock.json": f'"integrity": "sha512-{KEY}", "resolved": "https://a.org/sk-{HASH}.tgz"',
    "uv.lock": f'{{ url = "https://a.org/x.whl", hash = "sha256:{HASH}" }}\ntoken = "{HASH}"',
    "poetry.lock": f'content-hash = "{HASH}"\ncache_key = "{HASH}"',
    "book.ipynb": f'"image/png": "iVBOR{KEY[:-2]}", "class": "sk-top-container-id-12 x"',
    "app.min.js": 'var a={key:"abcdefgh",token:b.token};u="http://"+a.user+":"+a.pass+"@"+h;',
    "urls.py": "postgresql://scott:tiger@localhost/test https://user:${PASSWORD}@host ftp://a:b@c",
    "aws.py": 'key, secret = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"',
    "test_azurite.py": "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVE",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_lock_files_notebooks_and_examples_hold_no_tokens(name: str):
    assert list(exposed_tokens(HARMLESS[name].encode())) == []


def test_packages_as_they_are_installed_hold_no_tokens():
    """Of these the only secrets are private keys of test servers and examples of tokens."""
    for package in ("numpy", "onnx", "PIL", "click", "yaml"):
        folder = Path(importlib.import_module(package).__file__ or "").parent
        for path in folder.rglob("*.py"):
            assert list(exposed_tokens(path.read_bytes())) == [], path


def test_a_large_file_costs_no_more_than_its_beginning():
    line = b"x = 1  # just some code\n"
    began = time.process_time()
    assert list(exposed_tokens(GITHUB.encode() + line * 4_000_000)) == [(1, "GitHub token")]
    assert list(exposed_tokens(line * 4_000_000 + GITHUB.encode())) == []
    assert time.process_time() - began < 5
