"""Options win over the environment, that over the file, that over defaults."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import Field

from edgeloop._util.schema import Section
from edgeloop.errors import BadSetting
from edgeloop.paths import PROJECT_MARKS
from edgeloop.settings import (
    Settings,
    cache_folder,
    portal_token,
    settings_model,
    state_folder,
)
from edgeloop.store import AzureLocation, PostgresLocation, SqliteLocation

AZURE = "AccountName=acme;AccountKey=a2V5a2V5"


def written(folder: Path, text: str) -> Path:
    (folder / "edgeloop.yaml").write_text(text)
    return folder


def test_with_nothing_set_the_store_is_a_folder_beside_the_project(tmp_path: Path):
    found = Settings.load(tmp_path, {})
    assert found.location == SqliteLocation(tmp_path / ".edgeloop")
    assert found.experiment == "default" and found.node


@pytest.mark.parametrize("mark", PROJECT_MARKS)
def test_the_project_is_found_from_sub_folders(tmp_path: Path, mark: str):
    below = tmp_path / "a/b"
    below.mkdir(parents=True)
    (tmp_path / mark).parent.mkdir(parents=True, exist_ok=True)
    if Path(mark).suffix in (".yaml", ".json"):
        (tmp_path / mark).write_text("{}")
    else:
        (tmp_path / mark).mkdir()
    assert Settings.load(below, {}).location == SqliteLocation(tmp_path / ".edgeloop")


def test_the_option_wins_over_the_environment_and_that_over_the_file(tmp_path: Path):
    written(tmp_path, "store: sqlite:/in-file\nexperiment: in-file")
    environ = {"EDGELOOP_STORE": "sqlite:/in-environ", "EDGELOOP_EXPERIMENT": "in-environ"}
    by_option = Settings.load(tmp_path, environ, store="sqlite:/option", experiment="option")
    by_environ, by_file = Settings.load(tmp_path, environ), Settings.load(tmp_path, {})
    assert [(str(s.location), s.experiment) for s in (by_option, by_environ, by_file)] == [
        ("/option", "option"),
        ("/in-environ", "in-environ"),
        ("/in-file", "in-file"),
    ]


def test_edgeloop_store_wins_over_the_connection_string_and_that_over_the_file(tmp_path: Path):
    written(tmp_path, "store: sqlite:/in-file")
    environ = {"MODEL_STORAGE_CONNECTION_STRING": AZURE}
    assert isinstance(Settings.load(tmp_path, environ).location, AzureLocation)
    environ["EDGELOOP_STORE"] = "sqlite:/x"
    assert isinstance(Settings.load(tmp_path, environ).location, SqliteLocation)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("nonsense", "it must be"),
        ("sqlite:", "sqlite: needs a folder"),
        ("postgresql://h", "the postgresql: URL names no database"),
        ("azure:", "azure: needs the account's URL"),
        ("gone:x", "no store is known for gone: URLs"),
        ("AccountName=x;AccountKey=", "the connection string cannot be read"),
    ],
)
def test_a_wrong_store_is_blamed_on_where_it_is_written(tmp_path: Path, address: str, says: str):
    def complaint(environ: dict[str, str], store: str | None = None) -> str:
        with pytest.raises(BadSetting) as caught:
            Settings.load(tmp_path, environ, store)
        assert says in str(caught.value)
        return str(caught.value).partition(": " + says)[0]

    variable = {"EDGELOOP_STORE": address}
    assert complaint(variable) == "EDGELOOP_STORE"
    assert complaint({"MODEL_STORAGE_CONNECTION_STRING": "x"}, address) == "--store"
    written(tmp_path, f"store: '{address}'")
    assert complaint({}) == "edgeloop.yaml, store"
    if "Account" in address:
        connection = {"MODEL_STORAGE_CONNECTION_STRING": address}
        assert complaint(connection) == "MODEL_STORAGE_CONNECTION_STRING"


def test_a_variable_that_is_set_to_nothing_counts_as_not_set(tmp_path: Path):
    names = ("EDGELOOP_STORE", "MODEL_STORAGE_CONNECTION_STRING", "EDGELOOP_EXPERIMENT")
    found = Settings.load(tmp_path, dict.fromkeys((*names, "EDGELOOP_NODE"), ""))
    assert found == Settings.load(tmp_path, {})


@pytest.mark.parametrize("written", ["a-token-of-16-or-more\n", " a-token-of-16-or-more\r\n"])
def test_the_newline_of_a_file_is_no_part_of_the_portals_token(written: str):
    assert portal_token({"EDGELOOP_PORTAL_TOKEN": written}) == "a-token-of-16-or-more"
    assert portal_token({"EDGELOOP_PORTAL_TOKEN": "\n"}) == portal_token({}) == ""


def test_an_empty_option_is_not_taken_for_none_given(tmp_path: Path):
    assert Settings.load(tmp_path, {"EDGELOOP_EXPERIMENT": "x-1"}, experiment="").experiment == ""
    with pytest.raises(BadSetting):
        Settings.load(tmp_path, {}, store="")


def test_a_relative_store_in_the_file_is_relative_to_the_file(tmp_path: Path):
    below = tmp_path / "a"
    below.mkdir()
    written(tmp_path, "store: sqlite:models")
    assert Settings.load(below, {}).location == SqliteLocation(tmp_path / "models")


def test_the_file_may_name_a_variable_instead_of_a_secret(tmp_path: Path):
    written(tmp_path, "store: postgresql://u:${PASSWORD}@h/db?blobs=file:///x")
    found = Settings.load(tmp_path, {"PASSWORD": "pw"}).location
    assert isinstance(found, PostgresLocation) and ":pw@" in found.url
    with pytest.raises(BadSetting, match="PASSWORD is not set"):
        Settings.load(tmp_path, {})


FILLED = [
    "store: ${S}",
    "store: 'postgresql://${S}:x@h/db?blobs=file:///x'",
    "store: postgresql://u:p-${S}@h/db?blobs=file:///x",
    "store: AccountName=a;AccountKey=${S};BlobEndpoint=http://h",
    "store: AccountName=a;SharedAccessSignature=sv=1&sig=${S}&se=2",
    "dataset: ${S}",
    "computes: {c: {kind: ray, address: '${S}', headers: {A: 'Bearer ${S}'}}}",
    "computes: {c: {kind: ray, address: 'http://u:${S}@h', api_key: 'x${S}'}}",
    "computes: {c: {kind: ray, runtime_env: {env_vars: {LEVEL: 'at-${S}'}}}}",
]
MISPLACED = [
    "store: AccountName=a;AccountKey=a2V5;TableEndpoint=http://evil/${S}",
    "store: AccountName=a;AccountKey=a2V5;TableEndpoint=http://${S}.evil",
    "store: AccountName=a${S};AccountKey=a2V5",
    "store: postgresql://u:p@${S}.evil/db?blobs=file:///x",
    "store: postgresql://u:p@evil/${S}?blobs=file:///x",
    "store: postgresql://evil/db?blobs=s3://evil-${S}",
    "store: postgresql://evil/db?application_name=${S}&blobs=file:///x",
    "store: azure:https://${S}.evil",
    "store: sqlite:${S}/x",
    "store: 'sqlite:/x?password=/${S}'",
    "store: ${S}${S}",
    "dataset: /x/${S}",
    "experiment: ${S}",
    "node: at-${S}",
    "fleet: {options: ['${S}']}",
    "fleet: {headers: {a: '${S}'}}",
    "azure: {workspace: 'a-${S}'}",
    "computes: {c: {kind: ray, address: 'http://evil/${S}'}}",
    "computes: {c: {kind: ray, address: 'http://a@b@${S}'}}",
    "computes: {c: {kind: ray, more: [{places: ['http://${S}']}]}}",
]


@pytest.mark.parametrize("text", [*FILLED, *MISPLACED])
def test_a_variable_goes_where_secrets_belong_and_never_into_a_host_or_path(
    tmp_path: Path, text: str
):
    """Whoever wrote the file chooses the host; the secrets are of whoever reads it."""
    is_read = text in FILLED
    seen: list[str] = []

    class Environ(dict[str, str]):
        def __getitem__(self, name: str) -> str:
            seen.append(name)
            return super().__getitem__(name)

    environ = Environ(S="sqlite:/secret" if is_read and text.startswith("store: ${S") else "c2Vj")
    try:
        settings = Settings.load(written(tmp_path, text), environ)
        if settings.computes.keys() - {"local"}:
            settings.compute_settings("c", environ)
    except BadSetting as error:
        assert not is_read and "${S} cannot stand" in str(error) and "c2Vj" not in str(error)
    assert ("S" in seen) is is_read


def test_a_search_file_is_filled_by_the_same_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from edgeloop.search.config import read_config

    monkeypatch.setenv("S", "c2Vj")
    (tmp_path / "search.yaml").write_text("store: azure:https://${S}.evil\n")
    with pytest.raises(BadSetting, match="cannot stand in store"):
        read_config(tmp_path / "search.yaml")


STRANGER = 54321


def given_to_a_stranger(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder above the user's own."""
    if os.geteuid() != 0:
        pytest.fail("only root can give files away: run this test as root")
    (tmp_path / "shared/mine").mkdir(parents=True)
    return tmp_path / "shared"


@pytest.mark.server
@pytest.mark.parametrize("mark", ["edgeloop.yaml", ".edgeloop", ".azureml", "data/raw", "link"])
def test_settings_of_another_user_are_refused(shared: Path, mark: str):
    if mark == "edgeloop.yaml":
        written(shared, "store: sqlite:/evil")
        given_to_a_stranger(shared / mark)
    elif mark == "link":
        written(shared / "mine", "store: sqlite:/evil").joinpath("edgeloop.yaml").rename(
            shared / "kept.yaml"
        )
        (shared / "edgeloop.yaml").symlink_to("kept.yaml")
        given_to_a_stranger(shared / "edgeloop.yaml")
    else:
        (shared / mark).mkdir(parents=True)
        if mark == ".azureml":
            (shared / mark / "config.json").write_text("{}")
        given_to_a_stranger(shared if mark == "data/raw" else shared / mark)
    for start in (shared / "mine", *([] if mark == "data/raw" else [shared])):
        with pytest.raises(BadSetting, match=f"the user with the number {STRANGER}") as caught:
            Settings.load(start, {})
        assert f"EDGELOOP_TRUST={shared}" in str(caught.value)
    for trust in (str(shared), "*", f"/elsewhere:{shared}"):
        assert Settings.load(shared / "mine", {"EDGELOOP_TRUST": trust}).project == shared
    assert Settings.load(shared / "mine", {"SUDO_UID": str(STRANGER)}).project == shared
    (shared / "mine/.edgeloop").mkdir()  # a project of one's own below it
    assert Settings.load(shared / "mine", {}).location == SqliteLocation(shared / "mine/.edgeloop")


@pytest.mark.server
def test_a_strangers_azureml_folder_above_the_project_is_passed_by(shared: Path):
    (shared / "mine/.edgeloop").mkdir()
    (shared / ".azureml").mkdir()
    (shared / ".azureml/config.json").write_text("{}")
    content = '{"account_name": "evil", "container_name": "c", "datastore_name": "d"}'
    (shared / ".azureml/datastore.json").write_text(content)
    assert "evil" in str(Settings.load(shared / "mine", {}).location)
    given_to_a_stranger(shared / ".azureml/datastore.json")
    assert Settings.load(shared / "mine", {}).location == SqliteLocation(shared / "mine/.edgeloop")


def loaded_by(uid: int, folder: Path) -> str:
    """What another user gets of the settings: the experiment, or the refusal."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = "nothing"
        try:
            os.setuid(uid)
            text = Settings.load(folder, {}).experiment
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.server
def test_whoever_is_not_root_reads_what_is_theirs_or_roots():
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        file = written(Path(name), "experiment: ours") / "edgeloop.yaml"
        assert loaded_by(STRANGER, Path(name)) == "ours"
        given_to_a_stranger(file)
        assert loaded_by(STRANGER, Path(name)) == "ours"
        assert "settings of other users are not read" in loaded_by(STRANGER + 1, Path(name))


def test_blobs_of_postgresql_may_come_from_the_environment(tmp_path: Path):
    environ = {"EDGELOOP_STORE": "postgresql://h/db", "EDGELOOP_BLOBS": "s3://bucket"}
    found = Settings.load(tmp_path, environ).location
    assert isinstance(found, PostgresLocation) and found.blobs == "s3://bucket"


def test_every_limit_can_be_set_in_the_file(tmp_path: Path):
    written(
        tmp_path,
        "node: rack-1\nlease_seconds: 30\nclock_margin_seconds: 1.5\nmax_attempts: 7\n"
        "benchmark_runs: 2",
    )
    found = Settings.load(tmp_path, {})
    assert (found.node, found.lease_seconds, found.clock_margin_seconds) == ("rack-1", 30, 1.5)
    assert (found.max_attempts, found.benchmark_runs) == (7, 2)
    assert Settings.load(tmp_path, {"EDGELOOP_NODE": "here"}).node == "here"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("experimnt: x", "did you mean 'experiment'"),
        ("colour: red", "known keys are store, experiment"),
        ("project: /x", "unknown key"),
        ("location: /x", "unknown key"),
        ("just a text", "key: value"),
        ("- a\n- b", "key: value"),
        ("a: [", "cannot be read"),
        ("lease_seconds: soon", "lease_seconds must be a number above 0"),
        ("lease_seconds: 0", "lease_seconds must be a number above 0"),
        ("lease_seconds: -5", "lease_seconds must be a number above 0"),
        ("lease_seconds: .nan", "lease_seconds must be a number above 0"),
        ("lease_seconds: true", "lease_seconds must be a number above 0"),
        ("max_attempts: 2.5", "max_attempts must be a whole number"),
        ("experiment: 7", "experiment must be a text"),
        ("experiment: [a]", "experiment must be a text"),
        ("store: 7", "store must be a text"),
        ("computes: [gpu]", "computes must hold"),
        ("computes: {gpu: {address: x}}", "computes.gpu must say its kind"),
        ("computes: {gpu: ray}", "computes.gpu must say its kind"),
        ("computes: {gpu: {kind: 7}}", "computes.gpu must say its kind"),
        (
            "computes: {'../x': {kind: ray}}",
            "computes must be named with letters, digits, '.', '_' and '-', not '../x'",
        ),
        ("computes: {gpu: {kind: ray}}\ngpu: {kind: ray}", "'gpu' is there twice"),
        (
            "computes: {local: {kind: ray}}",
            "computes.local is this machine and cannot be of kind 'ray'",
        ),
        ("comptes: {gpu: {kind: ray}}", "did you mean 'computes'"),
        ("gpu: {address: x}", "unknown key 'gpu'"),
        ("code_limit_mb: 0", "code_limit_mb must be a number above 0"),
        ("compute: 3", "compute must be a text"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, said: str):
    with pytest.raises(BadSetting) as caught:
        Settings.load(written(tmp_path, text), {})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node: a\n\nlease_secs: 3", "line 3: unknown key 'lease_secs': did you mean 'lease_"),
        ("node: a\nmax_attempts: 0", "line 2: max_attempts must be a whole number, 1 or more"),
        ("node: a\nnode: b", "line 2: the key 'node' is there twice"),
        ("node: a\nexperiment: [", "line 2: cannot be read as YAML"),
        ("node: a\ncomputes:\n  gpu: {address: x}", "line 3: computes.gpu must say its kind"),
        ("node: &a [*a]", "line 1: is nested more than 50 levels deep"),
    ],
)
def test_a_mistake_is_said_with_its_line(tmp_path: Path, text: str, said: str):
    with pytest.raises(BadSetting) as caught:
        Settings.load(written(tmp_path, text), {})
    assert str(caught.value).startswith(f"edgeloop.yaml, {said}")


def test_numbers_may_come_from_variables(tmp_path: Path):
    found = Settings.load(written(tmp_path, "max_attempts: ${TIMES}"), {"TIMES": "7"})
    assert found.max_attempts == 7


class MoonKeys(Section):
    moon_root: str = Field("", description="Where the SDK is.")
    moon_seconds: float = Field(5.0, gt=0, description="How long it may take.")


MOON = SimpleNamespace(settings=MoonKeys)


def test_a_platform_brings_keys_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    point = EntryPoint("moon", f"{__name__}:MOON", "edgeloop.platforms")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    settings_model.cache_clear()
    try:
        found = Settings.load(written(tmp_path, "moon_seconds: 9\nmax_attempts: 2"), {})
        assert found.section(MoonKeys) == MoonKeys(moon_seconds=9)
        assert found.max_attempts == 2 and Settings.load(tmp_path / "a", {}).section(MoonKeys)
        with pytest.raises(BadSetting, match="moon_seconds must be greater than 0, not -1"):
            Settings.load(written(tmp_path, "moon_seconds: -1"), {})
        with pytest.raises(BadSetting, match="did you mean 'moon_root'"):
            Settings.load(written(tmp_path, "moon_roots: /x"), {})
    finally:
        settings_model.cache_clear()


def test_an_empty_file_sets_nothing(tmp_path: Path):
    assert Settings.load(written(tmp_path, "# later\n"), {}).experiment == "default"


COMPUTES = """
computes:
  gpu: {kind: ray, address: "${HEAD}", more: {tokens: ["${TOKEN}"], tries: 3}}
  local: {cpus: 4}
azure: {kind: azureml, workspace: w}
compute: gpu
code_limit_mb: 20
"""


def test_computes_are_named_in_the_file_and_local_is_always_there(tmp_path: Path):
    assert Settings.load(tmp_path, {}).compute_settings() == {"kind": "local"}
    found = Settings.load(written(tmp_path, COMPUTES), {})
    assert set(found.computes) == {"gpu", "local", "azure"}
    assert (found.compute, found.code_limit_mb) == ("gpu", 20)
    assert found.compute_settings("local") == {"kind": "local", "cpus": 4}
    assert found.compute_settings("azure")["workspace"] == "w"


def test_computes_of_azure_ml_are_told_where_the_project_is_and_what_they_share(tmp_path: Path):
    text = "azure: {workspace: '${WORKSPACE}'}\ncomputes: {gpu: {kind: azureml, cluster: gpu}}"
    found = Settings.load(written(tmp_path, text), {"WORKSPACE": "vision"})
    own = {"kind": "azureml", "project": str(tmp_path), "azure": {"workspace": "vision"}}
    assert found.compute_settings("gpu") == {**own, "cluster": "gpu"}
    assert found.compute_settings("azureml") == own  # needs no description
    with pytest.raises(BadSetting, match="azure must hold 'key: value' lines"):
        Settings.load(written(tmp_path, "azure: vision"), {})


def test_one_compute_of_a_kind_needs_no_heading_and_keeps_local(tmp_path: Path):
    found = Settings.load(written(tmp_path, "gpu: {kind: ray}"), {})
    assert set(found.computes) == {"gpu", "local"}


def test_variables_of_a_compute_are_filled_to_the_depths_when_it_is_used(tmp_path: Path):
    found = Settings.load(written(tmp_path, COMPUTES), {})
    assert found.compute_settings("gpu", {"HEAD": "http://h:8265", "TOKEN": "s3cret"}) == {
        "kind": "ray",
        "address": "http://h:8265",
        "more": {"tokens": ["s3cret"], "tries": 3},
    }
    assert "s3cret" not in str(found.computes) and "TOKEN" not in repr(found)
    with pytest.raises(BadSetting, match=r"compute gpu: the variable (HEAD|TOKEN) is not set"):
        found.compute_settings("gpu", {})


def test_the_environment_names_another_compute(tmp_path: Path):
    found = Settings.load(written(tmp_path, COMPUTES), {"EDGELOOP_COMPUTE": "azure"})
    assert found.compute_settings()["kind"] == "azureml"


def test_a_compute_that_is_not_there_is_said_with_those_near(tmp_path: Path):
    found = Settings.load(written(tmp_path, COMPUTES), {})
    with pytest.raises(BadSetting, match=r"no compute 'gpus': did you mean 'gpu'\?"):
        found.compute_settings("gpus")
    with pytest.raises(BadSetting, match="are local, gpu, azure"):
        found.compute_settings("zzz")


def test_this_machine_keeps_its_state_where_its_owner_says(tmp_path: Path):
    home = {"HOME": "/home/me"}
    assert state_folder(home) == Path("/home/me/.local/state/edgeloop")
    assert state_folder({**home, "XDG_STATE_HOME": "relative"}) == state_folder(home)
    assert state_folder({**home, "XDG_STATE_HOME": "/s"}) == Path("/s/edgeloop")
    assert state_folder({"XDG_STATE_HOME": "/s", "EDGELOOP_STATE": "/mine"}) == Path("/mine")
    assert cache_folder(home) == Path("/home/me/.cache/edgeloop")
    assert cache_folder({"EDGELOOP_CACHE": str(tmp_path)}) == tmp_path
