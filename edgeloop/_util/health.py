"""One line of `doctor` and `azure doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HealthCheck:
    """`ok` is None if it could not be checked. `needed`: nothing works without it; everything else
    only says what cannot be done yet."""

    what: str
    ok: bool | None
    text: str
    needed: bool = False

    @property
    def is_problem(self) -> bool:
        return self.needed and self.ok is not True


def package_check(module: str, install: str, purpose: str) -> HealthCheck:
    """Whether a Python package is installed; `install` is what gets it, such as
    `pip install 'edgeloop[qnn]'`."""
    import importlib.util

    try:
        is_installed = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        is_installed = False
    text = purpose if is_installed else f"{purpose}: {install}"
    return HealthCheck(module.partition(".")[0].replace("_", "-"), is_installed, text)
