"""Writes the tree of docs/architecture.md from the first sentence of each module's docstring.

    python scripts/tree_docs.py

tests/test_docs.py fails when a file was added, moved or described anew and this was forgotten.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- tree: scripts/tree_docs.py -->\n", "<!-- end of tree -->\n"
DATA = {".html", ".jinja", ".json", ".sql", ".txt", ".yaml", ".zip"}
NAME_WIDTH = 26
WIDTH = 140


def rendered(text: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{TARGET.name} lacks the marks of the tree")
    tree = "\n".join(["edgeloop/", *_lines(ROOT / "edgeloop", "  ")])
    return f"{before}{BEGIN}\n```text\n{tree}\n```\n\n{END}{after}"


def _lines(folder: Path, indent: str) -> list[str]:
    """Files first, then folders, each by name; a folder is described by its __init__.py."""
    lines = []
    for path in sorted(folder.iterdir(), key=lambda item: (item.is_dir(), item.name)):
        if path.is_dir() and any(path.rglob("*.py")):
            lines.append(_line(indent, f"{path.name}/", _sentence(path / "__init__.py")))
            lines += _lines(path, f"{indent}  ")
        elif path.suffix == ".py" and path.name != "__init__.py":
            lines.append(_line(indent, path.name, _sentence(path)))
        elif path.suffix in DATA:
            lines.append(f"{indent}{path.name}")
    return lines


def _line(indent: str, name: str, sentence: str) -> str:
    start = f"{indent}{name}".ljust(NAME_WIDTH)
    line = f"{start}  {sentence}".rstrip()
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1].rsplit(' ', 1)[0]} …"


def _sentence(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text())) if file.is_file() else None
    paragraph = " ".join((docstring or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0].rstrip(".")


def main() -> None:
    TARGET.write_text(rendered(TARGET.read_text()), encoding="utf-8")
    sys.stdout.write(f"{TARGET} written\n")


if __name__ == "__main__":
    main()
