"""The process for native work: `python -m edgeloop.platforms.qnn.worker FOLDER`."""

from __future__ import annotations

from edgeloop.isolation import serve
from edgeloop.platforms.qnn.native import NativeWork

if __name__ == "__main__":
    serve(lambda: NativeWork().table())
