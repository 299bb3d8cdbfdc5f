"""Was it the system that killed a process because memory ran out?"""

from __future__ import annotations

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def out_of_memory_kills(proc: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> int:
    """How many processes of this cgroup were killed so; 0 where that is not counted."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return 0
    return sum(_count(file) for line in lines for file in _files(line, root))


def _files(line: str, root: Path) -> list[Path]:
    """In a container the path may be that of the host, while the cgroup itself is at the root."""
    _, controllers, path = line.split(":", 2)
    relative = path.strip("/")
    if controllers == "memory":
        places, name = [root / "memory" / relative, root / "memory"], "memory.oom_control"
    elif controllers == "":
        places, name = [root / relative, root], "memory.events"
    else:
        return []
    return [place / name for place in places if (place / name).is_file()][:1]


def _count(file: Path) -> int:
    try:
        pairs = [line.split() for line in file.read_text().splitlines()]
        return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == "oom_kill")
    except (OSError, ValueError):
        return 0
