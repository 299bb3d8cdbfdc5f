"""URLs as data of a job: what each form means, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.errors import BadJob
from edgeloop.jobs.spec import RemotePath, UrlParts, changed, parse_url, read_remote, read_spec

AZURE = "https://acme.blob.core.windows.net"


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("az://faces/a/b", UrlParts("azure", "faces", "a/b")),
        (f"{AZURE}/faces/a", UrlParts("azure", "faces", "a", "acme", AZURE)),
        ("abfss://c@acme.dfs.core.windows.net/a/", UrlParts("azure", "c", "a", "acme", AZURE)),
        ("wasbs://c@acme.blob.core.windows.net", UrlParts("azure", "c", "", "acme", AZURE)),
        ("azureml://datastores/lab/paths/b.zip", UrlParts("azureml", "lab", "b.zip", is_file=True)),
        (
            "azureml://subscriptions/1/resourcegroups/g/workspaces/w/datastores/lab/paths/v1.2/",
            UrlParts("azureml", "lab", "v1.2", workspace=("1", "g", "w")),
        ),
        ("s3://bucket/a b/c", UrlParts("s3", "bucket", "a b/c")),
        ("gs://bucket", UrlParts("gs", "bucket", "")),
        ("file:///srv/faces/", UrlParts("file", "", "/srv/faces")),
    ],
)
def test_a_url_is_taken_apart(url: str, parts: UrlParts):
    assert parse_url(url) == parts


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/x", "of the form ftp:"),
        ("file:relative", "of the form file:"),
        ("s3://user:word@bucket/x", "of the form s3:"),
        ("az://c/../other", "'..'"),
        ("azureml://datastores/lab/x", "of the form azureml:"),
        (f"{AZURE}/c/x?sv=1&sig=verysecret", "may not have a query"),
        ("s3://b/a\nb", "unprintable"),
        ({"url": "s3://b/x", "mode": "upload"}, "must be mount or download"),
        ({"url": "s3://b/x", "path": "y"}, "unknown key 'path'"),
        ({"name": "x"}, "needs a 'url'"),
        ("../x=s3://b/y", "has the name '../x'"),
    ],
)
def test_what_cannot_be_used_is_refused_without_showing_a_secret(url: object, says: str):
    with pytest.raises(ValueError) as refused:
        read_remote(url)
    assert says in str(refused.value)
    assert "verysecret" not in str(refused.value)


def test_a_job_file_has_datasets_and_urls_side_by_side(tmp_path: Path):
    (tmp_path / "train.py").write_text("")
    file = tmp_path / "job.yaml"
    file.write_text(
        "script: train.py\n"
        "data: [working/faces@3, 'ref=s3://b/refs/', {url: 'az://c/masks', mode: download}]\n"
        "writes: [working/small, {url: 'gs://b/out', name: crops}]\n"
        "mode: mount\n"
    )
    spec = read_spec(file)
    assert (spec.data, spec.writes) == (("working/faces@3",), ("working/small",))
    assert spec.sources == (
        RemotePath("ref", "s3://b/refs/", "mount"),
        RemotePath("masks", "az://c/masks", "download"),
    )
    assert spec.targets == (RemotePath("crops", "gs://b/out", "mount"),)
    assert changed(spec) == spec, "a record holds all of it"
    file.write_text("script: train.py\ndata: 'https://a.blob.x/c/p?sig=1'\n")
    with pytest.raises(BadJob, match="data has a URL that may not have a query"):
        read_spec(file)
