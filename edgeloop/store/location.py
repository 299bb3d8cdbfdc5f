"""Where a store is, read from one text (a URL or an Azure connection string), and how it is opened.

The texts hold keys and passwords, so nothing here puts one into a message, and the classes keep
their secrets out of `repr`.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from edgeloop.errors import (
    BadSetting,
    RowChanged,
    RowExists,
    StoreDamaged,
    StoreError,
    StoreRefused,
    StoreTooNew,
    StoreTooOld,
)
from edgeloop.node.files import NOT_A_FOLDER, FolderBlobs
from edgeloop.store.base import (
    Access,
    Blobs,
    Changes,
    Condition,
    Drift,
    Rank,
    ReadRow,
    Record,
    Store,
    Table,
    Values,
)
from edgeloop.store.upgrades import SCHEMA, UPGRADES

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "edgeloop.stores"
FORMS = (
    "sqlite:FOLDER, postgresql://USER@HOST/DATABASE?blobs=URL, azure:https://ACCOUNT.blob."
    "core.windows.net, or an Azure storage connection string"
)
CONTAINER = "models"  # for files, where nothing else is said
# The account that every Azure storage emulator has; its key is published with the emulator.
_EMULATOR = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/"
    "KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
    "TableEndpoint": "http://127.0.0.1:10002/devstoreaccount1",
}


@dataclass(frozen=True)
class SqliteLocation:
    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def check(self) -> None:
        """Raises StoreError if a file is in its place, or in that of a folder above it."""
        paths = (self.folder, *self.folder.parents)
        there = next((path for path in paths if path.exists()), None)
        if there is not None and not there.is_dir():
            raise StoreError(store=str(there), reason=NOT_A_FOLDER)


@dataclass(frozen=True)
class PostgresLocation:
    url: str = field(repr=False)
    blobs: str

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return f"postgresql://{host}{parts.path}"


@dataclass(frozen=True)
class AzureLocation:
    """An account with a key, with a shared access signature, or (neither) with an identity."""

    account: str
    blob_endpoint: str
    table_endpoint: str
    key: str | None = field(default=None, repr=False)
    sas: str | None = field(default=None, repr=False)
    container: str = CONTAINER

    def __str__(self) -> str:
        return f"azure:{self.blob_endpoint}"


@dataclass(frozen=True)
class PluginLocation:
    """A URL that an installed plug-in opens.

    `base` is the folder that a relative path in it starts from; `blobs` is where EDGELOOP_BLOBS
    wants files, for a plug-in that has no place for them itself.
    """

    scheme: str
    url: str = field(repr=False)
    base: Path
    blobs: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        parts = _split(self.url)
        host = f"//{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
        return f"{self.scheme}:{host}{parts.path}"


Location = SqliteLocation | PostgresLocation | AzureLocation | PluginLocation


def parse_location(
    text: str,
    blobs: str | None = None,
    base: Path | None = None,
    where: str = "EDGELOOP_STORE",
) -> Location:
    """Read a store's address; `blobs` is used where a postgresql URL names no blobs itself. An
    error says that it is `where` the address was."""
    try:
        return _parsed(text.strip(), blobs, base)
    except BadSetting as error:
        raise BadSetting(where=where, reason=error.fields["reason"]) from None


def _parsed(text: str, blobs: str | None, base: Path | None) -> Location:
    if "\0" in text:
        raise BadSetting(where="EDGELOOP_STORE", reason="it has a null character")
    scheme = text.partition(":")[0].lower()
    if _looks_like_connection_string(text):
        return parse_connection_string(text)
    if scheme == "sqlite":
        return _sqlite(text, base or Path.cwd())
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        return _postgresql(text, blobs)
    if scheme == "azure":
        return _azure_url(text)
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) or ":" not in text:
        raise BadSetting(where="EDGELOOP_STORE", reason=f"it must be {FORMS}")
    if not any(plugin_entry_points(scheme)):
        reason = f"no store is known for {scheme}: URLs; it must be {FORMS}, or the URL of an "
        raise BadSetting(where="EDGELOOP_STORE", reason=f"{reason}installed plug-in")
    return PluginLocation(scheme, text, base or Path.cwd(), blobs)


def plugin_entry_points(scheme: str) -> Iterable[EntryPoint]:
    """The installed plug-ins that open URLs of this scheme."""
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINTS, name=scheme)


def _looks_like_connection_string(text: str) -> bool:
    first_key = text.split(";", maxsplit=1)[0].partition("=")[0].strip().lower()
    return first_key in {
        "defaultendpointsprotocol",
        "accountname",
        "accountkey",
        "blobendpoint",
        "tableendpoint",
        "queueendpoint",
        "fileendpoint",
        "endpointsuffix",
        "sharedaccesssignature",
        "usedevelopmentstorage",
    }


def _sqlite(text: str, base: Path) -> SqliteLocation:
    path = text.partition(":")[2]
    if path.startswith("///"):
        path = path[2:]  # sqlite:///srv/x, as elsewhere
    if not path or path.startswith("//"):
        raise BadSetting(where="EDGELOOP_STORE", reason="sqlite: needs a folder, as sqlite:/srv/x")
    return SqliteLocation((base / Path(path).expanduser()).absolute())


def _postgresql(text: str, blobs: str | None) -> PostgresLocation:
    parts = _split(text)
    options = dict(parse_qsl(parts.query))
    place = options.pop("blobs", None) or blobs
    if not parts.path.strip("/"):
        raise BadSetting(where="EDGELOOP_STORE", reason="the postgresql: URL names no database")
    if place is None:
        reason = "a postgresql: store needs a place for files: add ?blobs=file:///srv/blobs "
        raise BadSetting(
            where="EDGELOOP_STORE",
            reason=reason + "(or s3://, gs://, az://), or set EDGELOOP_BLOBS",
        )
    login, at, host = parts.netloc.rpartition("@")
    # Quoted again, since libpq takes the first '@' for the end of a password.
    login = ":".join(quote(unquote(part), safe="") for part in login.split(":", 1))
    query = urlencode(options, quote_via=quote)
    return PostgresLocation(
        urlunsplit(("postgresql", f"{login}{at}{host}", parts.path, query, "")), place
    )


def _azure_url(text: str) -> AzureLocation:
    """`azure:https://account.blob.core.windows.net`; `azure://account` is short for it."""
    address = text.partition(":")[2]
    if address.startswith("//"):
        account = address.strip("/")
        address = f"https://{account}.blob.core.windows.net"
    parts = _split(address)
    host = parts.hostname or ""
    if parts.scheme not in ("https", "http") or not host.partition(".")[0]:
        reason = "azure: needs the account's URL, as azure:https://ACCOUNT.blob.core.windows.net"
        raise BadSetting(where="EDGELOOP_STORE", reason=reason)
    options = dict(parse_qsl(parts.query))
    blob = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    table = options.get("table") or blob.replace(".blob.", ".table.", 1)
    account = parts.path.strip("/") or host.partition(".")[0]
    return AzureLocation(account, blob, table, container=options.get("container") or CONTAINER)


def _split(url: str) -> SplitResult:
    """Python's own complaint about a URL would show its password."""
    try:
        return urlsplit(url)
    except ValueError:
        raise BadSetting(where="EDGELOOP_STORE", reason="its URL cannot be read") from None


def parse_connection_string(text: str) -> AzureLocation:
    """An Azure storage account as the portal prints it, with a key or a signature."""
    fields = _connection_fields(text)
    if fields.get("usedevelopmentstorage", "").lower() == "true":
        fields = {key.lower(): value for key, value in _EMULATOR.items()}
    account = fields.get("accountname", "")
    suffix = fields.get("endpointsuffix", "core.windows.net")
    protocol = fields.get("defaultendpointsprotocol", "https")
    blob = fields.get("blobendpoint") or f"{protocol}://{account}.blob.{suffix}"
    table = fields.get("tableendpoint") or f"{protocol}://{account}.table.{suffix}"
    key, sas = fields.get("accountkey"), fields.get("sharedaccesssignature")
    if not account:
        parts = _split(blob if "blobendpoint" in fields else "")
        account = parts.path.strip("/") or (parts.hostname or "").partition(".")[0]
    if not account or not (key or sas):
        raise _bad_connection_string("it needs AccountName and AccountKey (or a signature)")
    if not (account.isascii() and account.replace("-", "").isalnum()):
        raise _bad_connection_string("its AccountName may hold letters and digits only")
    if not all(_is_http(endpoint) for endpoint in (blob, table)):
        raise _bad_connection_string("its endpoints must be http(s) URLs")
    if key and not _is_base64(key):
        raise _bad_connection_string("its AccountKey is cut off or mistyped")
    container = fields.get("container") or CONTAINER  # ours: Azure's own tools ignore it
    return AzureLocation(account, blob.rstrip("/"), table.rstrip("/"), key, sas, container)


def location_text(location: Location) -> str:
    """What `parse_location` reads as this location, for the environment of another process. It
    holds the store's secret. A plug-in's relative path starts from the folder it was read in."""
    if isinstance(location, SqliteLocation):
        return f"sqlite:{location.folder}"
    if isinstance(location, PostgresLocation):
        joint = "&" if urlsplit(location.url).query else "?"
        return f"{location.url}{joint}blobs={quote(location.blobs, safe='')}"
    if isinstance(location, AzureLocation):
        return _azure_text(location)
    return location.url


def _azure_text(location: AzureLocation) -> str:
    if not (location.key or location.sas):
        options = urlencode({"table": location.table_endpoint, "container": location.container})
        return f"azure:{location.blob_endpoint}?{options}"
    fields = {
        "AccountName": location.account,
        "AccountKey": location.key,
        "SharedAccessSignature": location.sas,
        "BlobEndpoint": location.blob_endpoint,
        "TableEndpoint": location.table_endpoint,
        "Container": location.container,
    }
    return ";".join(f"{name}={value}" for name, value in fields.items() if value)


def datastore_location(account: str, container: str, key: str, endpoint: str) -> AzureLocation:
    """The store of a project that names a datastore of Azure ML: its account and its container. No
    key: by identity. `endpoint` is where a private cloud has the account's files."""
    where = ".azureml/datastore.json"
    for name, text in (("account_name", account), ("container_name", container)):
        if not (text.isascii() and text.replace("-", "").isalnum()):
            raise BadSetting(where=where, reason=f"its {name} may hold letters and digits only")
    if key and not _is_base64(key):
        raise BadSetting(where=where, reason="its account_key is cut off or mistyped")
    blob = (endpoint or f"https://{account}.blob.core.windows.net").rstrip("/")
    if not _is_http(blob):
        raise BadSetting(where=where, reason="its blob_endpoint must be an http(s) URL")
    table = blob.replace(".blob.", ".table.", 1)
    return AzureLocation(account, blob, table, key or None, None, container)


def _connection_fields(text: str) -> dict[str, str]:
    fields = {}
    for part in text.strip().strip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals:
            raise _bad_connection_string("it must be made of Name=Value parts joined by ';'")
        fields[name.strip().lower()] = value.strip()
    return fields


def _is_http(endpoint: str) -> bool:
    parts = _split(endpoint)
    return parts.scheme in ("https", "http") and bool(parts.hostname)


def _is_base64(key: str) -> bool:
    import base64
    import binascii

    try:
        return bool(base64.b64decode(key, validate=True))
    except (binascii.Error, ValueError):
        return False


def _bad_connection_string(reason: str) -> BadSetting:
    return BadSetting(
        where="MODEL_STORAGE_CONNECTION_STRING",
        reason=f"the connection string cannot be read: {reason}. Copy it whole from the "
        "storage account's 'Access keys' page, and put it in quotes: a shell cuts it at the "
        "first ';' otherwise",
    )


# Opening a store or its files: the built-in ones, and those of plug-ins.
#
# A plug-in is an entry point of the group `edgeloop.stores`. Its name is the scheme of the URLs
# that it opens; it loads a function that takes a `PluginLocation` and returns a `Store`.


Factory = Callable[[PluginLocation], Store]


def open_store(location: Location) -> Store:
    """Open the store at a location. Nothing is contacted or created before it is used. Then it is
    refused if a newer version of Edgeloop wrote it so that this one does not understand it."""
    return VersionedStore(_open_store(location))


def _open_store(location: Location) -> Store:
    if isinstance(location, PluginLocation):
        return _open_plugin(location)
    if isinstance(location, AzureLocation):
        from edgeloop.store.azure import AzureStore

        return AzureStore(location)
    from edgeloop.store.sql import open_postgresql, open_sqlite

    if isinstance(location, PostgresLocation):
        return open_postgresql(location)
    return open_sqlite(location)


def open_blobs(location: Location) -> Blobs:
    """Open only the files of a store: jobs and data need no table, so no code for one is loaded.
    Raises StoreError if a file is where the folder of a store should be."""
    if isinstance(location, PluginLocation):
        return _open_plugin(location).blobs
    if isinstance(location, AzureLocation):
        from edgeloop.store.azure import azure_blobs

        return azure_blobs(location)
    if isinstance(location, PostgresLocation):
        from edgeloop.store.files import url_blobs

        return url_blobs(location.blobs)
    location.check()
    return FolderBlobs(location.folder / "blobs")


def job_access(location: AzureLocation, seconds: int, writes: bool) -> Access:
    """Access for a job to a container of Azure that need not be the store's. Only reading is
    allowed unless it `writes`."""
    from edgeloop.store.azure import azure_access

    return azure_access(location, seconds, writes)


def _open_plugin(location: PluginLocation) -> Store:
    for entry_point in plugin_entry_points(location.scheme):
        try:
            factory: Factory = entry_point.load()
        except (ImportError, AttributeError) as error:
            reason = f"the plug-in {entry_point.value!r} cannot be loaded: {error}"
            raise BadSetting(where="the store", reason=reason) from None
        return factory(location)
    reason = f"the plug-in for {location.scheme}: URLs is not installed"
    raise BadSetting(where="the store", reason=reason)


# The version of a store: which schema it has, and who may use it. `upgrades.py` has the steps from
# one schema to the next.


VERSION_KEY = "store"
_LOG = logging.getLogger("edgeloop.store")


@dataclass(frozen=True)
class StoreVersion:
    """The row that says which schema a store has; without one, an older version of Edgeloop wrote
    it, or Archai, or nothing did yet.

    Attributes:
        schema: The last step that was taken.
        oldest_reader: The oldest schema whose versions may read the store.
        oldest_writer: The oldest schema whose versions may write to it.
        edgeloop: The version of Edgeloop that took the step.
    """

    schema: int = 0
    oldest_reader: int = 0
    oldest_writer: int = 0
    edgeloop: str = ""


PRESENT = StoreVersion(
    schema=SCHEMA,
    oldest_reader=max(step.oldest_reader for step in UPGRADES.values()),
    oldest_writer=max(step.oldest_writer for step in UPGRADES.values()),
)


def read_version(store: Store) -> StoreVersion:
    """Raises StoreDamaged if the row is there and says no schema."""
    return _version_of(store, store.version().get(VERSION_KEY))


def raise_version(store: Store, version: StoreVersion) -> StoreVersion:
    """Write the row. No number in it is ever lowered, so of two upgrades at once none undoes what
    the other did. Returns what the row says then."""
    table = store.version()
    while True:
        record = table.get(VERSION_KEY)
        before = _version_of(store, record)
        newer = version if version.schema >= before.schema else before
        after = replace(
            newer,
            oldest_reader=max(version.oldest_reader, before.oldest_reader),
            oldest_writer=max(version.oldest_writer, before.oldest_writer),
        )
        with contextlib.suppress(RowChanged, RowExists):
            if record is None:
                table.insert(VERSION_KEY, asdict(after))
            elif after != before:
                table.update(record, asdict(after))
            return after


def _version_of(store: Store, record: Record | None) -> StoreVersion:
    """A row that does not say who may use the store allows it to versions of its schema only."""
    if record is None:
        return StoreVersion()
    schema = record.values.get("schema")
    if not _is_schema(schema):
        said = "nothing" if schema is None else repr(schema)[:60]
        reason = f"the row that says its schema says {said} instead of a whole number from 0"
        raise StoreDamaged(store=store.description, reason=reason)
    reader, writer = (record.values.get(name) for name in ("oldest_reader", "oldest_writer"))
    return StoreVersion(
        schema,
        oldest_reader=reader if _is_schema(reader) else schema,
        oldest_writer=writer if _is_schema(writer) else schema,
        edgeloop=str(record.values.get("edgeloop", ""))[:40],
    )


def check_use(store: Store, version: StoreVersion, use: str) -> None:
    """Raises StoreTooNew if this version of Edgeloop may not "read" or "write to" the store."""
    oldest = version.oldest_reader if use == "read" else version.oldest_writer
    if oldest > SCHEMA:
        newer = f"Edgeloop {version.edgeloop}" if version.edgeloop else "a newer version"
        raise StoreTooNew(
            store=store.description, schema=version.schema, newer=newer, ours=SCHEMA, use=use
        )


def unversioned(store: Store) -> Store:
    """The store itself, for those who upgrade it or repair its version."""
    return store.unversioned if isinstance(store, VersionedStore) else store


class VersionedStore(Store):
    """A store whose version is looked at before it is first read, and before it is first written to
    if it has not been read. That is one read for each process. An older one is brought up to date
    by the first write, unless that would shut out versions that may be at work on it."""

    def __init__(self, store: Store) -> None:
        self.unversioned = store
        self.blobs = store.blobs
        self._version: StoreVersion | None = None
        self._may_read = self._may_write = False

    def begin_reading(self) -> None:
        """Raises StoreTooNew. A store whose version cannot be read is read all the same: what is
        wrong with it must be found."""
        if self._may_read:
            return
        try:
            self._version = read_version(self.unversioned)
        except StoreRefused:  # a signature may be for some tables only
            self._version = PRESENT
        except StoreDamaged as error:
            _LOG.warning("edgeloop: %s", error)
        else:
            check_use(self.unversioned, self._version, "read")
        self._may_read = True

    def begin_writing(self) -> None:
        if self._may_write:
            return
        self.begin_reading()
        version = self._version
        if version is None or version.schema < SCHEMA:  # it may have been upgraded meanwhile
            version = read_version(self.unversioned)
        check_use(self.unversioned, version, "write to")
        if version.schema < SCHEMA:
            self._bring_up_to_date(version)
        self._may_write = True

    def _bring_up_to_date(self, version: StoreVersion) -> None:
        from edgeloop._version import __version__

        store = self.unversioned
        if version == StoreVersion() and not store.experiments():
            raise_version(store, replace(PRESENT, edgeloop=__version__))
            return
        from edgeloop.store.upgrades import excludes, upgrade

        if excludes(version):
            raise StoreTooOld(store=self.description, schema=version.schema, ours=SCHEMA)
        if sum(step.changed for step in upgrade(store)):
            place, schema = self.description, SCHEMA
            _LOG.warning("edgeloop: the store %s was brought to schema %d.", place, schema)

    @property
    def description(self) -> str:
        return self.unversioned.description

    def models(self, experiment: str) -> Table:
        return self._versioned(self.unversioned.models(experiment))

    def queue(self, experiment: str) -> Table:
        return self._versioned(self.unversioned.queue(experiment))

    def usage(self) -> Table:
        return self._versioned(self.unversioned.usage())

    def runners(self) -> Table:
        return self._versioned(self.unversioned.runners())

    def fleets(self) -> Table:
        return self._versioned(self.unversioned.fleets())

    def experiment_settings(self) -> Table:
        return self._versioned(self.unversioned.experiment_settings())

    def version(self) -> Table:
        return self.unversioned.version()

    def now(self) -> float:
        return self.unversioned.now()

    def experiments(self) -> list[str]:
        self.begin_reading()
        return self.unversioned.experiments()

    def check(self) -> Iterator[str]:
        self.begin_reading()
        return self.unversioned.check()

    def saved_rows(self) -> Iterator[tuple[str, Record]]:
        self.begin_reading()
        return self.unversioned.saved_rows()

    def close(self) -> None:
        self.unversioned.close()

    def _versioned(self, table: Table) -> Table:
        return _VersionedTable(table, self)


class _VersionedTable(Table):
    """A table that asks its store before it is read or written."""

    def __init__(self, table: Table, store: VersionedStore) -> None:
        self.unversioned = table
        self._store = store
        self.is_atomic = table.is_atomic

    def get(self, key: str) -> Record | None:
        self._store.begin_reading()
        return self.unversioned.get(key)

    def insert(self, key: str, values: Values) -> Record:
        self._store.begin_writing()
        return self.unversioned.insert(key, values)

    def insert_many(self, rows: Iterable[tuple[str, Values]]) -> None:
        self._store.begin_writing()
        self.unversioned.insert_many(rows)

    def update(self, record: Record, changes: Changes) -> Record:
        self._store.begin_writing()
        return self.unversioned.update(record, changes)

    def update_with(
        self, record: Record, changes: Changes, other: Table, rows: Mapping[str, Values | None]
    ) -> Record:
        self._store.begin_writing()
        return self.unversioned.update_with(record, changes, unversioned_table(other), rows)

    def put(self, key: str, values: Values | None) -> None:
        self._store.begin_writing()
        self.unversioned.put(key, values)

    def delete(self, record: Record) -> None:
        self._store.begin_writing()
        self.unversioned.delete(record)

    def query(
        self,
        prefix: str = "",
        *,
        after: str = "",
        where: Sequence[Condition] = (),
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Record]:
        self._store.begin_reading()
        return self.unversioned.query(
            prefix, after=after, where=where, limit=limit, columns=columns
        )

    def due(
        self, now: float, about: Table, prefix: str, rank: Rank, crowd: int = 1
    ) -> Iterator[tuple[Record, ReadRow]]:
        self._store.begin_reading()
        return self.unversioned.due(now, unversioned_table(about), prefix, rank, crowd)

    def marked(self, prefix: str, column: str) -> Iterator[Record]:
        self._store.begin_reading()
        return self.unversioned.marked(prefix, column)

    def prioritized(self, below: float, finished: Sequence[str]) -> Iterator[Record]:
        self._store.begin_reading()
        return self.unversioned.prioritized(below, finished)

    def drift(self, known: Mapping[str, str], mark: str = "") -> Drift:
        self._store.begin_reading()
        return self.unversioned.drift(known, mark)


def unversioned_table(table: Table) -> Table:
    return table.unversioned if isinstance(table, _VersionedTable) else table


def _is_schema(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
