"""Environments for jobs hold what a definition names and what that needs, and nothing else."""

from __future__ import annotations

import subprocess

import pytest

from tests.peers.environments import (
    ENVIRONMENTS,
    CannotBuild,
    Definition,
    installed_in,
)

CONDA = """
channels: [conda-forge]
dependencies: [python=3.11, pip, numpy>=1.26, {pip: ["azure-identity>=1.19", pyyaml]}]
"""


def test_a_definition_s_packages_and_their_needs_are_there_and_no_others():
    programs = ENVIRONMENTS.bin_of(Definition.of_conda(CONDA))
    found = installed_in(programs)
    assert {"numpy", "azure-identity", "azure-core", "msal", "pyyaml"} <= found
    assert not found & {"edgeloop", "torch", "pytest", "azure-storage-blob", "optuna"}
    code = "import azure.identity, numpy, yaml; print(numpy.zeros(2).sum())"
    python = [programs / "python", "-I", "-c"]
    assert subprocess.run([*python, code], capture_output=True, check=True).stdout == b"0.0\n"
    refused = subprocess.run([*python, "import edgeloop"], capture_output=True, check=False)
    assert b"No module named 'edgeloop'" in refused.stderr
    assert ENVIRONMENTS.bin_of(Definition.of_conda(CONDA)) == programs


def test_an_image_is_a_bare_python():
    programs = ENVIRONMENTS.bin_of(Definition.of_asset({"image": "acme/train:3"}))
    assert installed_in(programs) == set()


@pytest.mark.soak
def test_another_python_is_that_python_and_nothing_else():
    programs = ENVIRONMENTS.bin_of(Definition.of_conda("dependencies: [python=3.10, pip]"))
    code = "import sys; print(sys.version_info[:2])"
    ran = subprocess.run([programs / "python", "-c", code], capture_output=True, check=True)
    assert ran.stdout == b"(3, 10)\n"
    assert installed_in(programs) == set()


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        ("numpy", "numpy"),
        ("conda-forge::numpy=1.26", "numpy==1.26.*"),
        ("numpy =1.26.4=py310_0", "numpy==1.26.4.*"),
        ("numpy >=1.26,<2", "numpy>=1.26,<2"),
        ("pytorch-cpu=2.1.*", "torch==2.1.*"),
        ("pyyaml==6.0.1", "pyyaml==6.0.1"),
    ],
)
def test_a_dependency_of_conda_is_read_as_one_of_pip(text: str, requirement: str):
    definition = Definition.of_conda(f"dependencies: ['{text}', 'python >=3.10', pip]")
    assert definition == Definition((requirement,), "3.10")


@pytest.mark.soak
def test_another_python_has_packages_that_were_built_for_it():
    conda = "dependencies: [python=3.10, pip, numpy=2.2, {pip: [pyyaml]}]"
    programs = ENVIRONMENTS.bin_of(Definition.of_conda(conda))
    code = "import sys, numpy, yaml; print(sys.version_info[:2], numpy.__version__[:4])"
    ran = subprocess.run([programs / "python", "-I", "-c", code], capture_output=True, check=True)
    assert ran.stdout == b"(3, 10) 2.2.\n"
    assert installed_in(programs) == {"numpy", "pyyaml"}
    with pytest.raises(CannotBuild, match="No matching distribution found for numpy"):
        ENVIRONMENTS.bin_of(Definition.of_conda("dependencies: [python=3.10, numpy>=2.4]"))


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        (Definition(("no-such-thing",)), "no-such-thing, which the definition names, is not in"),
        (Definition(("numpy<1",)), "the definition names numpy<1, and the test environment has"),
        (Definition(("edgeloop[train]",)), "it names edgeloop, which no index has"),
        (Definition(python="3.7"), "it asks for Python 3.7, which 'make setup' has not installed"),
        (Definition(("-r other.txt",)), "'-r other.txt' is not a requirement"),
    ],
)
def test_what_cannot_be_built_is_said(definition: Definition, says: str):
    with pytest.raises(CannotBuild) as refusal:
        ENVIRONMENTS.bin_of(definition)
    assert says in str(refusal.value)
