"""The README as package indexes show it: they cannot follow its relative links."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>(?!https?:|#)[^)\s]+)\)")


def with_absolute_links(text: str, repository: str) -> str:
    raw = repository.replace("https://github.com/", "https://raw.githubusercontent.com/")

    def absolute(link: re.Match[str]) -> str:
        address = f"{raw}/main" if link["image"] else f"{repository}/blob/main"
        return f"{link['image']}[{link['text']}]({address}/{link['path']})"

    return LINK.sub(absolute, text)


if __name__ == "__main__":
    from setuptools import setup

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=with_absolute_links(readme, project["urls"]["Repository"]),
        long_description_content_type="text/markdown",
    )
