"""Native code in a process of its own: a crash costs one call, not the program."""

from edgeloop.isolation.limits import NO_MEMORY, CallLimits, memory_exceeded
from edgeloop.isolation.messages import Array, CallTimeout, ConnectionLost
from edgeloop.isolation.process import DEFAULT_LIMIT_S, NativeProcess, as_file, mapped
from edgeloop.isolation.server import Answer, Work, serve

__all__ = [
    "DEFAULT_LIMIT_S",
    "NO_MEMORY",
    "Answer",
    "Array",
    "CallLimits",
    "CallTimeout",
    "ConnectionLost",
    "NativeProcess",
    "Work",
    "as_file",
    "mapped",
    "memory_exceeded",
    "serve",
]
