"""The first lines of a process that waits; `waiter.py` makes them the `__main__` of a zip file.

Our packages are entered without their doors, which load far more than a waiting process should
hold: only `turn.py` is read, and what it asks for when its turn comes.
"""

from __future__ import annotations

import sys
from types import ModuleType

_PACKAGES = (
    "edgeloop",
    "edgeloop.jobs",
    "edgeloop.jobs.computes",
    "edgeloop.jobs.computes.local",
    "edgeloop.jobs.protocol",
)

if __name__ == "__main__":
    for name in _PACKAGES:
        package = ModuleType(name)
        package.__path__ = [f"{sys.argv[0]}/{name.replace('.', '/')}"]
        sys.modules[name] = package
    from edgeloop.jobs.computes.local.turn import main

    sys.exit(main(*sys.argv[1:]))
