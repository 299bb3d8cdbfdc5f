"""For tests of your own code: a store in memory, tiny models, and the contract suites of the seams.

    store = MemoryStore()
    workspace = Workspace(Settings.load(), store)

`edgeloop.testing.models` saves tiny ONNX models; `edgeloop.testing.contracts` needs pytest.

May import the rooms that have a seam (`store`, `platforms`, `tasks`, `jobs`, `search`) and what is
below them. Start reading in `memory.py`, then in the contract suite of the seam you implement.
"""

from edgeloop.testing.memory import MemoryStore, MemoryTable, memory_blobs
from edgeloop.testing.waiting import wait_until

__all__ = ["MemoryStore", "MemoryTable", "memory_blobs", "wait_until"]
