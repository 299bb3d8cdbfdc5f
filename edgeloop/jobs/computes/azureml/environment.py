"""The environment that a job's node starts: registered in the workspace once per content.

Name and version follow from what it is made of, so an equal one is found again by whoever needs
it, and one that was changed is another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from edgeloop._util.yaml import NotYaml, parse_yaml
from edgeloop.azure import Connection, EnvironmentWish, find_environment, make_environment
from edgeloop.errors import BadJob
from edgeloop.jobs.computes.azureml.options import DEFAULT_IMAGE, AzureMLOptions
from edgeloop.jobs.computes.base import JobOrder

NAME = "edgeloop-jobs"
_WRAPPER_NEEDS = "obstore>=0.12"
_PYTHON = "python=3.11"


@dataclass(frozen=True)
class Recipe:
    """An image, and what conda adds to it; or a name that is registered already."""

    name: str = ""
    image: str = ""
    conda: str = ""  # JSON, keys in order

    @property
    def version(self) -> str:
        return hashlib.sha256(f"{self.image}\0{self.conda}".encode()).hexdigest()[:16]


def recipe_for(order: JobOrder, options: AzureMLOptions) -> Recipe:
    """What the job itself asks for wins over the compute's usual."""
    kind = order.environment.kind
    if kind == "image":
        return Recipe(image=order.environment.file)
    if kind == "conda":
        return Recipe(image=options.image or DEFAULT_IMAGE, conda=_completed(order.recipe))
    return usual_recipe(options)


def usual_recipe(options: AzureMLOptions) -> Recipe:
    """For jobs that ask for none."""
    if options.environment:
        return Recipe(name=options.environment)
    if options.conda is not None:
        text = options.conda.read_text("utf-8")
        return Recipe(image=options.image or DEFAULT_IMAGE, conda=_completed(text))
    if options.image and not options.packages:
        return Recipe(image=options.image)
    own = {"dependencies": [_PYTHON, "pip", {"pip": list(options.packages)}]}
    return Recipe(image=options.image or DEFAULT_IMAGE, conda=_completed(json.dumps(own)))


def ensure_environment(connection: Connection, recipe: Recipe) -> str:
    """As a job names it. Nothing is written where it is registered already."""
    if recipe.name:
        has_version = ":" in recipe.name.removeprefix("azureml:") or "@" in recipe.name
        return recipe.name if has_version else f"{recipe.name}@latest"
    wish = wish_of(recipe)
    if find_environment(connection, wish) is None:
        make_environment(connection, wish)
    return f"azureml:{wish}"


def wish_of(recipe: Recipe) -> EnvironmentWish:
    """As `azure setup` and `azure doctor` take it."""
    if not recipe.name:
        return EnvironmentWish(NAME, recipe.version, image=recipe.image, conda=recipe.conda)
    name, at, label = recipe.name.removeprefix("azureml:").partition("@")
    name, _, version = name.partition(":")
    return EnvironmentWish(name, version, label=label if at else "" if version else "latest")


def _completed(text: str) -> str:
    """A conda file with what the wrapper needs, in one form for all ways of writing it."""
    try:
        document = parse_yaml(text).value
    except NotYaml:
        document = None
    if not isinstance(document, Mapping) or not isinstance(document.get("dependencies"), list):
        reason = "is no conda file: it needs a list of 'dependencies'"
        raise BadJob(where="environment", reason=reason)
    plain = [item for item in document["dependencies"] if isinstance(item, str)]
    pips = [item["pip"] for item in document["dependencies"] if isinstance(item, Mapping)]
    packages = [str(name) for group in pips for name in group or ()]
    if not any(name.split("=")[0].strip() == "python" for name in plain):
        plain.append(_PYTHON)
    if "pip" not in plain:
        plain.append("pip")
    if not any(name.startswith("obstore") for name in (*plain, *packages)):
        packages.append(_WRAPPER_NEEDS)
    kept = {key: value for key, value in document.items() if key not in ("name", "prefix")}
    return json.dumps({**kept, "dependencies": [*plain, {"pip": packages}]}, sort_keys=True)
