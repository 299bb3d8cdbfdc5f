"""How a tool's program hands its work to a server: its words, and the streams it would write to."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """One run of a tool, as `client.py` asks for it."""

    tool: str
    version: str
    folder: Path
    dsp_folders: str
    temporary: str
    arguments: list[str]
    output: int
    errors: int


def receive_call(connection: socket.socket) -> Call | None:
    """None: whoever called only wanted the server awake."""
    head, streams, _, _ = socket.recv_fds(connection, 4, 2)
    if len(head) < 4 or len(streams) < 2:
        return None
    content, size = b"", int.from_bytes(head, "big")
    while len(content) < size:
        chunk = connection.recv(size - len(content))
        if not chunk:
            raise ConnectionError("the caller left in the middle of its request")
        content += chunk
    words = content.decode(errors="surrogateescape").split("\0")
    tool, version, folder, dsp_folders, temporary, *arguments = words
    return Call(
        tool=tool,
        version=version,
        folder=Path(folder),
        dsp_folders=dsp_folders,
        temporary=temporary,
        arguments=arguments,
        output=streams[0],
        errors=streams[1],
    )
