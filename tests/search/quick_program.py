"""`python -m edgeloop`, with trainings on this machine that take no time."""

from __future__ import annotations

from edgeloop.cli import main
from edgeloop.search.evaluators import local

if __name__ == "__main__":
    local._MODULE = "tests.search.quick_trainer"
    main()
