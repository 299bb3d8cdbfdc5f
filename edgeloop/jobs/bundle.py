"""The programs that run where Edgeloop is not installed, each as one file or one command.

The *wrapper* runs inside every job; the *bootstrap* fetches it on a node; the *waiter* is the
process of a job that waits on this machine. The same sources give the same bytes, so each file is
named by its hash and stored once.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shlex
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from edgeloop._util.files import write_atomic
from edgeloop.errors import BadInput
from edgeloop.jobs.snapshot import CodeFile, CodeSnapshot
from edgeloop.node.ticket import is_fresh, wrapper_key
from edgeloop.store import Access, Blobs

_PACKAGE = Path(__file__).parents[1]
_EPOCH = (1980, 1, 1, 0, 0, 0)
# The wrapper is the room `node` and what it may import: the standard library, and these.
_SHARED_WITH_NODES = (
    "__init__.py",
    "_version.py",
    "errors.py",
    "paths.py",
    "_util/__init__.py",
    "_util/files.py",
    "_util/redact.py",
    "_util/retry.py",
    "_util/system.py",
    "_util/values.py",
    "node/secret_files.txt",
    "store/__init__.py",
    "store/base.py",
)
_WRAPPER_MAIN = (
    "import sys\nfrom edgeloop.node.launcher import main\nsys.exit(main(sys.argv[1:]))\n"
)
# The waiter needs only the standard library.
_WAITER_FILES = (
    "errors.py",
    "_util/files.py",
    "_util/retry.py",
    "_util/system.py",
    "_util/values.py",
    "jobs/computes/queue.py",
    "jobs/computes/waiting.py",
    "node/ticket.py",
    "store/base.py",
)
# Packages are entered without their `__init__`, which loads far more than a waiting process needs.
_WAITER_MAIN = """\
import sys
from types import ModuleType
root = sys.argv[0]
for name in ("", "._util", ".jobs", ".jobs.computes", ".node", ".store"):
    package = ModuleType("edgeloop" + name)
    package.__path__ = [root + "/" + package.__name__.replace(".", "/")]
    sys.modules[package.__name__] = package
from edgeloop.jobs.computes.waiting import main
sys.exit(main(*sys.argv[1:]))
"""


def bundle() -> bytes:
    """The wrapper as a .pyz: run it with any Python from 3.8 on."""
    return _zipped(_contents(_WRAPPER_MAIN, wrapper_sources()), zipfile.ZIP_DEFLATED)


def wrapper_sources() -> set[Path]:
    """The files that the wrapper consists of."""
    return {*(_PACKAGE / name for name in _SHARED_WITH_NODES), *(_PACKAGE / "node").glob("*.py")}


def ensure_wrapper(blobs: Blobs) -> str:
    """The wrapper's key in the store; it is sent if it is missing."""
    content = bundle()
    key = wrapper_key(hashlib.sha256(content).hexdigest())
    if not is_fresh(blobs, key):
        blobs.put(key, content)
    return key


def waiter_file(folder: Path) -> Path:
    """The waiter in `folder`, created if it is missing. A job that has waited for days continues
    with the program it started with, even if Edgeloop has been updated meanwhile."""
    contents = _contents(_WAITER_MAIN, (_PACKAGE / name for name in _WAITER_FILES))
    file = folder / f"waiter-{hashlib.sha256(repr(contents).encode()).hexdigest()[:16]}.zip"
    content = _zipped(contents, zipfile.ZIP_STORED)  # a waiting process then need not load zlib
    if not file.is_file() or file.read_bytes() != content:  # a power cut may have left it empty
        write_atomic(file, content, durable=True)
    return file


def _contents(main: str, files: Iterable[Path]) -> dict[str, bytes]:
    named = {f"edgeloop/{file.relative_to(_PACKAGE).as_posix()}": file for file in files}
    sources = {name: named[name].read_bytes() for name in sorted(named)}
    return {"__main__.py": main.encode(), **sources}


def _zipped(contents: Mapping[str, bytes], compression: int, mode: int = 0o644) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = compression
            entry.external_attr = mode << 16
            archive.writestr(entry, content, compresslevel=6)
    return target.getvalue()


def packed(contents: Mapping[str, bytes]) -> bytes:
    """A zip file for the owner alone. The same contents give the same bytes."""
    return _zipped(dict(sorted(contents.items())), zipfile.ZIP_DEFLATED, mode=0o600)


def bootstrap_command(python: str = "python3", access: Access | None = None) -> list[str]:
    """The command for a node that has Python 3.8 or newer and nothing of ours: it fetches the
    wrapper from the store once, checks it, and becomes it. For a compute that shows variables to
    too many, the variable may be a link to a file with its content, and an argument added to the
    command the path of such a file; with another one, `once`, that is removed as soon as it was
    read.

    `python` and `python3` are looked for under either name; any other value is used as it is. With
    `access`, the command is as short as that kind of store allows.
    """
    names = _USUAL if python in ("python", "python3") else (python,)
    first = [name for name in names if name == python]
    words = [name if "$" in name else shlex.quote(name) for name in dict.fromkeys((*first, *names))]
    simple = access is not None and access.make != "from_url"
    program = _BOOTSTRAP.replace("@CLIENT@", "" if simple else _packed_client())
    script = _FIND_PYTHON.format(names=" ".join(words), program=shlex.quote(program))
    return ["/bin/sh", "-c", script, "edgeloop"]


@cache
def _packed_client() -> str:
    """The client for every kind of store, as text."""
    modules = [
        (f"edgeloop.{name}", (_PACKAGE / f"{name.replace('.', '/')}.py").read_text("utf-8"))
        for name in _CLIENT
    ]
    content = zlib.compress(json.dumps(modules, ensure_ascii=False).encode(), 9)
    return base64.b64encode(content).decode()


# In the order in which they import each other.
_CLIENT = ("_util.retry", "_util.system", "node.identity", "node.clouds")
# The user's Python is the first that there is, and runs the command; the wrapper needs 3.8.
_USUAL = (
    "python",
    "python3",
    '"$CONDA_PREFIX/bin/python"',
    "/opt/conda/bin/python",
    "/opt/miniconda/bin/python",
)
_FIND_PYTHON = """\
own=
for name in {names}; do
  path=$(command -v "$name" 2>/dev/null) || continue
  "$path" -c 'import sys; sys.exit(0 if sys.version_info >= (3, 8) else 64)' 2>/dev/null
  case $? in
    0) if [ -n "$own" ]; then export EDGELOOP_PYTHON="${{EDGELOOP_PYTHON:-$own}}"; fi
       exec "$path" -c {program} "$@";;
    64) own=${{own:-$path}};;
  esac
done
echo "edgeloop: this node has no Python 3.8 or newer${{own:+, only $own}}: jobs need one" >&2
exit 1
"""

# Runs before anything of Edgeloop is available, so it is self-contained. An account of Azure is
# opened by an address alone, or with a token of the machine; for other stores it has a client.
_BOOTSTRAP = """\
import hashlib, json, os, random, sys, tempfile, time
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen
client = "@CLIENT@"
def stop(sentence):
    sys.exit("edgeloop: " + sentence)
if len(sys.argv) > 1:
    try:
        with open(sys.argv[1]) as file:
            os.environ["EDGELOOP_ORDER"] = file.read()
        if sys.argv[2:] == ["once"]:
            os.unlink(sys.argv[1])
    except OSError as error:
        stop("the job's order cannot be read from %s: %s" % (sys.argv[1], error.strerror))
def why(error):
    if isinstance(error, HTTPError):
        return "it answered %d" % error.code
    return str(getattr(error, "strerror", None) or getattr(error, "reason", None) or error)
def persist(action, what, once=False):
    tries, end = 4, time.time() + 120
    while True:
        tries -= 1
        try:
            return action()
        except Exception as error:
            is_final = isinstance(error, HTTPError) and error.code < 500 and error.code != 429
            if is_final or once or not tries:
                stop("%s could not be fetched from the store: %s" % (what, why(error)))
            wait = 4 - tries
            if isinstance(error, HTTPError) and error.code in (429, 503) and time.time() < end:
                asked = error.headers.get("Retry-After") or ""
                tries, wait = tries + 1, min(int(asked), 60) if asked.isdigit() else 5
            time.sleep(wait * random.uniform(1, 1.25))
def linked():
    with urlopen(os.environ["EDGELOOP_ORDER"], timeout=120) as page:
        return page.read().decode()
if os.environ.get("EDGELOOP_ORDER", "")[:4] == "http":
    os.environ["EDGELOOP_ORDER"] = persist(linked, "the job's order")
try:
    order = json.loads(os.environ["EDGELOOP_ORDER"])
    key, make, options = order["wrapper"], order["access"]["make"], dict(order["access"]["options"])
except (KeyError, ValueError):
    stop("EDGELOOP_ORDER is missing or cannot be read")
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
    ask = Request(place + "?" + urlencode(fields), headers=heads)
    with urlopen(ask, timeout=30) as page:
        return json.load(page)["access_token"]
def from_azure():
    address = "/".join([options["endpoint"].rstrip("/"), options["container_name"], quote(key)])
    heads = {"x-ms-version": "2021-12-02"}
    if make == "AzureIdentity":
        heads["Authorization"] = "Bearer " + token(options.get("client_id", ""))
    else:
        address += "?" + options["sas_key"]
    with urlopen(Request(address, headers=heads), timeout=120) as page:
        return page.read()
def from_client():
    import base64, types, zlib
    for package in ("edgeloop", "edgeloop._util", "edgeloop.node"):
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = []
    for module, source in json.loads(zlib.decompress(base64.b64decode(client))):
        made = sys.modules[module] = types.ModuleType(module)
        exec(compile(source, module, "exec"), made.__dict__)
    return made.open_remote(make, options).read(key)
def fetch():
    if make == "LocalStore":
        with open(os.path.join(options["folder"], key), "rb") as file:
            content = file.read()
    else:
        content = (from_client if client else from_azure)()
    os.makedirs(place, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=place)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(part, path)
if not good():
    persist(fetch, "the wrapper", once=bool(client) or make == "LocalStore")
if not good():
    stop("the wrapper in the store is damaged: submit the job again")
try:
    os.utime(path)
except OSError:
    pass
os.execv(sys.executable, [sys.executable, path])
"""


# Edgeloop itself, for jobs that run it on machines where it is not installed.
#
# Its files are stored once per content, like code, and a node unpacks them once. What they require
# is in the environment that the compute builds, or in the one that a job names.


NAME = "edgeloop"
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([\w-]+)["']""")
_PINS = Path(__file__).with_name("pins.txt")
_OTHERS = re.compile(r"edgeloop\s*\[([^\]]*)\]")


@cache
def package_snapshot() -> CodeSnapshot:
    """The installed package, from a wheel or an editable checkout, as a folder for PYTHONPATH. Its
    metadata comes along: a search on a node reads there what the trainings it submits require."""
    contents = {
        f"{NAME}/{path.relative_to(_PACKAGE).as_posix()}": path.read_bytes()
        for path in _PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    distribution = _installed()
    metadata = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    contents[f"{NAME}-{distribution.version}.dist-info/METADATA"] = metadata.encode()
    return CodeSnapshot(tuple(CodeFile.of(name, contents[name]) for name in sorted(contents)))


def edgeloop_requirements(*extras: str) -> tuple[str, ...]:
    """What Edgeloop and some of its extras need, as pip reads it, without Edgeloop itself."""
    return tuple(sorted(set(_requirements(set(extras)))))


def pinned(requirements: Iterable[str]) -> tuple[str, ...]:
    """The same in the versions that Edgeloop is tested with, so that an image that is built today
    holds what one of last month does."""
    lines = [line.partition("==") for line in _PINS.read_text("utf-8").splitlines()]
    versions = {name.lower(): version for name, is_pin, version in lines if is_pin}
    found = []
    for text in requirements:
        name = re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]
        package = re.split(r"[\s<>=!~]", text, maxsplit=1)[0]  # with its extras
        version = versions.get(name.lower())
        found.append(f"{package}=={version}" if version else text)
    return tuple(found)


def _requirements(extras: Collection[str]) -> Iterator[str]:
    for line in _installed().requires or ():
        text, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        if extra and extra[1] not in extras:
            continue
        others = _OTHERS.match(text)
        if others:  # an extra that consists of others
            inner = {name.strip() for name in others[1].split(",")}
            yield from _requirements(inner - set(extras))
        else:
            yield text.strip()


def _installed() -> Distribution:
    try:
        return distribution(NAME)
    except PackageNotFoundError:
        reason = "Edgeloop has no metadata here, so it cannot travel with a job: install it by pip"
        raise BadInput(reason=reason) from None
