"""What README and docs print is what the commands print, but for times and measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documented.page import Block, blocks_of, name_of, pages
from tests.documented.running import Project, difference

pytestmark = pytest.mark.slow


def is_run(block: Block) -> bool:
    return any(not (shown.not_run or shown.as_in) for shown in block.commands)


RUN = [page for page in pages() if any(is_run(block) for block in blocks_of(page))]


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path):
    project = Project(tmp_path)
    for block in filter(is_run, blocks_of(page)):
        for line in block.setup:
            project.prepare(line)
        for shown in block.commands:
            if not (shown.not_run or shown.as_in):
                found = difference(shown, *project.run(shown.bare, shown.ctrl_c_after))
                assert not found, f"{name_of(page)}, {found}"
