"""The code on the pages that say how to write a plug-in is the code of the examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(REPOSITORY.glob("docs/how-to/write-a-*.md"))
FENCE = re.compile(r"^```(python|toml|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sources_of(page: str) -> str:
    """All files of the example that a page names, its README too."""
    (name,) = set(re.findall(r"examples/plugins/([\w-]+)", page))
    files = (REPOSITORY / "examples/plugins" / name).rglob("*")
    return "\n".join(file.read_text() for file in sorted(files) if file.suffix in SUFFIXES)


SUFFIXES = (".py", ".toml", ".md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_on_a_page_is_that_of_the_example(page: Path):
    text = page.read_text()
    sources = sources_of(text)
    blocks = [block for _, block in FENCE.findall(text)]
    assert len(blocks) >= 3
    for block in blocks:
        assert block in sources, block


def test_there_is_a_page_for_every_seam_that_plug_ins_fill():
    assert [page.stem for page in PAGES] == [
        f"write-a-{seam}" for seam in ("compute", "platform", "store", "task")
    ]
