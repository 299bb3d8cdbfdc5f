"""Images of a model's examples, drawn by the portal from files that it has checked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from edgeloop.portal import views
from edgeloop.portal.api.strict import Whole
from edgeloop.portal.state import Portal

MOST_IMAGES = 16
PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}}
Column = Literal["input", "label", "float", "quantized", "difference"]


def add_examples(routes: APIRouter, portal: Portal) -> None:
    @routes.get(
        "/models/{name}/examples/{number}/{column}.png", response_class=Response, responses=PNG
    )
    def example(
        name: Annotated[str, Path(max_length=400)],
        number: Annotated[Whole, Path(ge=1, le=MOST_IMAGES)],
        column: Column,
        experiment: Annotated[str | None, Query(max_length=60)] = None,
        version: Annotated[str, Query(max_length=40)] = "",
    ) -> Response:
        """A test image (`input`), its label, what a model makes of it, or where float and quantized
        differ. `GET models/NAME` has the addresses; those with a `version` never change."""
        content, current = views.example_image(portal, experiment, name, number, column)
        kept = "private, max-age=31536000, immutable" if version == current else "no-store"
        return Response(content, 200, {"cache-control": kept}, "image/png")
