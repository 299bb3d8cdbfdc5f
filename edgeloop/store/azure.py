"""State in an Azure storage account: tables, files, and access to them for jobs."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, cast

from edgeloop._util.retry import PATIENCE_S, asked_pause, limit_of
from edgeloop.errors import (
    BadName,
    EdgeloopError,
    MissingExtra,
    RowChanged,
    RowExists,
    RowTooLarge,
    StoreError,
    StoreLimited,
    StoreRefused,
    StoreUnavailable,
)
from edgeloop.node.identity import identity_client
from edgeloop.store.base import (
    NEXT_DUE,
    RUNNERS,
    Access,
    Changes,
    Condition,
    Drift,
    Place,
    Record,
    Store,
    Table,
    UnreadableRow,
    Value,
    Values,
    after_prefix,
    check_values,
    checked_record,
    merged,
    plain_version,
    projected,
)
from edgeloop.store.files import ObjectBlobs, network_limits
from edgeloop.store.location import AzureLocation

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.core.exceptions import HttpResponseError
    from azure.core.pipeline.transport import RequestsTransport
    from azure.data.tables import TableClient, TableServiceClient


# State in an Azure storage account, laid out as Microsoft Archai's face-segmentation tools do it.
#
# Models: a table named after the experiment, partition `main`, the model's name as row key; files
# in the container `models`. Our queue has a table of its own, so that a tool that lists the models'
# table meets models only.


MODELS_PARTITION = "main"
QUEUE_TABLE = "edgeloopqueue"
USAGE_TABLE = "usage"
INSERT_BATCH = 100
TEXT_LIMIT = 32_000  # characters, as UTF-16 counts them; the service's limit is 64 KB
PART_BYTES = 64_000
ROW_BYTES = 1_000_000
_PART = "__part"
_HIDDEN = ("PartitionKey", "RowKey", "Timestamp")
_CODE = r"(?:x5A)*x(?:2D|5F)"
_FIRST_CODE = r"(?:x5A)*x3[0-9]"
_NEEDS_ESCAPE = re.compile(rf"[^A-Za-z0-9]|^[0-9]|Z(?={_CODE})|^Z(?={_FIRST_CODE})")
_ESCAPE = re.compile(rf"Zx(?:2D|5F)|^Zx3[0-9]|Zx5A(?={_CODE})|^Zx5A(?={_FIRST_CODE})")


class AzureStore(Store):
    def __init__(self, location: AzureLocation, credential: TokenCredential | None = None) -> None:
        """With neither key nor signature in the location, `credential` or the default identity."""
        self._location = location
        if location.key is None and location.sas is None and credential is None:
            credential = default_identity()
        self._service = _table_service(location, credential)
        self.blobs = azure_blobs(location, credential)

    @property
    def description(self) -> str:
        return str(self._location)

    def models(self, experiment: str) -> Table:
        name = table_name(experiment)
        return self._table(name, MODELS_PARTITION, lambda: self._has_spelling(experiment))

    def _has_spelling(self, experiment: str) -> bool:
        """Whether there is a table of that name. Raises BadName if there is one in another case:
        the service takes them for the same, but files are in folders, whose case counts."""
        exact = table_name(experiment)
        try:
            with our_errors(self.description):
                names = [table.name for table in self._service.list_tables()]
        except StoreRefused:  # a signature for one table may not list others
            return True
        other = next((name for name in names if name.lower() == exact.lower()), "")
        if other in ("", exact):
            return bool(other)
        existing = experiment_name(other)
        reason = f"this store has {existing!r}, and Azure takes both for one: use {existing}"
        raise BadName(what="experiment", name=experiment, reason=reason)

    def queue(self, experiment: str) -> Table:
        return self._table(QUEUE_TABLE, experiment)

    def usage(self) -> Table:
        return self._table(USAGE_TABLE, MODELS_PARTITION)

    def now(self) -> float:
        """The service dates every answer, to the second."""
        dates: list[str] = []

        def note(response: Any) -> None:
            dates.append(response.http_response.headers.get("Date", ""))

        table = self._service.get_table_client(QUEUE_TABLE)
        with our_errors(self.description), contextlib.suppress(missing()):
            table.get_entity(RUNNERS, "now", raw_response_hook=note)
        return parsedate_to_datetime(dates[-1]).timestamp() if dates else super().now()

    def experiments(self) -> list[str]:
        with our_errors(self.description):
            names = [table.name for table in self._service.list_tables()]
        ours = {QUEUE_TABLE, USAGE_TABLE}
        return sorted(experiment_name(name) for name in names if name not in ours)

    def close(self) -> None:
        self._service.close()

    def _table(
        self, name: str, partition: str, is_there: Callable[[], bool] = lambda: True
    ) -> Table:
        client = self._service.get_table_client(name)
        return AzureTable(client, partition, self.description, is_there)


class AzureTable(Table):
    """`is_there` is asked before the first request, and again until it says so; it may raise."""

    def __init__(
        self,
        client: TableClient,
        partition: str,
        description: str,
        is_there: Callable[[], bool] = lambda: True,
    ) -> None:
        self._checked_client = client
        self._partition = partition
        self._description = description
        self._is_there = is_there
        self._is_known = False
        self._place = Place(description, f"{client.table_name}/{partition}")

    @property
    def _client(self) -> TableClient:
        self._is_known = self._is_known or self._is_there()
        return self._checked_client

    def get(self, key: str) -> Record | None:
        with self._our_errors(key):
            entity = self._entity(key)
        return None if entity is None else self._place.required(entity, _record)

    def insert(self, key: str, values: Values) -> Record:
        record_values = merged(values, {})
        entity = self._addressed(key, _packed(key, record_values))
        with self._our_errors(key):
            answer = self._creating_table(lambda: self._client.create_entity(entity))
            return Record(key, record_values, _version(answer))

    def insert_many(self, rows: Iterable[tuple[str, Values]]) -> None:
        """Batches are all or nothing; one that meets a row already there goes row by row."""
        pending = iter(rows)
        while batch := list(itertools.islice(pending, INSERT_BATCH)):
            entities = [self._addressed(key, _packed(key, values)) for key, values in batch]
            try:
                with self._our_errors(batch[0][0]):
                    self._client.submit_transaction([("create", entity) for entity in entities])
            except (RowExists, StoreError, NoTable):
                super().insert_many(batch)

    def update(self, record: Record, changes: Changes) -> Record:
        """Columns that go, or whose text was in parts, need the whole entity rewritten."""
        check_values(record.key, changes, record.values)
        after = merged(record.values, changes)
        packed = _columns_of(after)
        if _packed_size(_columns_of(record.values)) <= ROW_BYTES:  # else the service decides
            _check_size(record.key, packed)
        with self._our_errors(record.key):
            if any(_leaves_traces(record.values, name, value) for name, value in changes.items()):
                version = self._replace(record, changes)
            else:
                set_columns = {name for name, value in changes.items() if value is not None}
                merge = {
                    name: v for name, v in packed.items() if name.split(_PART)[0] in set_columns
                }
                version = self._write("merge", record, merge)
        return Record(record.key, after, version)

    def put(self, key: str, values: Values | None) -> None:
        from azure.data.tables import UpdateMode

        with self._our_errors(key):
            if values is None:
                self._client.delete_entity(self._partition, key)
            else:
                entity = self._addressed(key, _packed(key, values))
                replace = UpdateMode.REPLACE
                self._creating_table(lambda: self._client.upsert_entity(entity, mode=replace))

    def delete(self, record: Record) -> None:
        from azure.core import MatchConditions

        with self._our_errors(record.key):
            self._client.delete_entity(
                self._partition,
                record.key,
                etag=record.version,
                match_condition=MatchConditions.IfNotModified,
            )

    def query(
        self,
        prefix: str = "",
        *,
        after: str = "",
        where: Sequence[Condition] = (),
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Record]:
        """The SDK follows continuation tokens, also through empty pages that a filter leaves.

        Of a long text in one of the `columns` only the first part is selected, which tells that
        there are others: such a row is then read whole."""
        parameters = {"partition": self._partition}
        clauses = ["PartitionKey eq @partition"]
        if after:
            parameters["after"] = after
            clauses.append("RowKey gt @after")
        if prefix:
            parameters |= {"first": prefix, "end": after_prefix(prefix)}
            clauses += ["RowKey ge @first", "RowKey lt @end"]
        for number, condition in enumerate(where):
            operator = "eq" if condition.operator == "==" else "ne"
            parameters[f"value{number}"] = condition.value
            clauses.append(f"{condition.column} {operator} @value{number}")
        entities = self._client.query_entities(
            " and ".join(clauses),
            parameters=parameters,
            results_per_page=min(limit or 1000, 1000),
            select=None if columns is None else _selected(columns),
        )
        if columns is None:
            yield from itertools.islice(self._readable(entities), limit)
            return
        whole = (
            self._entity(entity["RowKey"]) if any(_PART in name for name in entity) else entity
            for entity in self._guarded(iter(entities))
        )
        records = self._place.readable((entity for entity in whole if entity is not None), _record)
        yield from itertools.islice((projected(record, columns) for record in records), limit)

    def marked(self, prefix: str, column: str) -> Iterator[Record]:
        return self._under(prefix, f"{column} eq true")

    def _due(self, now: float, prefix: str, size: int) -> Iterator[Record]:
        """The service leaves out what is hidden: in a large fleet that is most of the first
        thousands, and the limit of a partition counts entities."""
        after = prefix
        while True:
            is_open = f"not (until gt {float(now)!r})"  # also without that column
            open_hints = self._under(prefix, is_open, after, size)
            page = list(itertools.islice(open_hints, size))
            yield from page
            if len(page) < size:
                return
            after, size = page[-1].key, NEXT_DUE

    def _under(
        self, prefix: str, clause: str, after: str = "", page: int | None = None
    ) -> Iterator[Record]:
        """Rows below a prefix that meet a condition of the service's own."""
        keys = {"after": after or prefix, "end": after_prefix(prefix)}
        text = f"PartitionKey eq @partition and RowKey gt @after and RowKey lt @end and {clause}"
        entities = self._client.query_entities(
            text, parameters={"partition": self._partition, **keys}, results_per_page=page
        )
        return self._readable(entities)

    def prioritized(self, below: float, finished: Sequence[str]) -> Iterator[Record]:
        """The service compares numbers of one type with each other and texts with texts."""
        parameters: dict[str, Any] = {"partition": self._partition}
        clauses = ["PartitionKey eq @partition"]
        for number, status in enumerate(finished):
            parameters[f"status{number}"] = status
            clauses.append(f"status ne @status{number}")
        limit = min(below, float(2**31 - 1))
        numbers = f"priority lt {math.ceil(limit)} or priority lt {limit!r}"
        clauses.append(f"({numbers} or priority gt '')")
        entities = self._client.query_entities(" and ".join(clauses), parameters=parameters)
        yield from self._readable(entities)

    def drift(self, known: Mapping[str, str], mark: str = "") -> Drift:
        def query(
            clause: str, parameters: Mapping[str, Any], select: list[str] | None
        ) -> Iterator[Any]:
            text = f"PartitionKey eq @partition{' and ' if clause else ''}{clause}"
            values = {"partition": self._partition, **parameters}
            pages = self._client.query_entities(text, parameters=values, select=select)
            return self._guarded(iter(pages))

        def readable(entities: Iterable[Any]) -> Iterator[Record]:
            return self._place.readable(entities, _record)

        return drift_of(query, self._get_readable, readable, known, mark)

    def _get_readable(self, key: str) -> Record | None:
        with self._our_errors(key):
            entity = self._entity(key)
        return next(self._place.readable([] if entity is None else [entity], _record), None)

    def _readable(self, entities: Iterable[Any]) -> Iterator[Record]:
        return self._place.readable(self._guarded(iter(entities)), _record)

    def _guarded(self, entities: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        while True:
            try:
                with self._our_errors(""):
                    entity = next(entities, None)
            except NoTable:
                return
            if entity is None:
                return
            yield entity

    def _replace(self, record: Record, changes: Changes) -> str:
        """Starts from the entity as stored, so that columns we do not touch keep their types."""
        stored = self._entity(record.key)
        if stored is None or stored.metadata["etag"] != record.version:
            raise RowChanged(key=record.key)
        names = set(changes)
        untouched = {name: v for name, v in stored.items() if name.split(_PART)[0] not in names}
        after = {name: value for name, value in changes.items() if value is not None}
        return self._write("replace", record, untouched | _columns_of(after))

    def _write(self, mode: str, record: Record, columns: Mapping[str, Any]) -> str:
        from azure.core import MatchConditions
        from azure.data.tables import UpdateMode

        answer = self._client.update_entity(
            self._addressed(record.key, columns),
            mode=UpdateMode(mode),
            etag=record.version,
            match_condition=MatchConditions.IfNotModified,
        )
        return _version(answer)

    def _entity(self, key: str) -> Any | None:
        try:
            return self._client.get_entity(self._partition, key)
        except missing():
            return None

    def _creating_table(self, write: Callable[[], Any]) -> Any:
        """Write; the first writer creates the table."""
        from azure.core.exceptions import ResourceExistsError

        try:
            return write()
        except missing() as error:
            if not is_table_missing(error):
                raise
        with contextlib.suppress(ResourceExistsError):
            self._checked_client.create_table()
        return write()

    def _addressed(self, key: str, columns: Mapping[str, Any]) -> dict[str, Any]:
        return {**columns, "PartitionKey": self._partition, "RowKey": key}

    def _our_errors(self, key: str) -> contextlib.AbstractContextManager[None]:
        return our_errors(self._description, key)


def table_name(experiment: str) -> str:
    """Azure's table names are letters and digits and begin with a letter; what else a name has
    travels as `Zx` and its code, and so does a `Z` that would be read as such."""
    plain = _NEEDS_ESCAPE.sub(lambda match: f"Zx{ord(match[0]):02X}", experiment)
    if not 3 <= len(plain) <= 63 or plain.lower() in (QUEUE_TABLE, USAGE_TABLE, "tables"):
        reason = "Azure's tables are named after experiments, and have no room for this one"
        raise BadName(what="experiment", name=experiment, reason=reason)
    return plain


def experiment_name(table: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[0][2:], 16)), table)


def _table_service(
    location: AzureLocation, credential: TokenCredential | None
) -> TableServiceClient:
    try:
        from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
        from azure.data.tables import TableServiceClient
    except ImportError:
        raise MissingExtra(what="An Azure storage account", extra="azure") from None

    secret: Any = credential
    if location.key is not None:
        secret = AzureNamedKeyCredential(location.account, location.key)
    elif location.sas is not None:
        secret = AzureSasCredential(location.sas)
    return TableServiceClient(
        location.table_endpoint,
        credential=secret,
        transport=limited_transport(location.table_endpoint, str(location)),
        connection_timeout=5,
        read_timeout=20,
        retry_total=3,
        retry_backoff_factor=0.3,
        retry_backoff_max=5,
    )


def _version(answer: Mapping[str, Any]) -> str:
    """An answer whose headers broke off says that a row was written, but not as which version."""
    from azure.core.exceptions import ServiceResponseError

    if not str(answer.get("etag") or "").endswith('"'):
        raise ServiceResponseError("the connection ended in the middle of an answer")
    return str(answer["etag"])


def _record(entity: Any) -> Record:
    key = entity["RowKey"]
    try:
        values = _unpacked(entity)
    except ValueError:
        raise UnreadableRow(key, "a long text in it is not complete") from None
    return checked_record(key, entity.metadata["etag"], values)


def _selected(columns: Sequence[str]) -> list[str]:
    return ["RowKey", *columns, *(f"{name}{_PART}00" for name in columns)]


def _packed(key: str, values: Values) -> dict[str, Any]:
    check_values(key, values)
    columns = _columns_of(values)
    _check_size(key, columns)
    return columns


def _columns_of(values: Values) -> dict[str, Any]:
    """Values as the service takes them: wide integers marked, long texts in parts."""
    from azure.data.tables import EdmType, EntityProperty

    columns: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, str) and _is_long(value):
            data = value.encode()
            for start in range(0, len(data), PART_BYTES):
                part = f"{name}{_PART}{start // PART_BYTES:02d}"
                columns[part] = data[start : start + PART_BYTES]
        elif type(value) is int and abs(value) >= 2**31:
            columns[name] = EntityProperty(value, EdmType.INT64)
        else:
            columns[name] = value
    return columns


def _check_size(key: str, columns: Mapping[str, Any]) -> None:
    size = _packed_size(columns)
    if size > ROW_BYTES:
        raise RowTooLarge(key=key, reason=f"{size:,} bytes; Azure takes {ROW_BYTES:,}")


def _packed_size(columns: Mapping[str, Any]) -> int:
    return sum(map(_stored_size, columns.values()))


def _unpacked(entity: Mapping[str, Any]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    parts: dict[str, list[tuple[str, bytes]]] = {}
    for name, value in entity.items():
        column, mark, number = name.partition(_PART)
        if mark and isinstance(value, bytes):
            parts.setdefault(column, []).append((number, value))
        elif name not in _HIDDEN and value is not None:
            values[name] = _plain(value)
    for column, chunks in parts.items():
        values[column] = b"".join(chunk for _, chunk in sorted(chunks)).decode()
    return values


def _plain(value: Any) -> Value:
    value = getattr(value, "value", value)  # the SDK wraps wide integers
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str | int | float | bool) else str(value)


def _is_long(text: str) -> bool:
    return len(text.encode("utf-16-le")) > 2 * TEXT_LIMIT


def _leaves_traces(values: Values, name: str, new: Value | None) -> bool:
    """Whether a merge would leave a column, or parts of one, behind."""
    old = values.get(name)
    long_now = isinstance(new, str) and _is_long(new)
    return old is not None and (new is None or long_now or (isinstance(old, str) and _is_long(old)))


def _stored_size(value: object) -> int:
    if isinstance(value, bytes):
        return len(value)
    return len(value.encode("utf-16-le")) if isinstance(value, str) else 8


# Files in the container of an Azure storage account, and access to them for jobs.


IDENTITY_SIGNATURE_SECONDS = 7 * 24 * 3600 - 900  # the service's limit, less clocks that differ
CLOCK_MARGIN = timedelta(minutes=15)


def azure_blobs(location: AzureLocation, credential: TokenCredential | None = None) -> ObjectBlobs:
    """With neither key nor signature in the location, `credential` or the default identity."""
    import obstore.store

    options: dict[str, Any] = {}
    if location.key is not None:
        options["account_key"] = location.key
    elif location.sas is not None:
        options["sas_key"] = location.sas.lstrip("?")
    else:
        from obstore.auth.azure import AzureCredentialProvider

        credential = credential or default_identity()
        options["credential_provider"] = AzureCredentialProvider(cast("Any", credential))
    client, retry = network_limits(location.blob_endpoint.startswith("http:"))
    store = obstore.store.AzureStore(
        container_name=location.container,
        account_name=location.account,
        endpoint=location.blob_endpoint,
        client_options=client,
        retry_config=retry,
        **options,
    )
    return ObjectBlobs(
        store=store,
        description=str(location),
        make_container=lambda: _make_container(location, credential),
        make_access=lambda seconds: _access(location, credential, seconds),
        make_link=lambda key, seconds: _link(location, credential, key, seconds),
        ask_pause=lambda: _asked_pause(location, credential),
        delete_if=lambda key, version: _delete_if(location, credential, key, version),
    )


def default_identity() -> TokenCredential:
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        raise MissingExtra(what="An Azure storage account", extra="azure") from None
    return DefaultAzureCredential(managed_identity_client_id=identity_client())


def azure_access(location: AzureLocation, seconds: int, writes: bool) -> Access:
    """Access for a job to a container that may not be the store's: to read it, or to write to it. A
    container that does not exist is not created."""
    try:
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas
    except ImportError:
        raise MissingExtra(what="An Azure storage account", extra="azure") from None
    signature = location.sas
    if signature is None:
        credential = default_identity() if location.key is None else None
        start, ends, secret = _signing(location, credential, seconds)
        reads = not writes
        rights = ContainerSasPermissions(read=reads, list=reads, write=writes, create=writes)
        signature = generate_container_sas(
            location.account,
            location.container,
            permission=rights,
            start=start,
            expiry=ends,
            protocol=_protocol(location),
            **secret,
        )
    place = {"container_name": location.container, "account_name": location.account}
    options = {**place, "endpoint": location.blob_endpoint, "sas_key": signature.lstrip("?")}
    return Access("AzureStore", options)


def _access(location: AzureLocation, credential: TokenCredential | None, seconds: int) -> Access:
    """A signature for the container that ends by itself; the account's key stays here. For no
    seconds, no signature: the address alone, for a machine that has an identity of its own."""
    place = {
        "container_name": location.container,
        "account_name": location.account,
        "endpoint": location.blob_endpoint,
    }
    if seconds == 0:
        return Access("AzureIdentity", place)
    signature = location.sas or _signature(location, credential, seconds)
    return Access("AzureStore", {**place, "sas_key": signature.lstrip("?")})


def _link(
    location: AzureLocation, credential: TokenCredential | None, key: str, seconds: int
) -> str:
    """A signature for this one file, to read it."""
    from urllib.parse import quote

    if location.sas is not None:
        reason = "no links can be made with a signature: they need the account's key or an identity"
        raise StoreRefused(store=str(location), reason=reason)
    try:
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas
    except ImportError:
        raise MissingExtra(what="An Azure storage account", extra="azure") from None
    start, ends, secret = _signing(location, credential, seconds)
    signature = generate_blob_sas(
        location.account,
        location.container,
        key,
        permission=BlobSasPermissions(read=True),
        start=start,
        expiry=ends,
        protocol=_protocol(location),
        **secret,
    )
    return f"{location.blob_endpoint.rstrip('/')}/{location.container}/{quote(key)}?{signature}"


def _signature(location: AzureLocation, credential: TokenCredential | None, seconds: int) -> str:
    try:
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas
    except ImportError:
        raise MissingExtra(what="An Azure storage account", extra="azure") from None
    _make_container(location, credential)
    # A write creates files, too. Signatures for a folder need a hierarchical namespace.
    rights = ContainerSasPermissions(read=True, write=True, delete=True, list=True)
    start, ends, secret = _signing(location, credential, seconds)
    return str(
        generate_container_sas(
            location.account,
            location.container,
            permission=rights,
            start=start,
            expiry=ends,
            protocol=_protocol(location),
            **secret,
        )
    )


def _protocol(location: AzureLocation) -> str | None:
    """A signature for an account on Azure is of no use without encryption."""
    return "https" if location.blob_endpoint.startswith("https:") else None


def _signing(
    location: AzureLocation, credential: TokenCredential | None, seconds: int
) -> tuple[datetime, datetime, dict[str, Any]]:
    """From when, until when, and with what a signature is made."""
    from azure.storage.blob import BlobServiceClient

    now = datetime.now(UTC)
    if location.key is not None:
        secret: dict[str, Any] = {"account_key": location.key}
        return now - CLOCK_MARGIN, now + timedelta(seconds=seconds), secret
    ends = now + timedelta(seconds=min(seconds, IDENTITY_SIGNATURE_SECONDS))
    transport = limited_transport(location.blob_endpoint, str(location))
    service = BlobServiceClient(location.blob_endpoint, credential=credential, transport=transport)
    with our_errors(str(location)), service:
        key = service.get_user_delegation_key(now - CLOCK_MARGIN, ends)
    return now - CLOCK_MARGIN, ends, {"user_delegation_key": key}


def _make_container(location: AzureLocation, credential: TokenCredential | None) -> None:
    """obstore cannot create a container; nor delete by version, nor sign (see below)."""
    from azure.core.exceptions import ResourceExistsError
    from azure.storage.blob import ContainerClient

    container = ContainerClient(
        location.blob_endpoint,
        location.container,
        _secret(location, credential),
        transport=limited_transport(location.blob_endpoint, str(location)),
    )
    with our_errors(str(location)), container, contextlib.suppress(ResourceExistsError):
        container.create_container()


def _delete_if(
    location: AzureLocation, credential: TokenCredential | None, key: str, version: str
) -> bool:
    """Delete a file in one step with the look at its version; False if it has another one."""
    from azure.core import MatchConditions
    from azure.core.exceptions import ResourceModifiedError, ResourceNotFoundError
    from azure.storage.blob import BlobClient

    blob = BlobClient(
        location.blob_endpoint,
        location.container,
        key,
        credential=_secret(location, credential),
        transport=limited_transport(location.blob_endpoint, str(location)),
    )
    with our_errors(str(location)), blob:
        try:
            blob.delete_blob(
                etag=f'"{plain_version(version)}"',
                match_condition=MatchConditions.IfNotModified,
            )
        except (ResourceModifiedError, ResourceNotFoundError):
            return False
        return True


def _asked_pause(location: AzureLocation, credential: TokenCredential | None) -> float:
    """How long the account asks to wait, from its answer to one more request: obstore keeps the
    headers of answers to itself. 0 where it does not say, or limits us no longer."""
    from azure.core.exceptions import AzureError, HttpResponseError
    from azure.storage.blob import BlobClient

    secret = _secret(location, credential)
    place = (location.blob_endpoint, location.container, "_limits")
    try:
        with BlobClient(*place, credential=secret, retry_total=0, read_timeout=20) as blob:
            blob.exists()
    except HttpResponseError as error:
        return pause_of_error(error) or 0.0
    except AzureError:
        pass
    return 0.0


def _secret(location: AzureLocation, credential: TokenCredential | None) -> Any:
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    if location.key is not None:
        return AzureNamedKeyCredential(location.account, location.key)
    return credential if location.sas is None else AzureSasCredential(location.sas)


# What changed in an Azure table, without fetching all of it.
#
# The service stamps every row it writes with its own time, so most of the time only rows since the
# newest known stamp are asked for. A row that is gone leaves no stamp: every so often keys and
# versions alone are listed. The mark is the newest stamp, and when that list was last made.


LIST_EVERY_S = 15.0
OVERLAP = timedelta(seconds=10)  # servers of a partition may disagree by this much
MANY = 200
_BETWEEN = "|"

Query = Callable[[str, Mapping[str, Any], list[str] | None], Iterator[Any]]
AsRecords = Callable[[Iterable[Any]], Iterable[Record]]  # those that can be read
Get = Callable[[str], Record | None]


def drift_of(
    query: Query,
    get: Get,
    as_records: AsRecords,
    known: Mapping[str, str],
    mark: str,
    clock: Callable[[], float] = time.monotonic,
) -> Drift:
    stamp, between, listed = mark.partition(_BETWEEN)
    newest, listed_at = (datetime.fromisoformat(stamp), float(listed)) if between else (None, 0.0)
    if newest is None or clock() - listed_at > LIST_EVERY_S:
        return _by_listing(query, get, as_records, known, clock())
    since = {"since": newest - OVERLAP}
    recent = list(query("Timestamp ge @since", since, None))
    changed = [row for row in as_records(recent) if known.get(row.key) != row.version]
    return Drift(changed, (), _mark(_newest(recent, newest), listed_at))


def _by_listing(
    query: Query, get: Get, as_records: AsRecords, known: Mapping[str, str], now: float
) -> Drift:
    listed = list(query("", {}, ["PartitionKey", "RowKey", "Timestamp"]))
    versions = {entity["RowKey"]: str(entity.metadata["etag"]) for entity in listed}
    changed = {key for key, version in versions.items() if known.get(key) != version}
    if len(changed) > MANY:
        rows: Iterable[Record] = (
            row for row in as_records(query("", {}, None)) if row.key in changed
        )
    else:
        rows = [row for row in map(get, changed) if row is not None]
    gone = [key for key in known if key not in versions]
    return Drift(rows, gone, _mark(_newest(listed, None), now))


def _newest(entities: Iterable[Any], newest_before: datetime | None) -> datetime | None:
    stamps = [entity.metadata["timestamp"] for entity in entities]
    return max(
        [*(stamp for stamp in stamps if stamp), *([newest_before] if newest_before else [])],
        default=None,
    )


def _mark(newest: datetime | None, listed_at: float) -> str:
    return "" if newest is None else f"{newest.isoformat()}{_BETWEEN}{listed_at}"


# Our errors out of Azure's.


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


# What Azure's SDK does when a storage account limits requests: all clients of this process wait.
#
# The SDK waits for as long as an answer asks, each request for itself and without an end.


_LIMITED_CODE = "x-ms-error-code"
_TIMED_OUT = "OperationTimedOut"


def limited_transport(service: str, store: str) -> RequestsTransport:
    """A transport for clients of one service of an account, by its address, which repeats what that
    service limits and raises StoreLimited at the end."""
    from azure.core.exceptions import ServiceResponseError
    from azure.core.pipeline.transport import RequestsTransport

    class LimitedTransport(RequestsTransport):  # type: ignore[misc]
        def send(self, request: Any, **options: Any) -> Any:
            answer = limit_of(service).keep(
                lambda: super(LimitedTransport, self).send(request, **options), _pause_of
            )
            if _is_cut_off(answer):
                raise ServiceResponseError("the connection ended in the middle of an answer")
            if _pause_of(answer) is None:
                return answer
            code = answer.headers.get(_LIMITED_CODE, "")
            reason = f"{answer.status_code} {code}".strip()
            raise StoreLimited(store=store, reason=reason, seconds=PATIENCE_S)

    return LimitedTransport()


def pause_of_error(error: HttpResponseError) -> float | None:
    """How long a service asks to wait by this error; None if it is no rate limit."""
    return None if error.response is None else _pause_of(error.response)


def _is_cut_off(answer: Any) -> bool:
    """Python's HTTP client takes headers that break off for whole ones, and the body for empty. An
    answer over a connection that stays open says how long it is; some have no body."""
    if answer.status_code in (204, 304) or answer.request.method == "HEAD":
        return False
    headers = {str(name).lower(): str(value) for name, value in answer.headers.items()}
    raw = getattr(answer.internal_response, "raw", None)
    is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
    says_its_end = is_chunked or headers.get("content-length", "").isdecimal()
    is_open = getattr(raw, "version", 0) == 11 and headers.get("connection", "").lower() != "close"
    return is_open and not says_its_end


def _pause_of(answer: Any) -> float | None:
    headers = {str(name).lower(): str(value) for name, value in answer.headers.items()}
    status = 503 if headers.get(_LIMITED_CODE) == _TIMED_OUT else int(answer.status_code or 0)
    return asked_pause(status, headers)
