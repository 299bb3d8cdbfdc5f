"""Writes deploy/chart/values.yaml and values.schema.json from the model of a fleet on Kubernetes.

    python scripts/chart_files.py

tests/fleet/kubernetes fails when a key was changed and the files were not written again.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from edgeloop.operate.fleet.kubernetes import KubernetesValues

CHART = Path(__file__).parents[1] / "deploy/chart"
WIDTH = 110
TOP = """\
# Made by scripts/chart_files.py from edgeloop/operate/fleet/kubernetes.py: change it there.
# The same keys may stand under `fleet: {kubernetes: …}` in edgeloop.yaml: `edgeloop fleet manifest`
# renders the same objects without Helm.
"""


def files() -> dict[str, str]:
    """Every file by its name."""
    schema = json.dumps(_schema(), indent=2) + "\n"
    values = TOP + "\n" + "\n".join(_values(KubernetesValues(), 0)) + "\n"
    return {"values.yaml": values, "values.schema.json": schema}


def _values(section: BaseModel, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        for line in textwrap.wrap(field.description or "", WIDTH - len(indent)):
            yield f"{indent}# {line}"
        if isinstance(value, BaseModel):
            yield f"{indent}{field.alias}:"
            yield from _values(value, depth + 1)
            yield from [] if depth else [""]
            continue
        plain = section.model_dump(include={name}, by_alias=True, exclude_none=True)
        text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=False, width=1000)
        yield textwrap.indent(text.rstrip(), indent)
        if not depth:
            yield ""


def _schema() -> dict[str, Any]:
    """All keys are required: one is missing only if it was removed with null."""
    schema = KubernetesValues.model_json_schema()
    for name, section in [("", schema), *schema["$defs"].items()]:
        section.pop("title", None)
        for key in section["properties"].values():
            key.pop("title", None)
        if name not in ("ExperimentValues", "DatasetValues"):
            section["required"] = list(section["properties"])
    schema["properties"]["global"] = {"type": "object", "description": "Helm's own."}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_tidied(schema)}


def _tidied(node: Any) -> Any:
    """A name that is not a text is a mistake in Helm: nothing reads it as one."""
    if isinstance(node, Mapping):
        tidied = {key: _tidied(value) for key, value in node.items()}
        return {**tidied, "type": "string"} if node.get("type") == ["string", "number"] else tidied
    return [_tidied(item) for item in node] if isinstance(node, list) else node


def main() -> None:
    for name, text in files().items():
        (CHART / name).write_text(text)


if __name__ == "__main__":
    main()
