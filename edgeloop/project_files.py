"""The files of an older project's `.azureml/`: read where they are there. Only `azure create`
writes one, the `config.json` of the workspace that it creates.

`config.json` names the workspace and is looked for upwards, as Azure's own tools do; its neighbours
name a compute target, a datastore and an environment. `datastore.json` may hold an account's key:
it opens the store from here and goes nowhere else, since a job never needs it. `environment.json`
is either short (`name`, or `image` and `packages`) or what azureml-core saves: `docker`, `python`
and `environmentVariables`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgeloop._util.files import read_regular, write_atomic
from edgeloop._util.system import has_users
from edgeloop.errors import BadSetting

FOLDER = ".azureml"
ENVIRONMENT_FILE = "environment.json"
_MARKS = ("edgeloop.yaml", ".edgeloop", FOLDER, f"{FOLDER}/config.json", f"{FOLDER}/datastore.json")
_LARGEST = 1 << 20
_TEXTS = (
    *("subscription_id", "resource_group", "workspace_name", "compute_target", "datastore_name"),
    *("account_name", "container_name", "account_key", "blob_endpoint"),
)


@dataclass(frozen=True)
class ProjectFiles:
    """What the files say; an empty text where they say nothing."""

    folder: Path | None = None
    subscription: str = ""
    resource_group: str = ""
    workspace: str = ""
    compute_target: str = ""
    datastore: str = ""
    account: str = ""
    container: str = ""
    account_key: str = field(default="", repr=False)
    blob_endpoint: str = ""  # ours: where a private cloud has the account
    environment: str = ""  # a registered name
    image: str = ""
    packages: tuple[str, ...] = ()
    conda: str = ""  # the text of a conda file
    dockerfile: str = ""  # its text, instead of an image
    python: str = ""  # the interpreter of an image that brings its own packages
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def read_project_files(start: Path) -> ProjectFiles:
    """The nearest `.azureml/` from here upwards; a file that cannot be read is an error. One above
    `start` that belongs to another user is passed by: see `check_owner`."""
    for folder in (start.absolute(), *start.absolute().parents):
        if (folder / FOLDER).is_dir():
            if folder != start.absolute() and _stranger(folder, _MARKS[2:]):
                continue
            return _read(folder / FOLDER)
    return ProjectFiles()


def check_owner(project: Path, is_here: bool, also: str = "") -> None:
    """Settings decide where a user's data and secrets go, so those of another user are refused; of
    root they are as good as one's own. `is_here`: the user stands in the folder itself, which then
    need not be theirs. `also` is the number of a user whose files root takes for its own (sudo)."""
    if not has_users():
        return
    own = {int(also)} if also.isdecimal() and os.geteuid() == 0 else set()
    found = _stranger(project, _MARKS, own)
    if found is None and not is_here and not any(os.path.lexists(project / m) for m in _MARKS):
        found = _stranger(project, (".",), own)
    if found is not None:
        path, owner = found
        raise BadSetting(
            where=str(path),
            reason=f"it belongs to {owner}, and settings of other users are not read. If you trust "
            f"them, set EDGELOOP_TRUST={project}; to start a project of your own, create a folder "
            ".edgeloop in it",
        )


def _stranger(
    folder: Path, names: tuple[str, ...], own: Set[int] = frozenset()
) -> tuple[Path, str] | None:
    """What of these belongs to another user, and to whom; a link and what is behind it count."""
    if not has_users():
        return None
    for name in names:
        for follow in (False, True):
            with suppress(FileNotFoundError, NotADirectoryError):
                uid = (folder / name).stat(follow_symlinks=follow).st_uid
                if uid not in (os.geteuid(), 0, *own):
                    return folder / name, _user_name(uid)
    return None


def _user_name(uid: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with the number {uid}"


def with_workspace(files: ProjectFiles, config: Path) -> ProjectFiles:
    """The same with the workspace that another `config.json` names."""
    if not config.is_file():
        raise BadSetting(where=str(config), reason="there is no such workspace config")
    content = _json(config, config.name)
    for key in ("subscription_id", "resource_group", "workspace_name"):
        if not _text(content, key):
            raise BadSetting(where=config.name, reason=f"it names no {key}")
    return replace(
        files,
        subscription=_text(content, "subscription_id"),
        resource_group=_text(content, "resource_group"),
        workspace=_text(content, "workspace_name"),
    )


def write_workspace(project: Path, subscription: str, resource_group: str, workspace: str) -> None:
    """Name the workspace in `.azureml/config.json`, where Azure's own tools look for it, too."""
    content = {
        "subscription_id": subscription,
        "resource_group": resource_group,
        "workspace_name": workspace,
    }
    (project / FOLDER).mkdir(exist_ok=True)
    write_atomic(project / FOLDER / "config.json", json.dumps(content, indent=2) + "\n")


def _read(folder: Path) -> ProjectFiles:
    config = _json(folder / "config.json")
    target = _json(folder / "compute_target.json")
    datastore = _json(folder / "datastore.json")
    return ProjectFiles(
        folder=folder,
        subscription=_text(config, "subscription_id"),
        resource_group=_text(config, "resource_group"),
        workspace=_text(config, "workspace_name"),
        compute_target=_text(target, "compute_target"),
        datastore=_text(datastore, "datastore_name"),
        account=_text(datastore, "account_name"),
        container=_text(datastore, "container_name"),
        account_key=_text(datastore, "account_key"),
        blob_endpoint=_text(datastore, "blob_endpoint"),
        **_environment(folder),
    )


def _environment(folder: Path) -> dict[str, Any]:
    content = _json(folder / ENVIRONMENT_FILE)
    variables = _section(content, "environmentVariables")
    found: dict[str, Any] = {
        "variables": tuple((name, str(value)) for name, value in variables.items())
    }
    docker, python = _section(content, "docker"), _section(content, "python")
    if docker or python:
        return {**found, **_defined(folder, docker, python)}
    packages = content.get("packages") or content.get("pip_packages")
    name, version = _text(content, "name", "environment_name"), content.get("version")
    return {
        **found,
        "environment": f"{name}:{version}" if name and version else name,
        "image": _text(content, "image", "docker_image"),
        "packages": tuple(map(str, packages)) if isinstance(packages, list) else (),
    }


def _defined(
    folder: Path, docker: Mapping[str, object], python: Mapping[str, object]
) -> dict[str, Any]:
    """An environment as azureml-core saves it: it says what to build, so its name does not matter.
    Passwords of a registry are left out: the workspace needs a connection to it."""
    image, dockerfile = _text(docker, "baseImage"), _text(docker, "baseDockerfile")
    if dockerfile and "\n" not in dockerfile and _beside(folder, dockerfile).is_file():
        dockerfile = _content(_beside(folder, dockerfile)).decode("utf-8", "replace")
    registry = _text(_section(docker, "baseImageRegistry"), "address")
    if image and registry and not image.startswith(f"{registry}/"):
        image = f"{registry}/{image}"
    if python.get("userManagedDependencies") is True:
        if not image and not dockerfile:
            reason = "userManagedDependencies needs docker.baseImage or docker.baseDockerfile"
            raise BadSetting(where=f"{FOLDER}/{ENVIRONMENT_FILE}", reason=reason)
        own = _text(python, "interpreterPath")
        return {"image": image, "dockerfile": dockerfile, "python": "" if own == "python" else own}
    return {"image": image, "dockerfile": dockerfile, "conda": _conda(folder, python)}


def _conda(folder: Path, python: Mapping[str, object]) -> str:
    """The packages themselves, or the file that lists them."""
    inline, name = _section(python, "condaDependencies"), _text(python, "condaDependenciesFile")
    if inline:
        if not isinstance(inline.get("dependencies"), list):
            reason = "its python.condaDependencies needs a list of dependencies"
            raise BadSetting(where=f"{FOLDER}/{ENVIRONMENT_FILE}", reason=reason)
        return json.dumps(inline)
    if not name:
        return ""
    if not _beside(folder, name).is_file():
        reason = f"its python.condaDependenciesFile names {name}, which is not there"
        raise BadSetting(where=f"{FOLDER}/{ENVIRONMENT_FILE}", reason=reason)
    return _content(_beside(folder, name)).decode("utf-8", "replace")


def _beside(folder: Path, name: str) -> Path:
    """Beside the file, or from the project's folder, as `.azureml/conda.yml` is written."""
    return folder / name if (folder / name).is_file() else folder.parent / name


def _section(content: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = content.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadSetting(
            where=f"{FOLDER}/{ENVIRONMENT_FILE}", reason=f"its {key} must be an object"
        )
    return found


def _content(path: Path) -> bytes:
    try:
        return read_regular(path, _LARGEST)
    except OSError as error:
        where = f"{FOLDER}/{path.name}"
        raise BadSetting(where=where, reason=f"cannot be read: {error.strerror}") from None


def _json(path: Path, where: str = "") -> Mapping[str, object]:
    where = where or f"{FOLDER}/{path.name}"
    try:
        content = json.loads(read_regular(path, _LARGEST))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:  # a decoder's words could quote a key
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise BadSetting(where=where, reason=f"cannot be read: {reason}") from None
    if not isinstance(content, dict):
        raise BadSetting(where=where, reason="must hold one JSON object")
    for key in _TEXTS:
        if not isinstance(content.get(key), str | None):  # its value may be secret
            raise BadSetting(where=where, reason=f"its {key} must be a text")
    return content


def _text(content: Mapping[str, object], *keys: str) -> str:
    found = (content.get(key) for key in keys)
    return next((value for value in found if isinstance(value, str)), "")
