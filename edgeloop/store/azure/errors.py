"""Our errors out of Azure's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from edgeloop.errors import (
    EdgeloopError,
    RowChanged,
    RowExists,
    RowTooLarge,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)


class NoTable(RowChanged):
    """The row {key!r} is gone, and its table with it."""


@contextlib.contextmanager
def our_errors(store: str, key: str = "") -> Iterator[None]:
    from azure.core.exceptions import AzureError

    try:
        yield
    except AzureError as error:
        raise _explain(error, store, key) from None


def _explain(error: Exception, store: str, key: str) -> EdgeloopError:
    from azure.core import exceptions

    status = getattr(error, "status_code", None)
    reason = str(getattr(error, "message", "") or error).partition("\n")[0].rstrip(".")
    if is_table_missing(error):
        return NoTable(key=key)
    if isinstance(error, exceptions.ResourceExistsError):
        return RowExists(key=key)
    if isinstance(error, exceptions.ResourceModifiedError | exceptions.ResourceNotFoundError):
        return RowChanged(key=key)
    if isinstance(error, exceptions.ClientAuthenticationError) or status in (401, 403):
        return StoreRefused(store=store, reason=reason)
    if status == 413 or "TooLarge" in str(error):
        return RowTooLarge(key=key, reason=reason)
    if status is None or status in (408, 429) or status >= 500:
        return StoreUnavailable(store=store, reason=reason)
    return StoreError(store=store, reason=reason)


def missing() -> type[Exception]:
    from azure.core.exceptions import ResourceNotFoundError

    return ResourceNotFoundError


def is_table_missing(error: Exception) -> bool:
    return "TableNotFound" in str(error)
