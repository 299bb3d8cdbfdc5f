"""`edgeloop schema`: JSON Schema of the files people write, for editors."""

from __future__ import annotations

import json
from typing import Any

import click

from edgeloop.errors import BadInput

FILES = ("settings", "job", "search", "compute")


@click.command(epilog="Example: edgeloop schema job > job.schema.json")
@click.argument("what", type=click.Choice(FILES), default="settings")
@click.argument("kind", required=False)
@click.option("--json", "_", is_flag=True, help="The same: a schema is JSON.")
def schema(what: str, kind: str | None, _: bool) -> None:
    """Print the JSON Schema of a file, for editors.

    `settings` is edgeloop.yaml, `job` and `search` are the files of those commands, and `compute
    KIND` is one entry under `computes`. An editor with a YAML language server completes and checks
    a file that begins with `# yaml-language-server: $schema=job.schema.json`.
    """
    if (what == "compute") != bool(kind):
        raise BadInput(reason="name the kind of compute: edgeloop schema compute ray")
    click.echo(json.dumps(file_schema(what, kind or ""), indent=2, ensure_ascii=False))


def file_schema(what: str, kind: str = "") -> dict[str, Any]:
    """What `edgeloop schema` prints."""
    document = _schemas(what, kind)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}


def _schemas(what: str, kind: str) -> dict[str, Any]:
    from edgeloop._util.schema import model_schema
    from edgeloop.jobs.computes import compute_options
    from edgeloop.jobs.spec import job_file

    if what == "job":
        return model_schema(job_file())
    if what == "search":
        from edgeloop.search.config import SearchFile

        return model_schema(SearchFile)
    if what == "compute":
        return _of_kind(kind, compute_options(kind))
    return _settings()


def _of_kind(kind: str, model: Any) -> dict[str, Any]:
    from edgeloop._util.schema import model_schema

    written = model_schema(model)
    named = {**written["properties"]["kind"], "const": kind}
    required = sorted(
        {*written.get("required", ()), "kind"} - ({"kind"} if kind == "local" else set())
    )
    return {**written, "properties": {**written["properties"], "kind": named}, "required": required}


def _settings() -> dict[str, Any]:
    """The settings, with those parts that rooms above them know: computes, workspace, fleet."""
    from edgeloop._util.schema import model_schema
    from edgeloop.jobs.computes import compute_kinds, compute_options
    from edgeloop.jobs.computes.azureml.workspace import AzureKeys
    from edgeloop.operate.fleet.records import FleetSpec
    from edgeloop.settings import settings_model

    document = dict(model_schema(settings_model()))
    properties = dict(document["properties"])
    options = {kind: compute_options(kind) for kind in compute_kinds()}
    kinds = [_of_kind(kind, model) for kind, model in options.items() if model]
    sections = {"azure": model_schema(AzureKeys), "fleet": model_schema(FleetSpec)}
    for name, section in sections.items():
        properties[name] = {**section, "description": properties[name]["description"]}
    properties["computes"] = {
        "type": "object",
        "description": properties["computes"]["description"],
        "additionalProperties": {"anyOf": kinds},
    }
    definitions: dict[str, Any] = {}
    for part in (document, *sections.values(), *kinds):
        definitions |= part.pop("$defs", {})
    beside = {"type": "object", "required": ["kind"]}
    return {
        **document,
        "properties": properties,
        "additionalProperties": beside,  # one compute of a kind needs no heading
        **({"$defs": definitions} if definitions else {}),
    }


COMMANDS = (schema,)
