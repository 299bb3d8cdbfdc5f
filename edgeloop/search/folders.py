"""Where the files of searches are: in a folder each, or among the results of a job that ran one."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from edgeloop._util.suggest import suggestion
from edgeloop._util.yaml import NotYaml, parse_yaml
from edgeloop.errors import BadInput
from edgeloop.jobs import RUNS_FOLDER
from edgeloop.search.config import SearchConfig, read_config

SEARCHES, KEPT_CONFIG, LOCK = "searches", "search.yaml", ".lock"
CANDIDATES, PARETO = "candidates.csv", "pareto"
UTILISATION = "utilisation.json"  # of `trainers` and `gpu`, from 0 to 1, as far as it is known
_OUTPUTS = "outputs"


def found_searches(project: Path) -> dict[str, Path]:
    """The folders of searches by their names; those of jobs, whose results were fetched, by the
    names of the jobs."""
    fetched = sorted(project.glob(f"{RUNS_FOLDER}/*/{_OUTPUTS}/{KEPT_CONFIG}"))
    own = sorted(project.glob(f"{SEARCHES}/*/{KEPT_CONFIG}"))
    return {
        **{file.parents[1].name: file.parent for file in fetched},
        **{file.parent.name: file.parent for file in own},
    }


def find_search(name: str, project: Path) -> Path:
    """The folder of a search, by its name, by the name of the job that ran it, or by itself."""
    for folder in (Path(name), Path(name) / _OUTPUTS):
        if (folder / KEPT_CONFIG).is_file():
            return folder.resolve()
    known = found_searches(project)
    found = known.get(name) or fetched_search(name, project)
    if found is not None:
        return found
    if (project / RUNS_FOLDER / name).is_dir():
        reason = f"the results of the search {name!r} are not here: fetch them with "
        raise BadInput(reason=f"{reason}'edgeloop job results {name}'")
    there = suggestion(name, sorted(known), "there are") if known else "none was run or fetched yet"
    raise BadInput(reason=f"there is no search {name!r} in {project.absolute()}: {there}")


def fetched_search(name: str, project: Path) -> Path | None:
    """The newest fetched results of a search that ran as a job."""
    files = project.glob(f"{RUNS_FOLDER}/*/{_OUTPUTS}/{KEPT_CONFIG}")
    matching = [file for file in files if _name_in(file) == name]
    return max(matching, key=lambda file: file.stat().st_mtime).parent if matching else None


def kept_search(folder: Path, project: Path, overrides: Sequence[str] = ()) -> SearchConfig:
    """The configuration of a search that was run. It continues in its own folder; one whose
    results were fetched from a job continues in `searches/`."""
    config = read_config(folder / KEPT_CONFIG, overrides, any_folder=True)
    is_fetched = (project / RUNS_FOLDER).resolve() in folder.resolve().parents
    return replace(config, folder="" if is_fetched else str(folder.resolve()))


def arch_ids(folder: Path) -> set[str]:
    """The architectures that a search has evaluated."""
    found = {file.stem for file in (folder / PARETO).glob("id_*.json")}
    with suppress(OSError), (folder / CANDIDATES).open(newline="", encoding="utf-8") as file:
        found |= {row.get("arch_id") or "" for row in csv.DictReader(file)}
    return found - {""}


def adopt(folder: Path, name: str, project: Path) -> None:
    """Start from the results of a job, if the search was run as one and not here yet."""
    fetched = None if (folder / KEPT_CONFIG).is_file() else fetched_search(name, project)
    if fetched is not None and fetched.resolve() != folder.resolve():
        shutil.copytree(fetched, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK))


def _name_in(file: Path) -> str:
    try:
        document = parse_yaml(file.read_text(encoding="utf-8")).value
    except (OSError, UnicodeDecodeError, NotYaml):
        return ""
    search = document.get("search") if isinstance(document, dict) else None
    return str(search.get("name") or "") if isinstance(search, dict) else ""
