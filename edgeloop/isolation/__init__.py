"""Native code in a process of its own: a crash costs one call, not the program."""

from edgeloop.isolation.messages import Array, CallTimeout, ConnectionLost
from edgeloop.isolation.process import DEFAULT_LIMIT_S, NativeProcess, as_file, mapped
from edgeloop.isolation.server import Answer, Work, serve

__all__ = [
    "DEFAULT_LIMIT_S",
    "Answer",
    "Array",
    "CallTimeout",
    "ConnectionLost",
    "NativeProcess",
    "Work",
    "as_file",
    "mapped",
    "serve",
]
