"""For tests of your own code: a store in memory, tiny models, and the contract suites of the seams.

    store = MemoryStore()
    workspace = Workspace(Settings.load(), store)

`edgeloop.testing.models` saves tiny ONNX models; `edgeloop.testing.contracts` needs pytest.
"""

from edgeloop.testing.memory import MemoryStore, MemoryTable, memory_blobs
from edgeloop.testing.waiting import wait_until

__all__ = ["MemoryStore", "MemoryTable", "memory_blobs", "wait_until"]
