"""What README and docs print is what the commands print, but for times and measurements."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.documented.page import Block, blocks_of, name_of, pages
from tests.documented.running import Project, difference
from tests.documented.scenes import AZURE_SCENES

pytestmark = pytest.mark.slow
FARM = "farm"
"""The scene with machines of their own."""


def is_run(block: Block) -> bool:
    return any(not (shown.not_run or shown.as_in) for shown in block.commands)


RUN = {name_of(page): page for page in pages() if any(map(is_run, blocks_of(page)))}
LONG = {
    "docs/index.md",
    "docs/farm.md",
    "docs/tutorials/evaluate.md",
    "docs/tutorials/train.md",
    "docs/how-to/ci.md",
    "docs/how-to/evaluators.md",
    "docs/how-to/layers-and-advice.md",
    "docs/how-to/migrate-from-ai-hub.md",
    "docs/how-to/migrate-from-aml-submit.md",
    "docs/how-to/migrate-from-data-blobs.md",
    "docs/how-to/which-chip.md",
}
"""Pages that train, report on many models, compile for several chips, or use Azure ML or several
machines. What their commands do is tested elsewhere too, and that they exist is tested for every
page in test_commands.py."""


def test_the_long_pages_are_pages_that_are_run():
    assert set(RUN) > LONG


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.soak if name in LONG else (), id=name)
        for name, page in RUN.items()
    ],
)
def test_a_page_shows_what_its_commands_print(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
):
    blocks = [block for block in blocks_of(page) if is_run(block)]
    scenes = {line.removeprefix("scene ") for block in blocks for line in block.setup}
    cloud = request.getfixturevalue("azureml") if scenes & AZURE_SCENES.keys() else None
    project = Project(tmp_path, cloud)
    with ExitStack() as cleaning:
        if FARM in scenes:
            from tests.documented import farm  # it starts servers

            farm.set_up_machines(project, request, cleaning)
        for block in blocks:
            for line in block.setup:
                if line != f"scene {FARM}":
                    project.prepare(line)
            for shown in block.commands:
                if shown.not_run or shown.as_in:
                    continue
                for machine in [project.machines[name] for name in block.machines] or [project]:
                    found = difference(shown, *machine.run(shown.bare, shown.ctrl_c_after))
                    assert not found, f"{name_of(page)}, {found}"
