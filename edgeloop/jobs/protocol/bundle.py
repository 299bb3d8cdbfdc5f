"""The programs that run where Edgeloop is not installed, each as one file or one command.

The *wrapper* runs inside every job; the *bootstrap* fetches it on a node; the *waiter* is the
process of a job that waits on this machine. The same sources give the same bytes, so each file is
named by its hash and stored once.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from edgeloop._util.files import write_atomic
from edgeloop.jobs.protocol.ticket import wrapper_key
from edgeloop.store import Blobs

_PACKAGE = Path(__file__).parents[2]
_EPOCH = (1980, 1, 1, 0, 0, 0)
# What may be imported inside a job: these need only the standard library and obstore.
_WRAPPER_FILES = (
    *("__init__.py", "_version.py", "errors.py"),
    *("store/__init__.py", "store/base.py", "store/blobs.py", "store/identity.py"),
    *("store/location.py", "store/registry.py"),
    *("jobs/__init__.py", "jobs/protocol/__init__.py", "jobs/protocol/ticket.py"),
    *("jobs/protocol/codec.py", "jobs/protocol/patterns.py"),
)
_WRAPPER_ROOMS = ("_util", "data", "jobs/wrapper")
_WRAPPER_MAIN = "import sys\nfrom edgeloop.jobs.wrapper import main\nsys.exit(main(sys.argv[1:]))\n"
# The waiter needs only the standard library.
_WAITER_FILES = (
    *("errors.py", "_util/files.py", "_util/locks.py", "_util/system.py"),
    *(f"jobs/computes/local/{name}.py" for name in ("waiting", "queue", "environment")),
    *("jobs/protocol/codec.py", "jobs/protocol/resources.py"),
)
# Packages are entered without their `__init__`, which loads far more than a waiting process needs.
_WAITER_MAIN = """\
import sys
from types import ModuleType
root = sys.argv[0]
for name in ("", "._util", ".jobs", ".jobs.computes", ".jobs.computes.local", ".jobs.protocol"):
    package = ModuleType("edgeloop" + name)
    package.__path__ = [root + "/" + package.__name__.replace(".", "/")]
    sys.modules[package.__name__] = package
from edgeloop.jobs.computes.local.waiting import main
sys.exit(main(*sys.argv[1:]))
"""


def bundle() -> bytes:
    """The wrapper as a .pyz: run it with any Python from 3.11 on that has obstore."""
    files = {_PACKAGE / name for name in _WRAPPER_FILES}
    for room in _WRAPPER_ROOMS:
        files.update((_PACKAGE / room).rglob("*.py"))
    return _zipped(_contents(_WRAPPER_MAIN, files), zipfile.ZIP_DEFLATED)


def ensure_wrapper(blobs: Blobs) -> str:
    """The wrapper's key in the store; it is sent if it is missing."""
    content = bundle()
    key = wrapper_key(hashlib.sha256(content).hexdigest())
    if blobs.size(key) is None:
        blobs.put(key, content)
    return key


def waiter_file(folder: Path) -> Path:
    """The waiter in `folder`, created if it is missing. A job that has waited for days continues
    with the program it started with, even if Edgeloop has been updated meanwhile."""
    contents = _contents(_WAITER_MAIN, (_PACKAGE / name for name in _WAITER_FILES))
    file = folder / f"waiter-{hashlib.sha256(repr(contents).encode()).hexdigest()[:16]}.zip"
    if not file.is_file():  # not compressed: a waiting process then need not load zlib
        write_atomic(file, _zipped(contents, zipfile.ZIP_STORED))
    return file


def _contents(main: str, files: Iterable[Path]) -> dict[str, bytes]:
    named = {f"edgeloop/{file.relative_to(_PACKAGE).as_posix()}": file for file in files}
    sources = {name: named[name].read_bytes() for name in sorted(named)}
    return {"__main__.py": main.encode(), **sources}


def _zipped(contents: Mapping[str, bytes], compression: int) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = compression
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, compresslevel=6)
    return target.getvalue()


def bootstrap_command(python: str = "python3") -> list[str]:
    """The command for a node that has Python and obstore but not the wrapper: it fetches the
    wrapper from the store once, checks it, and becomes it. An argument added to the command is the
    path of a file with the variable's content, for a compute that shows variables to too many."""
    return [python, "-c", _BOOTSTRAP]


# Runs before anything of Edgeloop is available, so it is self-contained and parses on old Pythons.
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
