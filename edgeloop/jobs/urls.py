"""URLs of data that a job reads or writes where it is, and how they are written.

`az://container/path`                      the project's storage account, or AZURE_STORAGE_ACCOUNT
`abfss://container@account.dfs.…/path`     any account; also `wasbs:` and `https://account.blob.…/`
`azureml://datastores/NAME/paths/path`     a datastore of the workspace, or of `datastore.json`
`s3://bucket/path`                         with the credentials of the machine that runs the job
`gs://bucket/path`                         only on a compute that serves such URLs itself
`file:///folder`                           a folder that this machine sees
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

INPUT_MODES = ("mount", "download")
OUTPUT_MODES = ("mount", "upload")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_DATASTORE = re.compile(
    r"azureml://(?:subscriptions/(?P<subscription>[^/]+)/resource[gG]roups/(?P<group>[^/]+)/"
    r"(?:providers/Microsoft\.MachineLearningServices/)?workspaces/(?P<workspace>[^/]+)/)?"
    r"datastores/(?P<container>[A-Za-z0-9_-]+)/paths/(?P<path>.*)"
)
_IN_ACCOUNT = re.compile(
    r"(?:abfs|wasb)s?://(?P<container>[^/@]+)@(?P<account>[^/@.]+)\.(?:dfs|blob)\."
    r"(?P<suffix>[^/@]+)(?:/(?P<path>.*))?"
)
_BLOB = re.compile(
    r"https://(?P<account>[^/@.]+)\.blob\.(?P<suffix>[^/@]+)/(?P<container>[^/]+)(?:/(?P<path>.*))?"
)
_BUCKET = re.compile(r"(?P<kind>s3|gs|az)://(?P<container>[^/@:]+)(?:/(?P<path>.*))?")
_FILE = re.compile(r"file:(?://)?(?P<path>/.*)")
_FORMS = (
    "an azureml://datastores/NAME/paths/…, az://, abfss://, https://ACCOUNT.blob…, s3://, gs:// or "
    "file:/// URL"
)


@dataclass(frozen=True)
class UrlParts:
    """A URL, taken apart. `container` is also the name of a bucket or a datastore."""

    kind: str  # azureml, azure, s3, gs or file
    container: str
    path: str  # without slashes at its ends; of file: the whole path
    account: str = ""
    endpoint: str = ""
    is_file: bool = False  # its last part has an ending, and no slash follows
    workspace: tuple[str, ...] = ()  # of a datastore's long URL: subscription, group and name


@dataclass(frozen=True)
class RemotePath:
    """Data of a job that is not a dataset of the store: its name in the job, and where it is.

    `mode` is empty if the compute may choose.
    """

    name: str
    url: str
    mode: str = ""

    def document(self) -> dict[str, str]:
        """As it is written in a job file."""
        mode = {"mode": self.mode} if self.mode else {}
        return {"name": self.name, "url": self.url, **mode}


def is_remote(value: object) -> bool:
    """Whether an item of `data` or `writes` is a URL rather than a dataset's name."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, str) and _SCHEME.match(_split_name(value)[1]) is not None


def read_remote(value: object, is_output: bool = False) -> RemotePath:
    """`URL`, `NAME=URL`, or a mapping with `url`, `name` and `mode`; raises ValueError."""
    if isinstance(value, Mapping):
        unknown = [key for key in value if key not in ("url", "name", "mode")]
        if unknown or not isinstance(value.get("url"), str):
            what = f"has the unknown key {unknown[0]!r}" if unknown else "needs a 'url'"
            raise ValueError(f"has an entry that {what}: it may have url, name and mode")
        name, url = str(value.get("name") or ""), str(value["url"])
        mode = str(value.get("mode") or "")
    else:
        (name, url), mode = _split_name(str(value)), ""
    modes = OUTPUT_MODES if is_output else INPUT_MODES
    if mode and mode not in modes:
        raise ValueError(f"has a mode {mode!r}: it must be {' or '.join(modes)}")
    parts = parse_url(url)
    return RemotePath(_checked_name(name or _last_part(parts), url), url, mode)


def parse_url(url: str) -> UrlParts:
    """Raises ValueError, which never quotes what may be a secret."""
    shown = re.split(r"[?#]", url)[0]
    if "?" in url or "#" in url:
        reason = "may not have a query such as a signature, because records and logs would show it"
        raise ValueError(f"has a URL that {reason}: {shown}")
    if not url.isprintable() or "\\" in url:
        raise ValueError("has a URL with a backslash or an unprintable character")
    found = None
    for pattern in (_DATASTORE, _IN_ACCOUNT, _BLOB, _BUCKET, _FILE):
        found = found or pattern.fullmatch(url)
    if found is None:
        scheme = url.partition(":")[0]
        raise ValueError(f"has a URL of the form {scheme}:… that is not {_FORMS}")
    fields = {name: value or "" for name, value in found.groupdict().items()}
    path = fields["path"] if found.re is _FILE else fields["path"].strip("/")
    if any(part in ("..", ".") for part in path.split("/")) or "//" in path:
        raise ValueError(f"has a URL whose path holds '.', '..' or an empty part: {shown}")
    last = path.rstrip("/").rpartition("/")[2]
    is_file = "." in last.strip(".") and not url.endswith("/")
    if found.re is _FILE:
        return UrlParts("file", "", path.rstrip("/") or "/", is_file=is_file)
    if found.re is _DATASTORE:
        workspace = tuple(fields[name] for name in ("subscription", "group", "workspace"))
        named = workspace if any(workspace) else ()
        return UrlParts("azureml", fields["container"], path, is_file=is_file, workspace=named)
    if found.re is _BUCKET:
        kind = "azure" if fields["kind"] == "az" else fields["kind"]
        return UrlParts(kind, fields["container"], path, is_file=is_file)
    endpoint = f"https://{fields['account']}.blob.{fields['suffix']}"
    return UrlParts("azure", fields["container"], path, fields["account"], endpoint, is_file)


def _split_name(text: str) -> tuple[str, str]:
    """`faces=s3://…`; an equals sign inside the URL belongs to it."""
    name, equals, url = text.partition("=")
    if equals and ":" not in name:
        return name.strip(), url.strip()
    return "", text.strip()


def _last_part(parts: UrlParts) -> str:
    last = parts.path.rstrip("/").rpartition("/")[2] or parts.container
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or "data"


def _checked_name(name: str, url: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*", name)
    if not is_plain or len(name) > 100:
        expected = "letters, digits, '.', '_', '-' and '/'"
        raise ValueError(f"has the name {name!r} for {url}: names may hold {expected}")
    return name
