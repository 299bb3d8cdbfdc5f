"""Who a job is to a store in the cloud, and what it does when the way there is bad.

Azurite checks keys and signatures; a signature for S3 is compared with that of Amazon's package,
because the server that plays S3 checks none. Services that give out tokens are played here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from edgeloop.errors import BlobMissing, StoreRefused, StoreUnavailable
from edgeloop.node import clouds as node_s3
from edgeloop.store import Access, open_from_job, open_store, parse_location, url_from_job
from edgeloop.testing.contracts.blobs import ODD_NAMES, listed
from tests.peers.azurite import Azurite
from tests.peers.certificate import Certificate
from tests.peers.s3 import S3
from tests.peers.service import Reply, Service
from tests.store.test_identity import Credential


@pytest.fixture
def service(clean_environment: None) -> Iterator[Service]:
    with Service() as made:
        yield made


@pytest.fixture
def setenv(monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> Callable[..., None]:
    def set_all(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


def as_json(content: object) -> Reply:
    return 200, {}, json.dumps(content).encode()


# Azure


def test_an_account_s_key_signs_every_kind_of_request(
    azurite: Azurite, setenv: Callable[..., None], tmp_path: Path
):
    account = azurite.new_account()
    open_store(parse_location(azurite.connection_string_of(account))).blobs.put("x", b"")
    setenv(
        AZURE_STORAGE_ACCOUNT_NAME=account,
        AZURE_STORAGE_ACCOUNT_KEY=azurite.key,
        AZURE_STORAGE_ENDPOINT=azurite.blob_endpoint_of(account),
    )
    blobs = url_from_job("az://models/a prefix")
    for name in ODD_NAMES:
        blobs.put(f"dir/{name}", name.encode())
    assert listed(blobs, "dir/") == sorted(f"dir/{name}" for name in ODD_NAMES)
    (tmp_path / "large").write_bytes(b"0123456789" * 2_000_000)
    blobs.put("large", tmp_path / "large")
    blobs.get("large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()
    assert blobs.read_range("large", 9, 3) == b"901"
    assert (blobs.create("once", b"1"), blobs.create("once", b"2")) == (True, False)
    setenv(AZURE_STORAGE_ACCOUNT_KEY=base64.b64encode(b"another").decode())
    with pytest.raises(StoreRefused):
        url_from_job("az://models").read("x")


@pytest.mark.parametrize("name", ["IDENTITY_ENDPOINT", "MSI_ENDPOINT"])
def test_the_identity_of_a_node_is_asked_once_for_many_requests(
    name: str,
    azure_storage: Azurite,
    azure_certificate: Certificate,
    service: Service,
    setenv: Callable[..., None],
):
    account = azure_storage.new_account()
    options = {
        "endpoint": azure_storage.blob_endpoint_of(account),
        "container_name": "models",
        "account_name": account,
        "client_id": "the-cluster",
    }
    setenv(
        SSL_CERT_FILE=str(azure_certificate.file), REQUESTS_CA_BUNDLE=str(azure_certificate.file)
    )
    open_store(parse_location(azure_storage.connection_string_of(account))).blobs.put("x", b"1")
    service.gives(as_json({"access_token": Credential().get_token().token}))
    setenv(**{name: f"{service.url}/token", "IDENTITY_HEADER": "h", "MSI_SECRET": "h"})
    blobs = open_from_job(Access("AzureIdentity", options))
    assert blobs.read("x") == b"1"
    blobs.put("y", b"2")
    assert listed(blobs) == ["x", "y"]
    [(_, path, heads, _)] = service.asked
    asked = parse_qs(urlsplit(path).query)
    assert asked["resource"] == ["https://storage.azure.com"]
    assert "h" in (heads.get("x-identity-header"), heads.get("secret"))
    assert "the-cluster" in str(asked)


def test_a_node_without_an_identity_is_refused_in_a_sentence(
    service: Service, setenv: Callable[..., None]
):
    service.gives((400, {}, b"{}"))
    setenv(IDENTITY_ENDPOINT=f"{service.url}/token")
    options = {"endpoint": "https://a.invalid", "container_name": "m", "account_name": "a"}
    with pytest.raises(StoreRefused, match="gives this node no credentials"):
        open_from_job(Access("AzureIdentity", options)).read("x")


def test_an_application_and_a_pod_log_in_at_the_directory(
    service: Service, setenv: Callable[..., None], tmp_path: Path
):
    service.reply = lambda method, path: (
        as_json({"access_token": "t"}) if "oauth2" in path else (200, {}, b"content")
    )
    (tmp_path / "token").write_text("of the pod\n")
    base = {"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "app", "AZURE_ENDPOINT": service.url}
    setenv(**base, AZURE_AUTHORITY_HOST=service.url, AZURE_FEDERATED_TOKEN_FILE=f"{tmp_path}/token")
    assert url_from_job("az://models").read("x") == b"content"
    setenv(AZURE_CLIENT_SECRET="secret")
    assert url_from_job("az://models").read("x") == b"content"
    forms = [parse_qs(body.decode()) for _, path, _, body in service.asked if "oauth2" in path]
    assert [form.get("client_assertion") for form in forms] == [["of the pod"], None]
    assert forms[1]["client_secret"] == ["secret"]
    assert service.asked[1][2]["authorization"] == "Bearer t"


# S3


@pytest.mark.parametrize("token", ["", "of the session"])
def test_a_signature_is_the_one_that_amazon_s_own_package_makes(
    token: str, monkeypatch: pytest.MonkeyPatch
):
    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    now = datetime.now(UTC)

    class Now:
        @staticmethod
        def strftime(form: str, _: object) -> str:
            return now.strftime(form)

        gmtime = staticmethod(lambda: None)

    monkeypatch.setattr(node_s3, "time", Now)
    monkeypatch.setattr(auth, "get_current_datetime", lambda *_: now.replace(tzinfo=None))
    keys = node_s3.Keys("id", "secret", token)
    url = "https://s3.eu-west-1.amazonaws.com/bucket/a%20b/%E4%BD%A0~%27?list-type=2&prefix=a%2Fb"
    remote = node_s3.S3Remote(url, "", "eu-west-1", lambda: keys)
    _, ours = remote.sign("PUT", url, {"Content-Length": "4"}, b"body")
    request = AWSRequest("PUT", url, data=b"body")
    request.headers["x-amz-content-sha256"] = ours["x-amz-content-sha256"]
    signer = auth.S3SigV4Auth(Credentials("id", "secret", token or None), "s3", "eu-west-1")
    signer.add_auth(request)
    signature = lambda text: text.rpartition("Signature=")[2]  # noqa: E731
    assert signature(ours["Authorization"]) == signature(request.headers["Authorization"])


def test_a_machine_a_container_and_a_pod_of_aws_get_their_keys(
    service: Service, s3: S3, setenv: Callable[..., None], tmp_path: Path
):
    given = {"AccessKeyId": "id", "SecretAccessKey": "secret", "Token": "session"}
    role = {"Credentials": {**given, "SessionToken": "session"}}
    (tmp_path / "token").write_text("of the pod")

    def reply(method: str, path: str) -> Reply:
        if path == "/latest/api/token":
            return 200, {}, b"of the machine"
        if path.endswith("security-credentials/"):
            return 200, {}, b"the-role"
        if method == "POST":
            answer = {"AssumeRoleWithWebIdentityResult": role}
            return as_json({"AssumeRoleWithWebIdentityResponse": answer})
        return as_json(given)

    service.reply = reply
    setenv(AWS_ENDPOINT=s3.url, AWS_ALLOW_HTTP="true", AWS_METADATA_ENDPOINT=service.url)
    place = f"s3://{s3.make_bucket()}"
    ways = (
        {},
        {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{service.url}/task"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": f"{tmp_path}/token", "AWS_ROLE_ARN": "arn:x"}
        | {"AWS_ENDPOINT_URL_STS": service.url},
    )
    for number, variables in enumerate(ways):
        setenv(**variables)
        blobs = url_from_job(place)
        blobs.put("key", str(number).encode())
        assert blobs.read("key") == str(number).encode()
    asked = [(method, path) for method, path, _, _ in service.asked]
    roles = "/latest/meta-data/iam/security-credentials/"
    machine = [("PUT", "/latest/api/token"), ("GET", roles), ("GET", f"{roles}the-role")]
    assert asked == [*machine, ("GET", "/task"), ("POST", "/")]


# A bad way to the store


def in_azure(service: Service) -> Access:
    options = {"endpoint": f"{service.url}/a", "container_name": "models", "account_name": "a"}
    return Access("AzureStore", {**options, "sas_key": "sv=1&sig=verysecret"})


def test_a_request_is_repeated_until_it_is_answered(service: Service):
    service.gives((503, {}, b""), None, (500, {}, b""), (200, {}, b"content"))
    assert open_from_job(in_azure(service)).read("key") == b"content"
    assert len(service.asked) == 4


def test_a_store_that_never_answers_is_given_up_without_its_signature(service: Service):
    service.gives((500, {}, b"<Code>InternalError</Code><Message>Later.\nsig=verysecret</Message>"))
    with pytest.raises(StoreUnavailable, match="Later") as caught:
        open_from_job(in_azure(service)).read("key")
    assert "verysecret" not in str(caught.value)
    assert len(service.asked) == 5
    service.close()
    with pytest.raises(StoreUnavailable, match="refused"):
        open_from_job(in_azure(service)).read("key")


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(service: Service, tmp_path: Path):
    part = {"Content-Range": "bytes 0-9/20", "ETag": '"1"'}
    new = (206, {"Content-Range": "bytes 0-2/3", "ETag": '"2"'}, b"new")
    service.gives((206, part, b"0123456789"), (412, {}, b""), new)
    open_from_job(in_azure(service)).get("key", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"new"


def test_a_file_that_comes_in_part_is_not_kept(service: Service, tmp_path: Path):
    cut = (206, {"Content-Range": "bytes 0-9/20", "ETag": '"1"'}, b"0123456789")
    service.gives(cut, (206, {"Content-Range": "bytes 10-19/20"}, b"01"))
    with pytest.raises(StoreUnavailable, match="came in part"):
        open_from_job(in_azure(service)).get("key", tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


def test_a_proxy_leads_to_the_store(service: Service, setenv: Callable[..., None]):
    setenv(http_proxy=f"http://me:pass@{service.url[7:]}", no_proxy="")
    service.gives((404, {}, b""))
    options = {"endpoint": "http://store.invalid/a", "container_name": "m", "account_name": "a"}
    with pytest.raises(BlobMissing):
        open_from_job(Access("AzureStore", {**options, "sas_key": "s=1"})).read("key")
    [(_, path, heads, _)] = service.asked
    assert path == "http://store.invalid/a/m/key?s=1"
    assert heads["proxy-authorization"] == f"Basic {base64.b64encode(b'me:pass').decode()}"
