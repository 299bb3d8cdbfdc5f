"""What a compute hands to the wrapper: one environment variable, and the first lines that run.

The variable holds the access to the store, which may be a secret: it is read once, is not passed to
the command, and is shown nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from edgeloop.errors import BadSetting
from edgeloop.store import Access

if TYPE_CHECKING:
    from edgeloop.jobs.computes.base import Order

ORDER_VARIABLE = "EDGELOOP_ORDER"


@dataclass(frozen=True)
class Pace:
    """How often the wrapper does what it does again and again, and when it gives up."""

    log_s: float = 1.0
    outputs_s: float = 2.0
    heartbeat_s: float = 10.0
    patience_s: float = 600.0  # how long a store may be away before and after the command
    install_s: float = 3600.0  # the most that pip or conda may take


@dataclass(frozen=True)
class Handover:
    """A job's id, the way to its store, and which wrapper to run. A job of several nodes has a
    wrapper on each."""

    job: str
    wrapper: str
    access: Access = field(repr=False)
    pace: Pace = Pace()
    nodes: int = 1

    def to_variables(self) -> dict[str, str]:
        """The one variable to set for the wrapper's process. Holds secrets: never log it."""
        return {ORDER_VARIABLE: json.dumps(asdict(self), separators=(",", ":"))}

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> Handover:
        try:
            fields = json.loads(variables[ORDER_VARIABLE])
            access = Access(fields["access"]["make"], fields["access"]["options"])
            pace = Pace(**fields.get("pace", {}))
            nodes = int(fields.get("nodes", 1))
            return cls(str(fields["job"]), str(fields["wrapper"]), access, pace, nodes)
        except KeyError as error:
            reason = f"{error.args[0]} is missing: start jobs with 'edgeloop job submit'"
        except (ValueError, TypeError, AttributeError):
            reason = "it cannot be read"  # the decoder's own words would quote the secret
        raise BadSetting(where=ORDER_VARIABLE, reason=reason)


def hand_over(order: Order, pace: Pace | None = None) -> dict[str, str]:
    """The variables that a compute sets for the process it starts."""
    nodes = order.resources.nodes
    return Handover(order.job, order.wrapper, order.access, pace or Pace(), nodes).to_variables()


def bootstrap_command(python: str = "python3") -> list[str]:
    """The command for a node that has Python and obstore but not the wrapper: it fetches the
    wrapper from the store once, checks it, and becomes it. A path that is added to the command is
    that of a file with the variable's content, for a compute that shows variables to too many."""
    return [python, "-c", _BOOTSTRAP]


# Runs before anything of ours is there, so it stands on its own; it must parse on old Pythons too.
_BOOTSTRAP = """\
import hashlib, json, os, sys, tempfile
def stop(sentence):
    sys.exit("edgeloop: " + sentence)
if sys.version_info < (3, 11):
    stop("this node's Python is %d.%d, and jobs need 3.11 or newer" % sys.version_info[:2])
if len(sys.argv) > 1:
    try:
        with open(sys.argv[1]) as file:
            os.environ["EDGELOOP_ORDER"] = file.read()
    except OSError as error:
        stop("the job's order cannot be read from %s: %s" % (sys.argv[1], error.strerror))
try:
    order = json.loads(os.environ["EDGELOOP_ORDER"])
    key, make, options = order["wrapper"], order["access"]["make"], dict(order["access"]["options"])
except (KeyError, ValueError):
    stop("EDGELOOP_ORDER is missing or cannot be read")
try:
    import obstore, obstore.store
except ImportError:
    stop("obstore is not installed for %s on this node: pip install obstore" % sys.executable)
if make == "LocalStore" and not os.path.isdir(options["folder"]):
    stop("the store is the folder %s, which this node does not have: "
         "use a shared folder or a store in the cloud" % options["folder"])
cache = os.environ.get("EDGELOOP_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "edgeloop")
name = os.path.basename(key)
place = os.path.join(cache, "wrapper")
path = os.path.join(place, name)
def good():
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest() == name.split(".")[0]
    except OSError:
        return False
def token(client):
    import datetime, urllib.parse, urllib.request
    fields, heads = {"resource": "https://storage.azure.com"}, {"Metadata": "true"}
    place = os.environ.get("IDENTITY_ENDPOINT")
    if place:
        fields["api-version"], key = "2019-08-01", "client_id"
        heads["X-IDENTITY-HEADER"] = os.environ.get("IDENTITY_HEADER", "")
    elif os.environ.get("MSI_ENDPOINT"):
        place, fields["api-version"], key = os.environ["MSI_ENDPOINT"], "2017-09-01", "clientid"
        heads["secret"] = os.environ.get("MSI_SECRET", "")
    else:
        place = "http://169.254.169.254/metadata/identity/oauth2/token"
        fields["api-version"], key = "2018-02-01", "client_id"
    client = client or os.environ.get("DEFAULT_IDENTITY_CLIENT_ID", "")
    if client:
        fields[key] = client
    ask = urllib.request.Request(place + "?" + urllib.parse.urlencode(fields), headers=heads)
    with urllib.request.urlopen(ask, timeout=30) as page:
        found = json.load(page)
    ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=20)
    return {"token": found["access_token"], "expires_at": ends}
def fetch():
    web = {"timeout": "120s", "connect_timeout": "10s"}
    plain = [os.environ.get(n + "_ALLOW_HTTP", "").lower() for n in ("AWS", "AZURE", "GOOGLE")]
    if options.get("endpoint", "").startswith("http:") or "true" in plain or "1" in plain:
        web["allow_http"] = "true"
    if make == "LocalStore":
        store = obstore.store.LocalStore(options["folder"])
    elif make == "AzureStore":
        store = obstore.store.AzureStore(client_options=web, **options)
    elif make == "AzureIdentity":
        client = options.pop("client_id", "")
        store = obstore.store.AzureStore(
            client_options=web, credential_provider=lambda: token(client), **options)
    elif make == "from_url":
        store = obstore.store.from_url(options["url"], client_options=web)
    else:
        stop("this wrapper does not know how to open the store: " + make)
    content = bytes(obstore.get(store, key).bytes())
    os.makedirs(place, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=place)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(part, path)
if not good():
    try:
        fetch()
    except Exception as error:
        stop("the wrapper could not be fetched from the store: "
             + (type(error).__name__ if make != "LocalStore" else str(error).split("\\n")[0]))
    if not good():
        stop("the wrapper in the store is damaged: submit the job again")
os.execv(sys.executable, [sys.executable, path])
"""
