"""Shows where docs differ from what commands print: `python -m tests.documented PAGE…`.

With `--write`, output that differs is replaced by what was printed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.documented.page import ROOT, Shown, blocks_of
from tests.documented.running import Project, difference


def show(page: Path, is_written: bool) -> None:
    with tempfile.TemporaryDirectory() as home:
        project = Project(Path(home))
        replaced: list[tuple[Shown, list[str]]] = []
        for block in blocks_of(page):
            if block.machines:
                continue  # only tests start machines
            for line in block.setup:
                project.prepare(line)
            for command in block.commands:
                if command.not_run or command.as_in:
                    continue
                code, printed = project.run(command.bare, command.ctrl_c_after)
                found = difference(command, code, printed)
                if found:
                    print(found, end="\n\n")
                    replaced.append((command, printed))
        if is_written:
            write(page, replaced)


def write(page: Path, replaced: list[tuple[Shown, list[str]]]) -> None:
    lines = page.read_text().split("\n")
    for command, printed in reversed(replaced):
        lines[command.line : command.line + len(command.output)] = printed
    page.write_text("\n".join(lines))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name != "--write":
            show(ROOT / name, "--write" in sys.argv)
