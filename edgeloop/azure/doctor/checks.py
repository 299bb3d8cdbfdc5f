"""What works, what does not, and how to mend it: one line each, and never an exception.

A check that cannot be made since another failed says so instead of failing too; only what is
`needed` counts for the end.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

from edgeloop._util.redact import redact
from edgeloop.azure.connection import Connection, connect, require_packages
from edgeloop.azure.doctor.findings import Finding
from edgeloop.azure.doctor.roles import cluster_roles, store_role, workspace_role
from edgeloop.azure.doctor.things import clusters, datastores, environments, quotas
from edgeloop.azure.errors import explain, is_azures
from edgeloop.azure.manager import PROVIDER_VERSION, SUBSCRIPTION_VERSION
from edgeloop.azure.provisioning.resources import Needs
from edgeloop.azure.provisioning.setup import TRIAL_FOLDER
from edgeloop.errors import EdgeloopError

LONGEST_PATIENCE_S = 20.0  # somebody waits for the answer
_CLOCK_LIMIT_S = 240.0  # Azure allows five minutes
_PROVIDER = "Microsoft.MachineLearningServices"

Check = Callable[[Connection, Needs], Iterator[Finding]]


@dataclass(frozen=True)
class _Stage:
    """Checks that need all earlier stages; a failed one with `stops` leaves out the later ones."""

    what: str
    check: Check
    stops: bool = False


def examine(needs_of: Callable[[], Needs]) -> Iterator[Finding]:
    """A finding as soon as it is known. `needs_of` reads the settings, which may be wrong too."""
    try:
        needs = needs_of()
        require_packages()
    except Exception as error:  # noqa: BLE001 - a doctor that dies helps nobody
        yield Finding("settings", False, redact(str(error)).partition("\n")[0])
        return
    connection = connect(needs.place, min(needs.patience_s, LONGEST_PATIENCE_S))
    yield Finding("settings", True, str(needs.place))
    failed = ""
    for stage in _STAGES:
        if failed:
            yield Finding(stage.what, None, f"not checked, since {failed} failed")
            continue
        for finding in _safely(stage, connection, needs):
            yield finding
            if stage.stops and finding.ok is False:
                failed = finding.what


def _safely(stage: _Stage, connection: Connection, needs: Needs) -> Iterator[Finding]:
    """Whatever a check raises is a line of it."""
    try:
        yield from stage.check(connection, needs)
    except Exception as error:  # noqa: BLE001 - a doctor that dies helps nobody
        yield Finding(stage.what, False, _sentence(error, needs))


def _sentence(error: Exception, needs: Needs) -> str:
    if is_azures(error):
        error = explain(error, "azureml", needs.place)
    if isinstance(error, EdgeloopError):
        return redact(str(error.fields.get("reason") or error))
    first = redact(str(error)).partition("\n")[0]
    return f"unexpected {type(error).__name__}: {first}"


def _login(connection: Connection, needs: Needs) -> Iterator[Finding]:
    yield Finding("login", True, _who(connection.manager.token()))


def _who(token: str) -> str:
    """Whom a token is for, as far as it says; it is read, not trusted."""
    try:
        middle = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    except (IndexError, ValueError):
        return "logged in"
    names = ("upn", "preferred_username", "unique_name", "app_displayname", "oid", "appid")
    who = next((claims[name] for name in names if claims.get(name)), "somebody")
    return f"as {who}, tenant {claims.get('tid', 'unknown')}"


def _subscription(connection: Connection, needs: Needs) -> Iterator[Finding]:
    name = needs.place.subscription
    told = connection.manager.get(f"/subscriptions/{name}", SUBSCRIPTION_VERSION)
    state = str(told.get("state") or "Enabled")
    title = str(told.get("displayName") or name)
    if state in ("Enabled", "Warned", "PastDue"):
        yield Finding("subscription", True, title)
    else:
        text = f"{title} is {state}: nothing can be created in it; ask its owner"
        yield Finding("subscription", False, text)


def _clock(connection: Connection, needs: Needs) -> Iterator[Finding]:
    off = connection.manager.clock_off_s
    if off is None:
        yield Finding("clock", None, "Azure did not report its time", needed=False)
    elif abs(off) <= _CLOCK_LIMIT_S:
        yield Finding("clock", True, f"{abs(off):.0f} s from Azure's")
    else:
        way = "ahead of" if off > 0 else "behind"
        text = f"{abs(off):.0f} s {way} Azure's: tokens and signatures will be refused"
        yield Finding("clock", False, f"{text}; set this machine's clock (ntp)")


def _provider(connection: Connection, needs: Needs) -> Iterator[Finding]:
    path = f"/subscriptions/{needs.place.subscription}/providers/{_PROVIDER}"
    state = str(connection.manager.get(path, PROVIDER_VERSION).get("registrationState") or "")
    if state == "Registered":
        yield Finding("provider", True, _PROVIDER)
    else:
        text = f"{_PROVIDER} is {state or 'not registered'} in the subscription"
        yield Finding("provider", False, f"{text}: az provider register --namespace {_PROVIDER}")


def _workspace(connection: Connection, needs: Needs) -> Iterator[Finding]:
    found = connection.workspace
    yield Finding("workspace", True, f"{found.name} in {found.location}")


def _store(connection: Connection, needs: Needs) -> Iterator[Finding]:
    store = needs.store
    if not store.is_reachable:
        text = f"{store.description} is on this machine, where no node can reach it: set "
        text += "EDGELOOP_STORE=azure:https://ACCOUNT.blob.core.windows.net"
        yield Finding("store", False, text)
        return
    key, content = f"{TRIAL_FOLDER}/{uuid4().hex}", uuid4().bytes
    store.files.put(key, content)
    try:
        is_same = store.files.read(key) == content
    finally:
        store.files.delete([key])
    if is_same:
        yield Finding("store", True, f"{store.description}: written, read and deleted")
    else:
        yield Finding("store", False, f"{store.description} returned different content")


_STAGES = (
    _Stage("login", _login, stops=True),
    _Stage("subscription", _subscription, stops=True),
    _Stage("clock", _clock),
    _Stage("provider", _provider),
    _Stage("workspace", _workspace, stops=True),
    _Stage("role", workspace_role),
    _Stage("storage role", store_role),
    _Stage("store", _store),
    _Stage("quota", quotas),
    _Stage("cluster", clusters),
    _Stage("cluster's role", cluster_roles),
    _Stage("datastore", datastores),
    _Stage("environment", environments),
)
