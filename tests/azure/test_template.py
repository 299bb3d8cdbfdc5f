"""The infrastructure template, as far as it can be judged without a subscription."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "deploy/azure"
TEMPLATE = json.loads((FOLDER / "main.json").read_text())
RESOURCES: list[dict[str, Any]] = TEMPLATE["resources"]
# What Azure's own expression language offers, as far as it is used.
FUNCTIONS = {
    *("parameters", "variables", "resourceId", "subscriptionResourceId", "reference", "concat"),
    *("toLower", "take", "uniqueString", "guid", "format", "if", "length", "copyIndex"),
    *("resourceGroup", "subscription", "environment"),
}
LONGEST = {"storage": 24, "vault": 24, "registry": 50}


def texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


def expressions(value: object) -> Iterator[str]:
    return (text[1:-1] for text in texts(value) if text.startswith("[") and text.endswith("]"))


def ids_in(expression: str) -> set[str]:
    return set(re.findall(r"resourceId\((?:[^()]|\([^()]*\))*\)", expression)) - set(
        re.findall(r"subscriptionResourceId\([^)]*\)", expression)
    )


def id_of(resource: dict[str, Any]) -> str:
    """How other resources refer to this one."""
    names = resource["name"][1:-1]
    parts = re.findall(r"variables\('\w+'\)|'[^']*'", names.removeprefix("concat("))
    words = [word for part in parts for word in _words(part)]
    return f"resourceId('{resource['type']}', {', '.join(words)})"


def _words(part: str) -> list[str]:
    if part.startswith("variables"):
        return [part]
    return [f"'{word}'" for word in part.strip("'").split("/") if word]


NAMED = [r for r in RESOURCES if r["type"] != "Microsoft.Authorization/roleAssignments"]
IDS = {id_of(resource): resource for resource in NAMED}


def test_every_parameter_and_variable_that_is_used_is_there_and_used():
    used = "\n".join(expressions(TEMPLATE))
    for kind in ("parameters", "variables"):
        names = set(re.findall(rf"\b{kind}\('(\w+)'\)", used))
        assert names == set(TEMPLATE[kind]), kind
    given = json.loads((FOLDER / "parameters.json").read_text())["parameters"]
    assert set(given) <= set(TEMPLATE["parameters"])
    assert all(item["metadata"]["description"] for item in TEMPLATE["parameters"].values())


@pytest.mark.parametrize("expression", sorted(set(expressions(TEMPLATE))))
def test_an_expression_is_balanced_and_calls_what_there_is(expression: str):
    bare = re.sub(r"'[^']*'", "''", expression)
    assert bare.count("(") == bare.count(")") and expression.count("'") % 2 == 0
    assert set(re.findall(r"([A-Za-z]\w*)\(", bare)) <= FUNCTIONS


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda r: f"{r['type']} {r['name'][:40]}")
def test_a_resource_has_a_dated_version_and_waits_for_what_it_refers_to(resource: dict[str, Any]):
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", resource["apiVersion"]), "no preview"
    waits = {text[1:-1] for text in resource.get("dependsOn", ())}
    assert waits <= set(IDS), "it waits for something that is not in the template"
    rest = {key: value for key, value in resource.items() if key not in ("dependsOn", "name")}
    for expression in expressions(rest):
        for found in ids_in(expression):
            assert found in IDS, f"{found} is not in the template"
            assert found in waits, f"it refers to {found} and does not wait for it"


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda r: f"{r['type']} {r['name'][:40]}")
def test_what_may_be_left_out_is_needed_by_nothing_that_is_always_there(resource: dict[str, Any]):
    for text in resource.get("dependsOn", ()):
        condition = IDS[text[1:-1]].get("condition")
        assert condition in (None, resource.get("condition"))


def test_roles_are_named_and_given_once():
    roles = [r for r in RESOURCES if r["type"] == "Microsoft.Authorization/roleAssignments"]
    assert len({role["name"] for role in roles}) == len(roles)
    used = set()
    for role in roles:
        name = re.search(r"variables\('roles'\)\.(\w+)", role["properties"]["roleDefinitionId"])
        assert name is not None
        used.add(name[1])
        assert role["properties"]["principalType"] in (
            "ServicePrincipal",
            "[parameters('peopleAre')]",
        )
    assert used == set(TEMPLATE["variables"]["roles"])
    guid = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    assert all(re.fullmatch(guid, role) for role in TEMPLATE["variables"]["roles"].values())


def test_there_is_no_key_and_no_secret():
    by_type = {resource["type"].partition("/")[0]: resource for resource in reversed(NAMED)}
    assert by_type["Microsoft.Storage"]["properties"]["allowSharedKeyAccess"] is False
    assert by_type["Microsoft.Storage"]["properties"]["allowBlobPublicAccess"] is False
    assert by_type["Microsoft.ContainerRegistry"]["properties"]["adminUserEnabled"] is False
    cluster = by_type["Microsoft.ContainerService"]["properties"]
    assert cluster["disableLocalAccounts"] is True
    assert cluster["oidcIssuerProfile"]["enabled"] is True
    assert cluster["securityProfile"]["workloadIdentity"]["enabled"] is True
    workspace = by_type["Microsoft.MachineLearningServices"]["properties"]
    assert workspace["systemDatastoresAuthMode"] == "identity"
    content = (FOLDER / "main.json").read_text()
    assert not re.search(r"(?i)listkeys|password|secureString|accountKey|sasToken", content)


def test_names_fit_what_azure_allows():
    longest = TEMPLATE["parameters"]["name"]["maxLength"] + 13  # uniqueString gives 13
    for name, limit in LONGEST.items():
        expression = TEMPLATE["variables"][name]
        cut = re.search(r"take\(.*, (\d+)\)", expression)
        assert (int(cut[1]) if cut else longest) <= limit, name
    assert "toLower" in TEMPLATE["variables"]["storage"]


def test_the_datastore_leads_to_the_container_of_the_store():
    from edgeloop.store import AzureLocation

    assert TEMPLATE["variables"]["container"] == AzureLocation("a", "b", "c").container
    [datastore] = [r for r in RESOURCES if r["type"].endswith("/datastores")]
    assert datastore["properties"]["containerName"] == "[variables('container')]"
    assert datastore["name"].endswith("'/edgeloop')]")
