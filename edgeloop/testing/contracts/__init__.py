"""What every implementation of a seam must do, as test suites that yours can run too.

A suite is a plain pytest class. Subclass it in your tests and provide the fixtures that its
docstring names; the tests come with it:

    from edgeloop.testing.contracts.table import TableContract

    class TestMyTable(TableContract):
        @pytest.fixture
        def table(self, tmp_path):
            return MyStore(tmp_path).models("contract")

The suites are `table.TableContract`, `table.StoreContract`, `blobs.BlobsContract`,
`compute.ComputeContract`, `platform.ToolchainContract`, `platform.DeviceContract`,
`task.TaskContract` and `evaluator.EvaluatorContract`.
"""

import pytest

# Before the suites are imported: their failed assertions then show what was compared.
pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("table", "blobs", "compute", "platform", "task")),
    f"{__name__}.evaluator",
)
