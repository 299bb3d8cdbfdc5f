"""Metadata, workflows and the README as PyPI shows it agree with the package."""

from __future__ import annotations

import contextlib
import re
import runpy
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
LINK = r"\]\(([^)\s]+)\)"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
REPOSITORY = PROJECT["project"]["urls"]["Repository"]
RAW = REPOSITORY.replace("https://github.com/", "https://raw.githubusercontent.com/")


def steps_of(workflow: Path) -> list[dict[str, str]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_link_of_the_readme_leads_to_a_file_of_the_clone():
    links = re.findall(LINK, README)
    assert len(links) > 20
    for link in links:
        file, _, anchor = link.partition("#")
        assert (ROOT / file).is_file(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors_of(ROOT / file), f"{link}: no such heading"


def test_a_wheel_has_the_readme_with_links_that_an_index_can_follow():
    absolute = runpy.run_path(str(ROOT / "setup.py"))["with_absolute_links"]
    links = re.findall(LINK, README)
    shown = re.findall(LINK, absolute(README, REPOSITORY))
    pages, images = f"{REPOSITORY}/blob/main/", f"{RAW}/main/"
    assert [link.removeprefix(pages).removeprefix(images) for link in shown] == links
    assert all(link.startswith(images if link.endswith(".webp") else pages) for link in shown)
    assert {"readme", "version"} == set(PROJECT["project"]["dynamic"])


def test_the_readme_fits_on_a_few_screens_and_names_no_package_index():
    assert README.count("\n") <= 125
    assert "not on PyPI yet" in README and "http" not in README
    assert re.findall(r"pip install '?(?!\.\[)[^' `]+", README) == ["pip install torch"]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= set(re.findall(r"`make ([a-z]+)`", README)) <= targets


def test_actions_are_pinned_to_commits():
    used = [step["uses"] for path in WORKFLOWS for step in steps_of(path) if "uses" in step]
    assert used
    for action in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action), action


def test_workflows_may_only_read():
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_unit_tests_run_on_every_python_version_that_the_metadata_names():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    prefix = "Programming Language :: Python :: 3."
    classifiers = PROJECT["project"]["classifiers"]
    named = [item.rpartition(" ")[2] for item in classifiers if item.startswith(prefix)]
    assert jobs["unit"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["project"]["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize(
    "template", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name
)
def test_files_of_the_repository_host_are_valid_yaml(template: Path):
    assert isinstance(yaml.safe_load(template.read_text()), dict)


def test_every_extra_that_a_message_names_exists():
    extras = PROJECT["project"]["optional-dependencies"]
    sources = "\n".join(path.read_text() for path in (ROOT / "edgeloop").rglob("*.py"))
    named = set(re.findall(r'MissingExtra\([^)]*extra="(\w+)"', sources))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for group in re.findall(r"edgeloop\[([\w,]+)\]", page.read_text()):
            named |= set(group.split(","))
    assert named <= set(extras), named.difference(extras)
    assert {"azure", "portal", "qnn", "train"} <= named


def test_nothing_of_the_package_needs_ray():
    for names in PROJECT["project"]["optional-dependencies"].values():
        assert not [name for name in names if name.startswith("ray")]


def test_every_make_target_that_a_workflow_or_a_guide_runs_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    run = [str(step.get("run")) for path in WORKFLOWS for step in steps_of(path)]
    guides = [(ROOT / name).read_text() for name in ("CONTRIBUTING.md", "RELEASING.md")]
    named = set(re.findall(r"\bmake ([a-z]+)\b", "\n".join([*run, *guides])))
    assert {"lint", "unit", "test", "docs", "wheel"} <= named <= targets


def test_the_security_page_names_only_what_is_there():
    text = (ROOT / "SECURITY.md").read_text()
    commands = (ROOT / "docs/reference/cli.md").read_text()
    paths = re.findall(r"(?:tests|docs)/[\w./-]*\w", text)
    options = set(re.findall(r"`(?:edgeloop [a-z ]+)?(--[a-z][a-z-]+)`", text))
    assert len(paths) >= 4 and len(options) >= 4
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [option for option in sorted(options) if f" {option} " not in commands] == []
    assert "edgeloop secrets scan" in text and "secrets scan" in commands


def test_the_readme_says_what_each_extra_adds():
    """Within a third of what is installed here; dependencies change."""
    rows = re.findall(r"^\| (.+?) \|.*\| (\d[^|]*) \|$", README, re.MULTILINE)
    told = {
        name: int(size)
        for names, sizes in rows
        for name, size in zip(
            re.findall(r"`(\w+)`", names) or [""], re.findall(r"(\d+) MB", sizes), strict=True
        )
    }
    extras = set(PROJECT["project"]["optional-dependencies"]) - {"all"}
    assert set(told) == extras | {""}
    base = _closure("edgeloop", ()) - {"edgeloop"}
    assert told[""] == pytest.approx(_megabytes(base), rel=1 / 3)
    for name in ("qnn", "portal"):
        added = _closure("edgeloop", (name,)) - base - {"edgeloop"}
        assert told[name] == pytest.approx(_megabytes(added), rel=1 / 3), name


def _closure(package: str, extras: Iterable[str]) -> set[str]:
    """What installing a package brings, by the metadata of what is installed here."""
    found: set[str] = set()
    waiting = [(package, frozenset(extras))]
    seen = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        with contextlib.suppress(PackageNotFoundError):
            requires = distribution(name).requires or []
            found.add(canonicalize_name(name))
            for requirement in map(Requirement, requires):
                marker = requirement.marker
                if not marker or any(marker.evaluate({"extra": e}) for e in (*wanted, "")):
                    waiting.append((requirement.name, frozenset(requirement.extras)))
    return found


def _megabytes(names: Iterable[str]) -> float:
    files = [file.locate() for name in names for file in distribution(name).files or ()]
    return sum(Path(str(file)).lstat().st_size for file in files if Path(str(file)).exists()) / 1e6
