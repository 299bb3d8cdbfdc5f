"""Python environments that hold exactly what a definition names.

For the Python of the tests it is a virtual environment whose packages are links to those of the
test environment, made without a network: the distributions that a definition names and all that
they declare to need, nothing else, and never Edgeloop itself. For another Python that
`scripts/install-interpreters` provides, pip resolves and installs wheels for that one from its
index. What a job imports there is what it would find on a node.

There is no conda here: neither the program nor a channel can be had from PyPI, Debian or npm. The
names and versions of a conda file are read as pip's, so what only a channel has cannot be built.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tests import guard

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
INTERPRETERS = Path(__file__).parents[2] / ".tools/pythons"  # see scripts/install-interpreters
_CONDA_NAMES = {"pytorch": "torch", "pytorch-cpu": "torch"}
_CONDA_TOOLS = ("pip", "setuptools", "wheel", "python")
_SCRIPT = """\
#!{python}
import sys
from {module} import {name}
sys.exit({attribute}())
"""


class CannotBuild(Exception):
    """A definition that this machine cannot follow: which package is missing, and from where."""


@dataclass(frozen=True)
class Definition:
    """Requirements as pip reads them, and a version of Python."""

    requirements: tuple[str, ...] = ()
    python: str = HERE

    @classmethod
    def of_asset(cls, properties: Mapping[str, object]) -> Definition:
        """Of an environment as Azure ML keeps it. What is inside an image is unknown here, so an
        image is a bare Python."""
        conda = properties.get("condaFile")
        return cls.of_conda(str(conda)) if conda else cls()

    @classmethod
    def of_conda(cls, text: str) -> Definition:
        document = yaml.safe_load(text)
        requirements, python = [], HERE
        for item in document["dependencies"]:
            if isinstance(item, Mapping):
                requirements += [str(name) for name in item.get("pip") or ()]
                continue
            name, versions = _conda_package(str(item))
            found = re.match(r"[=<>~!]*\s*(\d+\.\d+)", versions)
            if name == "python" and found:
                python = found[1]
            if name not in _CONDA_TOOLS:
                requirements.append(f"{_CONDA_NAMES.get(name, name)}{versions}")
        return cls(tuple(requirements), python)


def _conda_package(text: str) -> tuple[str, str]:
    """The name of a dependency, and its versions as pip has them: `numpy=1.26=py310_0` is
    `==1.26.*`, and `conda-forge::numpy >=1.26` is `>=1.26`."""
    plain = text.strip().rpartition("::")[2].replace(" ", "")
    name = re.split(r"[=<>!~]", plain, maxsplit=1)[0]
    versions = plain[len(name) :]
    if re.match(r"=[^=]", versions):
        versions = f"=={versions[1:].partition('=')[0].removesuffix('.*')}.*"
    return name, versions


class Environments:
    """Built once per content, for as long as this process runs."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=guard.folder_prefix("envs"))
        self._built: dict[Definition, Path] = {}
        self._lock = threading.Lock()

    def bin_of(self, definition: Definition) -> Path:
        """The folder of its programs; raises CannotBuild."""
        with self._lock:
            if definition not in self._built:
                self._built[definition] = self._build(definition)
            return self._built[definition]

    def _build(self, definition: Definition) -> Path:
        key = hashlib.sha256(repr(definition).encode()).hexdigest()[:16]
        target = Path(self._folder.name) / key
        if definition.python != HERE:
            return _other_python(definition, target)
        named = [_parsed(text) for text in definition.requirements]
        found = closure(named)
        venv.EnvBuilder(symlinks=True).create(target)
        packages = target / "lib" / f"python{HERE}" / "site-packages"
        for each in found.values():
            _link(each, packages)
        for requirement in named:
            _write_scripts(found[canonicalize_name(requirement.name)], target / "bin")
        return target / "bin"


ENVIRONMENTS = Environments()


def closure(named: Sequence[Requirement]) -> dict[str, Distribution]:
    """The distributions that are named and all that they need here, by their canonical names."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(each, "the definition") for each in named]
    while waiting:
        requirement, wanted_by = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name == "edgeloop":
            raise CannotBuild("it names edgeloop, which no index has: the package must travel")
        found[name] = _installed(requirement, wanted_by)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [(each, name) for each in _needs(found[name], extra)]
    return found


def _needs(found: Distribution, extra: str) -> Iterable[Requirement]:
    for text in found.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _installed(requirement: Requirement, wanted_by: str) -> Distribution:
    try:
        found = distribution(requirement.name)
    except PackageNotFoundError:
        reason = f"{requirement.name}, which {wanted_by} names, is not in the test environment"
        raise CannotBuild(reason) from None
    if not requirement.specifier.contains(found.version, prereleases=True):
        reason = f"{wanted_by} names {requirement}, and the test environment has {found.version}"
        raise CannotBuild(reason)
    return found


def _parsed(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise CannotBuild(f"{text!r} is not a requirement that can be built here") from None


def _other_python(definition: Definition, target: Path) -> Path:
    """Another Python, with packages that pip installs for it: those of the test environment are
    not for it."""
    version = definition.python
    python = INTERPRETERS / version / f"usr/bin/python{version}"
    if not python.is_file():
        raise CannotBuild(f"it asks for Python {version}, which 'make setup' has not installed")
    programs, packages = target / "bin", target / "lib" / f"python{version}" / "site-packages"
    if definition.requirements:
        _install(definition, packages)
    programs.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        (programs / name).symlink_to(python)
    (target / "pyvenv.cfg").write_text(f"home = {python.parent}\nversion = {version}\n")
    return programs


def _install(definition: Definition, packages: Path) -> None:
    for text in definition.requirements:
        if canonicalize_name(_parsed(text).name) == "edgeloop":
            raise CannotBuild("it names edgeloop, which no index has: the package must travel")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
    command += ["--python-version", definition.python, "--implementation", "cp"]
    command += ["--only-binary", ":all:", "--target", str(packages), *definition.requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else "pip gives no reason"
        raise CannotBuild(f"for Python {definition.python}: {reason}")


def _link(found: Distribution, target: Path) -> None:
    inside = [file.parts for file in found.files or () if ".." not in file.parts]
    _link_all(inside, Path(str(found.locate_file(""))), target)


def _link_all(paths: Iterable[tuple[str, ...]], source: Path, target: Path) -> None:
    """Packages as a whole; folders that several distributions share, entry by entry."""
    by_name: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in paths:
        by_name.setdefault(first, []).append(tuple(rest))
    for name, rests in by_name.items():
        here, there = source / name, target / name
        is_shared = here.is_dir() and not (here / "__init__.py").exists()
        if is_shared and here.suffix not in (".dist-info", ".libs"):
            there.mkdir(exist_ok=True)
            _link_all([rest for rest in rests if rest], here, there)
        elif here.exists() and not there.exists():
            there.symlink_to(here)


def _write_scripts(found: Distribution, programs: Path) -> None:
    for point in found.entry_points.select(group="console_scripts"):
        attribute = point.attr
        text = _SCRIPT.format(
            python=programs / "python",
            module=point.module,
            name=attribute.partition(".")[0],
            attribute=attribute,
        )
        script = programs / point.name
        script.write_text(text)
        script.chmod(0o755)


def installed_in(programs: Path) -> set[str]:
    """The distributions that an environment's own Python finds."""
    code = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    ran = subprocess.run([programs / "python", "-I", "-c", code], capture_output=True, check=True)
    return {canonicalize_name(name) for name in ran.stdout.decode().split()}
