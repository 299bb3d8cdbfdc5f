"""Names of datasets.

A dataset is a folder below `data/raw` or `data/working`, and its name is its path below `data/`:
`working/faces128`. `working/faces128@4` is one version of it. A bare `faces128` may be either kind.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edgeloop.errors import BadInput, BadName, NoSuchDataset

KINDS = ("working", "raw")
DATA_FOLDER = "data"
_LONGEST_NAME_BYTES = 180  # the name is one part of a key, with room for what surrounds it


@dataclass(frozen=True)
class Reference:
    """One version of one dataset."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def check_name(name: str) -> str:
    """Check the full name of a dataset, which becomes part of keys and paths; raises BadName."""
    kind, _, rest = name.partition("/")
    if kind not in KINDS or not rest:
        reason = "it must begin with working/ or raw/, for example working/faces128"
        raise BadName(what="dataset", name=name, reason=reason)
    return _check_rest(name)


def parse_reference(text: str) -> tuple[str, int | None]:
    """`faces@3` is ("faces", 3). Without a version the second is None, which means the newest."""
    name, at, version = text.partition("@")
    _check_rest(name)
    if not at:
        return name, None
    if not re.fullmatch(r"[1-9][0-9]{0,8}", version):
        raise BadName(
            what="dataset", name=text, reason="after @ comes a version, for example faces@3"
        )
    return name, int(version)


def full_names(name: str) -> tuple[str, ...]:
    """What a name may mean: itself, or for a bare one a dataset of either kind."""
    return (name,) if name.startswith(_STARTS) else tuple(f"{kind}/{name}" for kind in KINDS)


def only_one(name: str, found: list[str]) -> str:
    """Never guess between two datasets."""
    if len(found) > 1:
        reason = f"{name!r} may be {' or '.join(found)}: give the full name"
        raise BadInput(reason=reason)
    return found[0]


def suggestion(name: str, known: Iterable[str]) -> str:
    by_last = {entry.rpartition("/")[2]: entry for entry in known}
    by_last.update({entry: entry for entry in by_last.values()})
    near = difflib.get_close_matches(name, by_last, n=1)
    return f" (did you mean {by_last[near[0]]!r}?)" if near else ""


def find_local(project: Path, text: str) -> tuple[str, Path]:
    """The dataset and its local folder, for a name or a path to a folder below `data/`."""
    root = project.absolute() / DATA_FOLDER
    as_path = Path(text).expanduser()
    if "@" not in text and not text.startswith(_PATH_STARTS) and not text.endswith("/"):
        meant = dict.fromkeys((*full_names(_check_rest(text)), *full_names(_below_data(text))))
        found = [name for name in meant if (root / name).is_dir()]
        if found:
            name = only_one(text, found)
            return check_name(name), root / name
    if as_path.is_dir():
        return _name_of_folder(root, as_path)
    if as_path.is_file():
        raise NoSuchDataset(name=text, reason="that is a file, and a dataset is a folder")
    if text.startswith(_PATH_STARTS):
        raise NoSuchDataset(name=text, reason=f"there is no folder {as_path.absolute()}")
    name, version = parse_reference(text)
    if version is not None:
        raise BadName(what="dataset", name=text, reason="a push assigns the version itself")
    name = _below_data(name)
    if (root / name).is_dir():
        raise _misplaced(root / name, root)
    places = " or ".join(str(root / full) for full in full_names(name))
    folders = [folder for kind in KINDS for folder in (root / kind).glob("*") if folder.is_dir()]
    near = suggestion(name, (folder.relative_to(root).as_posix() for folder in folders))
    raise NoSuchDataset(name=name, reason=f"there is no folder {places}{near}")


def key_part(name: str) -> str:
    """The name as one part of a key. No name contains an @, so no two names share keys, and no
    dataset's keys are inside another's, as those of `raw/a/log` would be in `raw/a`."""
    return name.replace("/", "@")


def name_of_key_part(part: str) -> str:
    return part.replace("@", "/")


_PATH_STARTS = ("/", ".", "~")
_STARTS = tuple(f"{kind}/" for kind in KINDS)


def _check_rest(name: str) -> str:
    def refuse(reason: str) -> BadName:
        return BadName(what="dataset", name=name, reason=reason)

    if not name.isprintable() or "\\" in name or "@" in name:
        raise refuse("it has a backslash, an @ or an unprintable character")
    parts = name.split("/")
    if any(not part or part != part.strip() or part.strip(".") != part for part in parts):
        raise refuse(
            "it must be a plain path; no part may be empty, or start or end with a dot or space"
        )
    if len(name.encode(errors="replace")) > _LONGEST_NAME_BYTES:
        raise refuse(f"it is longer than {_LONGEST_NAME_BYTES} bytes")
    return name


def _below_data(name: str) -> str:
    """`data/working/faces` is a path as seen from the project, wherever the user is."""
    return name[len(DATA_FOLDER) + 1 :] if name.startswith(f"{DATA_FOLDER}/") else name


def _name_of_folder(root: Path, folder: Path) -> tuple[str, Path]:
    """A path may go through links, so both ends are compared as written and resolved."""
    for base, path in ((root, folder.absolute()), (root.resolve(), folder.resolve())):
        if base in path.parents and ".." not in path.parts:
            if path.relative_to(base).parts[0] not in KINDS:
                break
            return check_name(path.relative_to(base).as_posix()), path
    raise _misplaced(folder, root)


def _misplaced(folder: Path, root: Path) -> NoSuchDataset:
    places = " or ".join(str(root / kind) for kind in KINDS)
    reason = f"{folder.absolute()} is not below {places}; move it there, or link to it there"
    return NoSuchDataset(name=str(folder), reason=reason)
