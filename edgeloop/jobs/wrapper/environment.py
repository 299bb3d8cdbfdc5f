"""What the wrapper takes from its environment; nothing else in this room reads it."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgeloop.jobs.protocol.handover import ORDER_VARIABLE, Handover

# Left by a job that started this one; its own are set anew.
_OTHERS = ("EDGELOOP_INPUT_", "EDGELOOP_OUTPUT_", "EDGELOOP_JOB_")


@dataclass(frozen=True)
class Surroundings:
    """A node's cache, its interpreter for commands, and the variables that commands inherit."""

    cache: Path
    python: str | None
    node: str
    variables: Mapping[str, str] = field(repr=False)
    rank: int = 0  # which of a job's nodes this is; the first speaks for all

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> Surroundings:
        base = environ.get("XDG_CACHE_HOME") or _home() / ".cache"
        cache = Path(environ.get("EDGELOOP_CACHE") or Path(base) / "edgeloop")
        kept = {
            name: value if ORDER_VARIABLE not in value else _without_order(value)
            for name, value in environ.items()
            if name != ORDER_VARIABLE and not name.startswith(_OTHERS)
        }
        node = environ.get("EDGELOOP_NODE") or socket.gethostname()
        rank = environ.get("NODE_RANK") or environ.get("RANK") or "0"
        number = int(rank) if rank.isdecimal() else 0
        return cls(cache.absolute(), environ.get("EDGELOOP_PYTHON") or None, node, kept, number)


def _without_order(value: str) -> str:
    """Ray repeats a job's variables in one of its own (RAY_JOB_CONFIG_JSON_ENV_VAR), as JSON."""
    try:
        config = json.loads(value)
        del config["runtime_env"]["env_vars"][ORDER_VARIABLE]
    except (ValueError, TypeError, KeyError):
        return ""
    return json.dumps(config)


def _home() -> Path:
    """A container may run as a user whom nobody knows."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir())


def handover(environ: Mapping[str, str] = os.environ) -> Handover:
    return Handover.from_variables(environ)
