"""Who this machine is to a store in the cloud, as its environment says: keys, tokens, identities.

The same variables that obstore reads on the machine that submits. Tokens and keys that expire are
asked for again before they do.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from edgeloop.store.identity import plain_http_allowed, token_endpoint
from edgeloop.store.node.azure import AzureRemote
from edgeloop.store.node.remote import Remote, RemoteError
from edgeloop.store.node.rsa import signed_assertion
from edgeloop.store.node.s3 import GoogleRemote, Keys, S3Remote
from edgeloop.store.node.transport import Answer, Transport, persistently

Secret = TypeVar("Secret")

_KEPT_S = 5 * 60.0  # services renew what they give at least that long before it expires
_STORAGE = "https://storage.azure.com"
_AWS_METADATA = "http://169.254.169.254"
_AWS_CONTAINERS = "http://169.254.170.2"
_GOOGLE_METADATA = "http://metadata.google.internal"
_GOOGLE_TOKENS = "https://oauth2.googleapis.com/token"
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class Renewed(Generic[Secret]):
    """A secret that is asked for again when it has been kept for a while."""

    def __init__(self, ask: Callable[[], Secret]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._known: list[Secret] = []
        self._until = 0.0

    def __call__(self) -> Secret:
        with self._lock:
            if not self._known or time.monotonic() >= self._until:
                self._known = [self._ask()]
                self._until = time.monotonic() + _KEPT_S
            return self._known[0]


def open_remote(make: str, options: Mapping[str, str]) -> Remote:
    """The store that an `Access` describes. Raises ValueError if it cannot be opened here."""
    if make == "from_url":
        return remote_at(options["url"])
    if make not in ("AzureStore", "AzureIdentity"):
        raise ValueError(f"this wrapper does not know how to open the store: {make}")
    token = None
    if make == "AzureIdentity":
        client_id = options.get("client_id", "")
        token = Renewed(lambda: managed_identity_token(client_id))
    place = (options["endpoint"], options["container_name"])
    return AzureRemote(*place, sas=options.get("sas_key", ""), token=token)


def remote_at(url: str, environ: Mapping[str, str] = os.environ) -> Remote:
    """`s3://`, `gs://`, `az://`, `abfs(s)://`, or the https address of an account or a bucket."""
    parts = urlsplit(url)
    host, path = parts.hostname or "", parts.path.strip("/")
    if parts.scheme == "s3":
        return _s3(environ, parts.netloc, path)
    if parts.scheme == "gs":
        return _google(environ, parts.netloc, path)
    if parts.scheme == "az":
        return _azure(environ, parts.netloc, path)
    account = re.match(r"([a-z0-9-]+)\.(?:blob|dfs)\.", host)
    if parts.scheme in ("abfs", "abfss") and not parts.username:
        return _azure(environ, parts.netloc, path)
    if parts.scheme in ("abfs", "abfss") and account:
        return _azure(environ, parts.username or "", path, account[1], host)
    if parts.scheme == "https" and account:
        container, _, rest = path.partition("/")
        return _azure(environ, container, rest, account[1], host)
    bucket = re.match(r"(?:(.+)\.)?s3[.-]([a-z0-9-]+)\.amazonaws\.com$", host)
    if parts.scheme == "https" and bucket:
        name, _, rest = path.partition("/") if not bucket[1] else (bucket[1], "", path)
        return _s3({**environ, "AWS_REGION": bucket[2]}, name, rest)
    raise ValueError(f"a job cannot open {parts.scheme}://{host}: use s3://, gs:// or az://")


# Azure


def _azure(
    environ: Mapping[str, str], container: str, prefix: str, account: str = "", host: str = ""
) -> AzureRemote:
    account = account or _first(environ, "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
    endpoint = _first(environ, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    if not endpoint and not account:
        raise ValueError("AZURE_STORAGE_ACCOUNT_NAME is not set on this node")
    name = host.replace(".dfs.", ".blob.", 1) or f"{account}.blob.core.windows.net"
    endpoint = endpoint or f"https://{name}"
    key = _first(
        environ,
        *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"),
        *("AZURE_ACCOUNT_KEY", "AZURE_ACCESS_KEY"),
    )
    sas = _first(
        environ,
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_SAS_KEY",
        "AZURE_SAS_TOKEN",
    )
    token = None if key or sas else Renewed(lambda: _azure_token(environ))
    return AzureRemote(endpoint, container, prefix, sas, account, key, token)


def _azure_token(environ: Mapping[str, str]) -> str:
    """A token given as it is, else of an application, of a Kubernetes pod, or of the machine."""
    given = _first(environ, "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_BEARER_TOKEN", "AZURE_TOKEN")
    if given:
        return given
    tenant = _first(environ, "AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID")
    client = _first(environ, "AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID")
    secret = _first(environ, "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET")
    file = _first(environ, "AZURE_FEDERATED_TOKEN_FILE", "AZURE_STORAGE_FEDERATED_TOKEN_FILE")
    if not (tenant and client and (secret or file)):
        return managed_identity_token(client, environ)
    authority = environ.get("AZURE_AUTHORITY_HOST") or "https://login.microsoftonline.com"
    form = {"grant_type": "client_credentials", "client_id": client}
    form["scope"] = f"{_STORAGE}/.default"
    if secret:
        form["client_secret"] = secret
    else:
        form.update(client_assertion_type=_BEARER, client_assertion=_text_of(file))
    return _posted(f"{authority.rstrip('/')}/{quote(tenant)}/oauth2/v2.0/token", form)


def managed_identity_token(client_id: str = "", environ: Mapping[str, str] = os.environ) -> str:
    place = token_endpoint(client_id, environ)
    answer = _asked("GET", f"{place.address}?{urlencode(place.query)}", place.headers)
    return str(_json(answer)["access_token"])


# S3


def _s3(environ: Mapping[str, str], bucket: str, prefix: str) -> S3Remote:
    region = _first(environ, "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = _first(environ, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    is_virtual = _is_true(environ, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    if not endpoint:
        host = f"s3.{region}.amazonaws.com"
        address = f"https://{bucket}.{host}" if is_virtual else f"https://{host}/{bucket}"
    else:
        address = endpoint if is_virtual else f"{endpoint.rstrip('/')}/{bucket}"
    if _is_true(environ, "AWS_SKIP_SIGNATURE"):
        return S3Remote(address, prefix, region, lambda: None, plain_http_allowed(environ))
    keys: Callable[[], Keys | None] = Renewed(lambda: _aws_keys(environ, region))
    return S3Remote(address, prefix, region, keys, plain_http_allowed(environ))


def _aws_keys(environ: Mapping[str, str], region: str) -> Keys:
    """Given as they are, else of a pod's role, of a container's task, or of the machine."""
    given = _first(environ, "AWS_ACCESS_KEY_ID"), _first(environ, "AWS_SECRET_ACCESS_KEY")
    if all(given):
        return Keys(*given, _first(environ, "AWS_SESSION_TOKEN", "AWS_TOKEN"))
    if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environ.get("AWS_ROLE_ARN"):
        return _role_keys(environ, region)
    relative = environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    address = environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if relative or address:
        place = address or f"{_AWS_CONTAINERS}{relative}"
        return _keys(_json(_asked("GET", place, _task(environ))))
    metadata = environ.get("AWS_METADATA_ENDPOINT") or _AWS_METADATA
    limit = {"X-aws-ec2-metadata-token-ttl-seconds": "600"}
    session = _asked("PUT", f"{metadata}/latest/api/token", limit).body.decode()
    proof = {"X-aws-ec2-metadata-token": session}
    roles = f"{metadata}/latest/meta-data/iam/security-credentials/"
    role = _asked("GET", roles, proof).body.decode().strip()
    return _keys(_json(_asked("GET", roles + quote(role), proof)))


def _task(environ: Mapping[str, str]) -> dict[str, str]:
    token = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    file = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "")
    token = token or (_text_of(file) if file else "")
    return {"Authorization": token} if token else {}


def _role_keys(environ: Mapping[str, str], region: str) -> Keys:
    form = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": environ["AWS_ROLE_ARN"],
        "RoleSessionName": environ.get("AWS_ROLE_SESSION_NAME") or "edgeloop",
        "WebIdentityToken": _text_of(environ["AWS_WEB_IDENTITY_TOKEN_FILE"]),
    }
    place = environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
    answer = _asked("POST", place, {"Accept": "application/json", **_FORM}, _form(form))
    response = _json(answer)["AssumeRoleWithWebIdentityResponse"]
    return _keys(response["AssumeRoleWithWebIdentityResult"]["Credentials"])


def _keys(found: Mapping[str, Any]) -> Keys:
    token = found.get("Token") or found.get("SessionToken") or ""
    return Keys(str(found["AccessKeyId"]), str(found["SecretAccessKey"]), str(token))


# Google


def _google(environ: Mapping[str, str], bucket: str, prefix: str) -> GoogleRemote:
    file = _first(
        environ,
        *("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
        "GOOGLE_APPLICATION_CREDENTIALS",
    )
    text = environ.get("GOOGLE_SERVICE_ACCOUNT_KEY") or (_text_of(file) if file else "{}")
    account = json.loads(text)
    base = environ.get("GOOGLE_BASE_URL") or account.get("gcs_base_url")
    address = f"{(base or 'https://storage.googleapis.com').rstrip('/')}/{bucket}"
    is_open = account.get("disable_oauth") or _is_true(environ, "GOOGLE_SKIP_SIGNATURE")
    token = Renewed(lambda: "" if is_open else _google_token(environ, account))
    return GoogleRemote(address, prefix, token, plain_http_allowed(environ))


def _google_token(environ: Mapping[str, str], account: Mapping[str, str]) -> str:
    """Of a service account, of a user who logged in, or of the machine."""
    place = account.get("token_uri") or _GOOGLE_TOKENS
    if account.get("private_key"):
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": signed_assertion(account, _GOOGLE_SCOPE, place),
        }
        return _posted(place, form)
    if account.get("refresh_token"):
        names = ("client_id", "client_secret", "refresh_token")
        form = {"grant_type": "refresh_token", **{name: account[name] for name in names}}
        return _posted(place, form)
    host = environ.get("GCE_METADATA_HOST")
    metadata = f"http://{host}" if host else _GOOGLE_METADATA
    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    answer = _asked("GET", metadata + path, {"Metadata-Flavor": "Google"})
    return str(_json(answer)["access_token"])


# Asking


_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def _form(fields: Mapping[str, str]) -> bytes:
    return urlencode(fields).encode()


def _posted(url: str, form: Mapping[str, str]) -> str:
    return str(_json(_asked("POST", url, _FORM, _form(form)))["access_token"])


def _asked(method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
    """A machine's own services speak plain HTTP, and no proxy leads to them."""
    transport = Transport(allow_http=True, is_direct=url.startswith("http:"))
    answer = persistently(lambda: transport.send(method, url, headers, body), url)
    if answer.status >= 300:
        reason = f"{urlsplit(url).hostname} gives this node no credentials ({answer.status})"
        raise RemoteError(401, "", reason)
    return answer


def _json(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError:
        raise RemoteError(401, "", "this node's credentials cannot be read") from None


def _text_of(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123
            return opened.read().strip()
    except OSError as error:
        raise RemoteError(401, "", f"{file} cannot be read: {error.strerror}") from None


def _first(environ: Mapping[str, str], *names: str) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _is_true(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").lower() in ("1", "true")
