"""The process for native work: `python -m edgeloop.toolchains.worker FOLDER`."""

from __future__ import annotations

from edgeloop.toolchains.native import NativeWork
from edgeloop.toolchains.serving import serve

if __name__ == "__main__":
    serve(lambda: NativeWork().table())
