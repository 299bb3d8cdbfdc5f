"""fleet manifest: a fleet on Kubernetes, as YAML."""

from __future__ import annotations

from pathlib import Path

import click

from edgeloop.cli.context import ExistingPath, common_options, load_settings


@click.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]…")
@click.option(
    "--values",
    "file",
    type=ExistingPath(dir_okay=False),
    metavar="FILE",
    help="Values for the Helm chart, which win over the settings.",
)
@click.option("--name", default="edgeloop", show_default=True, help="What all names begin with.")
@click.option("--namespace", "-n", default="edgeloop", show_default=True, help="The namespace.")
@common_options
def manifest(
    overrides: tuple[str, ...],
    file: Path | None,
    name: str,
    namespace: str,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Print a fleet on Kubernetes as YAML.

    The objects are those of the Helm chart in deploy/chart: runners that KEDA scales by waiting
    work, and the portal that it asks. Values come from fleet.kubernetes in edgeloop.yaml, from
    --values, and from overrides such as runner.maxReplicas=50. Secrets are named, never printed.

    Example: edgeloop fleet manifest image.repository=registry.example/edgeloop > fleet.yaml
    """
    import json

    from edgeloop.fleet import fleet_manifest, manifest_text

    settings = load_settings(store=store, experiment=experiment)
    objects = fleet_manifest(settings, overrides, file, name=name, namespace=namespace)
    if as_json:
        items = {"apiVersion": "v1", "kind": "List", "items": objects}
        click.echo(json.dumps(items, indent=2))
    else:
        click.echo(manifest_text(objects), nl=False)
