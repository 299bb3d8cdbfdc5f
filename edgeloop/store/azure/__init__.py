"""State in an Azure storage account: tables, files, and access to them for jobs."""

from __future__ import annotations

from edgeloop.store.azure.table import AzureStore, AzureTable, experiment_name, table_name

__all__ = ["AzureStore", "AzureTable", "experiment_name", "table_name"]
