"""A model's files by the API: their list, and each as it is, a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse

from edgeloop.errors import NotFound
from edgeloop.portal.state import Portal
from edgeloop.portal.views import index as views
from edgeloop.portal.views.shapes import FileView
from edgeloop.store import Blobs

CHUNK = 4 << 20

Which = Annotated[str | None, Query(alias="experiment", max_length=60)]
Name = Annotated[str, Path(max_length=400)]


def add_files(routes: APIRouter, portal: Portal) -> None:
    @routes.get("/models/{name}/files")
    def files(name: Name, experiment: Which = None) -> list[FileView]:
        return list(views.files_view(portal, experiment, name))

    @routes.get(
        "/models/{name}/files/{file:path}",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    def download(name: Name, file: Name, experiment: Which = None) -> StreamingResponse:
        """One file, as it is. Only names that the list has are looked up."""
        workspace = portal.workspace_of(experiment)
        found = {item.name: item for item in workspace.catalog.files(name)}
        if file not in found:
            raise NotFound(reason=f"{name} has no file {file!r}.")
        info, blobs = found[file], workspace.store.blobs
        first = blobs.read_range(info.key, 0, CHUNK)
        short = file.rpartition("/")[2]
        headers = {
            "content-disposition": f"attachment; filename*=UTF-8''{quote(short, safe='')}",
            "content-length": str(info.size),
            "content-security-policy": "default-src 'none'; sandbox",
        }
        chunks = _chunks(blobs, info.key, info.size, first)
        return StreamingResponse(chunks, 200, headers, "application/octet-stream")


def _chunks(blobs: Blobs, key: str, size: int, first: bytes) -> Iterator[bytes]:
    yield first
    at = len(first)
    while at < size:
        content = blobs.read_range(key, at, min(CHUNK, size - at))
        if not content:
            return
        at += len(content)
        yield content
