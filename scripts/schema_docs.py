"""Writes docs/reference/{settings,job,search,computes}.md from the models of those files, and the
table of columns in docs/reference/rows.md from their registry.

    python scripts/schema_docs.py

tests/test_docs.py fails if a key changes and this page does not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgeloop._util.schema import schema_node
from edgeloop.cli.schema import file_schema
from edgeloop.models.columns import COLUMNS

FOLDER = Path(__file__).parents[1] / "docs/reference"
MADE = "Made by `scripts/schema_docs.py` from the models that check the file: change it there."
EDITOR = (
    "An unknown key is an error with a suggestion. `edgeloop schema {name}` prints the JSON Schema "
    "for your editor."
)
COLUMNS_BEGIN = "<!-- columns: made by scripts/schema_docs.py from edgeloop/models/columns.py -->"
COLUMNS_END = "<!-- end of columns -->"
FORMS = {
    "string": "text",
    "number": "number",
    "integer": "whole number",
    "boolean": "true or false",
}

SETTINGS = """\
# edgeloop.yaml

{made}

The settings of a project, beside `.edgeloop/`. {editor} `${{NAME}}` stands for an environment
variable, so that no secret has to be written down: as a whole value, as a password or key in an
address, or in a header, and in no other part of an address or path; null stands for the default.
Options of the command line win over the environment, and that wins over the file. Files of other
users than you and root are refused, unless `EDGELOOP_TRUST` names their folder.
"""
JOB = """\
# A job file

{made}

`edgeloop run job.yaml KEY=VALUE…` submits it; see [jobs](../how-to/jobs.md). {editor} Give exactly
one of `script` and `command`. Paths start from the folder of the file. Overrides name a key with
dots (`resources.gpus=2`) or a param (`lr=1e-3`). A key that is empty counts as not given.
"""
SEARCH = """\
# A search file

{made}

`edgeloop search search.yaml KEY=VALUE…` runs it; see [search](../how-to/search.md). {editor}
Overrides name a key with dots: `search.budget=50`.
"""
COMPUTES = """\
# Computes

{made}

A compute is an entry under `computes` in [edgeloop.yaml](settings.md), with its `kind`. {editor}
`local` is always there.
"""


def pages() -> dict[str, str]:
    """Every page by its name."""
    computes = [COMPUTES.format(made=MADE, editor=EDITOR.format(name="compute KIND"))]
    for kind in ("local", "ray", "azureml"):
        computes.append(f"## `kind: {kind}`\n")
        computes += _tables(file_schema("compute", kind), (), skip=("kind", "project", "azure"))
    introductions = {"settings": SETTINGS, "job": JOB, "search": SEARCH}
    return {
        **{
            name: "\n".join(
                [
                    text.format(made=MADE, editor=EDITOR.format(name=name)),
                    *_tables(file_schema(name), ()),
                ]
            )
            for name, text in introductions.items()
        },
        "computes": "\n".join(computes),
        "rows": _with_columns((FOLDER / "rows.md").read_text(encoding="utf-8")),
    }


def _with_columns(page: str) -> str:
    """The page with a fresh table of columns between its two marks."""
    before, rest = page.split(COLUMNS_BEGIN)
    _, after = rest.split(COLUMNS_END)
    lines = ["| column | meaning | shown as | stage |", "|---|---|---|---|"]
    for column in COLUMNS.values():
        shown = f"`{column.shown}`" if column.shown else ""
        stage = f"`{column.stage}`" if column.stage else ""
        lines.append(f"| `{column.name}` | {column.meaning} | {shown} | {stage} |")
    return "\n".join([before + COLUMNS_BEGIN, *lines, COLUMNS_END + after])


def _tables(
    schema: Mapping[str, Any], path: tuple[str, ...], skip: tuple[str, ...] = ()
) -> Iterator[str]:
    """A table of the keys here, then those of the sections below."""
    properties = schema_node(schema, path).get("properties", {})
    rows, below = [], []
    for name, written in properties.items():
        if not path and name in skip:
            continue
        node = schema_node(schema, (*path, name))
        rows.append(_row(name, written, node, schema_node(schema, path)))
        if node.get("properties") and "kind" not in node["properties"]:
            below.append(name)
    yield "| key | value | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    for name in below:
        yield f"## `{'.'.join((*path, name))}`\n"
        yield from _tables(schema, (*path, name))


def _row(
    name: str, written: Mapping[str, Any], node: Mapping[str, Any], above: Mapping[str, Any]
) -> str:
    default = written.get("default")
    if name in above.get("required", ()):
        shown = "required"
    elif default is None or default in ("", [], {}):
        shown = ""
    else:
        if isinstance(default, float) and default.is_integer():
            default = int(default)
        text = default if isinstance(default, str) else json.dumps(default)
        shown = f"`{text}`"
    meaning = written.get("description", node.get("description", ""))
    return f"| `{name}` | {_form(written, node)} | {shown} | {meaning} |"


def _form(written: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if "examples" in node:
        return " or ".join(f"`{example}`" for example in node["examples"]) + ", …"
    forms = [*written.get("anyOf", ()), node]
    kinds = [kind for form in forms for kind in _kinds(form)]
    return " or ".join(dict.fromkeys(kinds)) or "any"


def _kinds(form: Mapping[str, Any]) -> list[str]:
    kind = form.get("type")
    if isinstance(kind, list) and {"minimum", "exclusiveMinimum"} & form.keys():
        return [FORMS[kind[0]]]
    if isinstance(kind, list):
        named = [FORMS.get(name, name).replace("array", "list") for name in kind]
        return ["text"] if "string" in kind and "number" in kind else named
    if kind == "object" or "$ref" in form:
        return ["keys below" if form.get("properties") or "$ref" in form else "mapping"]
    return {"array": ["list"], "null": [], None: []}.get(kind, [FORMS.get(str(kind), "")])


def main() -> None:
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")
        sys.stdout.write(f"{FOLDER / name}.md written\n")


if __name__ == "__main__":
    main()
