"""What every implementation of a seam must do, as test suites that yours can run too.

A suite is a plain pytest class. Subclass it in your tests and provide the fixtures that its
docstring names; the tests come with it:

    from edgeloop.testing.contracts.table import TableContract

    class TestMyTable(TableContract):
        @pytest.fixture
        def table(self, tmp_path):
            return MyStore(tmp_path).models("contract")

The suites are `table.TableContract`, `blobs.BlobsContract` and `store.StoreContract` for a store,
`compute.ComputeContract`, `platform.PlatformContract` (or its halves, `ToolchainContract` and
`DeviceContract`), `task.TaskContract`, and `evaluator.EvaluatorContract`.
"""

import pytest

_SUITES = ("rows", "table", "blobs", "store", "compute", "platform", "task", "evaluator")

# Before the suites are imported: their failed assertions then show what was compared.
pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in _SUITES))
