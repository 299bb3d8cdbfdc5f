"""The explored tables keep the promises of real ones."""

from __future__ import annotations

import pytest

from edgeloop.store import Table
from edgeloop.testing.contracts.table import TableContract
from tests.protocol.tables import AskingTable, Sheet, direct


class TestAskingTables(TableContract):
    @pytest.fixture(params=[True, False], ids=["atomic", "one by one"])
    def table(self, request: pytest.FixtureRequest) -> Table:
        return AskingTable("models", direct({"models": Sheet()}), request.param)
