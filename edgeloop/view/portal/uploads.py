"""A model file that a browser uploads: written to a temporary file as it comes, then checked and
stored as `edgeloop upload` does it.

Who sends it was checked by the head of the request, and its length is announced and limited:
see `auth`. The temporary folder is removed however the upload ends.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import HTTPException
from fastapi.requests import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from edgeloop.errors import BadInput, EdgeloopError
from edgeloop.models.catalog import Uploaded
from edgeloop.models.columns import check_model_name
from edgeloop.models.files import check_file_name

if TYPE_CHECKING:
    from edgeloop.view.portal.state import Portal

SILENT_S = 60.0  # without a byte
WHOLE_S = 3_600.0
ROOM_LEFT = 256 << 20  # bytes that stay free on the disk
_FULL = "The disk of the portal's machine is full: use edgeloop upload on another one."


async def upload(
    portal: Portal, experiment: str | None, request: Request, file: str, name: str | None
) -> Uploaded:
    check_file_name(file)
    if not file.lower().endswith(".onnx"):
        raise BadInput(reason=f"only ONNX files can be uploaded here, and {file!r} is none")
    if name is not None:
        check_model_name(name)
    workspace = await run_in_threadpool(portal.workspace_of, experiment)
    if not portal.uploading.acquire(blocking=False):
        raise HTTPException(503, "Several uploads are running: try again when one has ended.")
    try:
        with tempfile.TemporaryDirectory(prefix="edgeloop-upload-") as folder:
            path = Path(folder) / file
            await _receive(request, path)

            def store() -> Uploaded:
                with portal.checking:  # one at a time: a check holds the whole model in memory
                    return workspace.catalog.upload(path, name)

            try:
                uploaded = await run_in_threadpool(store)
            except EdgeloopError as error:
                sentence = str(error)
                if folder not in sentence:
                    raise
                raise BadInput(reason=sentence.replace(f"{folder}/", "")) from None
    finally:
        portal.uploading.release()
    portal.feed(experiment).look_now()
    return uploaded


async def _receive(request: Request, path: Path) -> None:
    announced, received = int(request.headers["content-length"]), 0
    if shutil.disk_usage(path.parent).free < announced + ROOM_LEFT:
        raise HTTPException(507, _FULL)
    loop = asyncio.get_running_loop()
    latest = loop.time() + WHOLE_S
    try:
        with path.open("xb") as target:
            async with asyncio.timeout(SILENT_S) as limit:
                async for chunk in request.stream():
                    received += len(chunk)
                    if received > announced:
                        break
                    await run_in_threadpool(target.write, chunk)
                    limit.reschedule(min(latest, loop.time() + SILENT_S))
    except TimeoutError:
        raise HTTPException(408, "The file did not arrive in time.") from None
    except OSError:
        raise HTTPException(507, _FULL) from None
    except ClientDisconnect:
        raise HTTPException(400, "The upload was cut off.") from None
    if received != announced:
        raise HTTPException(400, "The file is not as long as was announced.")
