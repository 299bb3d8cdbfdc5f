"""Metadata, workflows and the README as PyPI shows it agree with the package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
REPOSITORY = PROJECT["project"]["urls"]["Repository"]
RAW = REPOSITORY.replace("https://github.com/", "https://raw.githubusercontent.com/")


def steps_of(workflow: Path) -> list[dict[str, str]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_link_of_the_readme_works_on_pypi_and_leads_to_a_file_that_is_here():
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(links) > 10
    for link in links:
        path = link.removeprefix(f"{REPOSITORY}/blob/main/").removeprefix(f"{RAW}/main/")
        assert path != link or link.startswith("#"), f"{link} is relative: PyPI cannot follow it"
        file, _, anchor = path.partition("#")
        assert (ROOT / file).is_file(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors_of(ROOT / file), f"{link}: no such heading"


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
