"""The template of a fleet on Azure, as far as it can be judged without a subscription: its
expressions are evaluated as Azure Resource Manager would, for several choices of parameters."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from edgeloop.store import AzureLocation, parse_location

FOLDER = Path(__file__).parents[2] / "deploy/azure"
TEMPLATE = json.loads((FOLDER / "main.json").read_text())
ROLES = "Microsoft.Authorization/roleAssignments"
GROUP = "/subscriptions/1111/resourceGroups/lab"
PEOPLE = ["11111111-aaaa", "22222222-bbbb"]
# What Azure computes, by the properties that the template asks for.
RUNTIME = {
    "Microsoft.Storage/storageAccounts": {
        "primaryEndpoints": {"blob": "https://{name}.blob.core.windows.net/"}
    },
    "Microsoft.ContainerRegistry/registries": {"loginServer": "{name}.azurecr.io"},
    "Microsoft.ManagedIdentity/userAssignedIdentities": {"principalId": "p-1", "clientId": "c-1"},
    "Microsoft.ContainerService/managedClusters": {
        "oidcIssuerProfile": {"issuerURL": "https://issuer/"},
        "identityProfile": {"kubeletidentity": {"objectId": "k-1"}},
    },
}
_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|\d+|[A-Za-z_]\w*|[()\[\],.])")


class Deployment:
    """The template with values for its parameters."""

    def __init__(self, **given: object) -> None:
        self._given = given
        self._index: int | None = None
        self.used: set[tuple[str, str]] = set()
        self.resources = [each for one in TEMPLATE["resources"] for each in self._copies(one)]
        self.outputs = {k: self.value(v["value"]) for k, v in TEMPLATE["outputs"].items()}

    def value(self, written: Any) -> Any:
        if isinstance(written, dict):
            return {key: self.value(item) for key, item in written.items()}
        if isinstance(written, list):
            return [self.value(item) for item in written]
        is_expression = isinstance(written, str) and written[:1] == "[" and written[-1:] == "]"
        return self._evaluate(written[1:-1]) if is_expression else written

    def _copies(self, resource: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if self.value(resource.get("condition", True)) is not True:
            return
        count = self.value(resource["copy"]["count"]) if "copy" in resource else None
        for number in [None] if count is None else range(count):
            self._index = number
            kept = {k: v for k, v in resource.items() if k not in ("condition", "copy")}
            yield self.value(kept)
            self._index = None

    def _evaluate(self, text: str) -> Any:
        tokens, at = [], 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            assert match, f"cannot be read at {text[at:]!r}"
            tokens.append(match[1])
            at = match.end()
        found = self._term(tokens)
        assert not tokens, f"{text!r} goes on with {tokens}"
        return found

    def _term(self, tokens: list[str]) -> Any:
        token = tokens.pop(0)
        if token[0] == "'":
            found: Any = token[1:-1].replace("''", "'")
        elif token.isdigit():
            found = int(token)
        else:
            assert tokens.pop(0) == "(", f"{token} is not a function"
            arguments = []
            while tokens[0] != ")":
                arguments.append(self._term(tokens))
                assert tokens[0] in ",)", f"{token}: {tokens[0]}"
                if tokens[0] == ",":
                    tokens.pop(0)
            tokens.pop(0)
            found = getattr(self, f"_{token}")(*arguments)
        while tokens and tokens[0] in ".[":
            if tokens.pop(0) == ".":
                found = found[tokens.pop(0)]
            else:
                found = found[self._term(tokens)]
                assert tokens.pop(0) == "]"
        return found

    def _parameters(self, name: str) -> Any:
        self.used.add(("parameters", name))
        known = TEMPLATE["parameters"][name]
        return self._given[name] if name in self._given else self.value(known["defaultValue"])

    def _variables(self, name: str) -> Any:
        self.used.add(("variables", name))
        return self.value(TEMPLATE["variables"][name])

    def _resourceId(self, kind: str, *names: str) -> str:  # noqa: N802 - Azure's names
        provider, *kinds = kind.split("/")
        assert len(kinds) == len(names), f"{kind} has {len(kinds)} names, not {names}"
        path = "/".join(f"{k}/{n}" for k, n in zip(kinds, names, strict=True))
        return f"{GROUP}/providers/{provider}/{path}"

    def _subscriptionResourceId(self, kind: str, name: str) -> str:  # noqa: N802
        return f"/subscriptions/1111/providers/{kind}/{name}"

    def _reference(self, resource: str, version: str) -> Any:
        kind = "/".join(resource.split("/providers/")[1].split("/")[:2])
        [declared] = {r["apiVersion"] for r in TEMPLATE["resources"] if r["type"] == kind}
        assert declared == version
        name = resource.rpartition("/")[2]
        return json.loads(json.dumps(RUNTIME[kind]).replace("{name}", name))

    def _uniqueString(self, *parts: str) -> str:  # noqa: N802
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:13]

    def _guid(self, *parts: str) -> str:
        return self._uniqueString(*parts)

    def _format(self, text: str, *parts: object) -> str:
        return text.format(*parts)

    def _if(self, condition: bool, then: object, otherwise: object) -> object:
        assert isinstance(condition, bool)
        return then if condition else otherwise

    def _resourceGroup(self) -> dict[str, str]:  # noqa: N802
        return {"id": GROUP, "location": "westeurope"}

    def _copyIndex(self) -> int:  # noqa: N802
        assert self._index is not None, "copyIndex outside of a copy"
        return self._index

    _concat = staticmethod(lambda *parts: "".join(parts))
    _toLower = staticmethod(str.lower)  # noqa: N815
    _take = staticmethod(lambda text, count: text[:count])
    _empty = staticmethod(lambda value: not value)
    _length = staticmethod(len)
    _createArray = staticmethod(lambda *items: list(items))  # noqa: N815


CHOICES: dict[str, dict[str, object]] = {
    "defaults": {},
    "people": {"people": PEOPLE},
    "existing account": {"storageAccount": "theirs", "people": PEOPLE, "name": "abc"},
    "no spot, long name": {"spot": False, "name": "twelveletter", "mostNodes": 40},
}


@pytest.fixture(params=CHOICES.values(), ids=CHOICES)
def deployment(request: pytest.FixtureRequest) -> Deployment:
    return Deployment(**request.param)


def id_of(resource: Mapping[str, Any]) -> str:
    provider, *kinds = resource["type"].split("/")
    names = resource["name"].split("/")
    path = "/".join(f"{k}/{n}" for k, n in zip(kinds, names, strict=True))
    return f"{GROUP}/providers/{provider}/{path}"


def of_type(deployment: Deployment, kind: str) -> list[dict[str, Any]]:
    return [resource for resource in deployment.resources if resource["type"] == kind]


def test_everything_that_is_declared_is_used_and_described():
    used = set.union(*(Deployment(**given).used for given in CHOICES.values()))
    declared = {(kind, n) for kind in ("parameters", "variables") for n in TEMPLATE[kind]}
    assert used == declared
    assert all(item["metadata"]["description"] for item in TEMPLATE["parameters"].values())
    assert all(item["metadata"]["description"] for item in TEMPLATE["outputs"].values())


def test_resources_have_dated_versions_and_wait_for_what_they_refer_to(deployment: Deployment):
    there = {id_of(resource) for resource in deployment.resources}
    may_exist = {id_of({"type": r["type"], "name": deployment.value(r["name"])})
                 for r in TEMPLATE["resources"] if "condition" in r}  # fmt: skip
    for resource in deployment.resources:
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", resource["apiVersion"]), "a preview"
        waits = set(resource.get("dependsOn", ()))
        assert waits <= there | may_exist
        if resource["type"] == ROLES:
            assert resource["scope"] in waits
    written = json.dumps(TEMPLATE["resources"])
    for found in re.findall(r"reference\((resourceId\([^)]*\)\))", written):
        holders = [r for r in TEMPLATE["resources"] if f"reference({found}" in json.dumps(r)]
        assert all(f"[{found}]" in holder["dependsOn"] for holder in holders)


def test_names_fit_what_azure_allows_and_are_unique(deployment: Deployment):
    ids = [id_of(resource) for resource in deployment.resources]
    assert len(set(ids)) == len(ids)
    for kind, rule in {
        "Microsoft.Storage/storageAccounts": r"[a-z0-9]{3,24}",
        "Microsoft.ContainerRegistry/registries": r"[a-z0-9]{5,50}",
        "Microsoft.ContainerService/managedClusters": r"[A-Za-z0-9][\w-]{0,61}[A-Za-z0-9]",
        "Microsoft.ManagedIdentity/userAssignedIdentities": r"[A-Za-z0-9][\w-]{2,127}",
    }.items():
        assert all(re.fullmatch(rule, r["name"]) for r in of_type(deployment, kind)), kind


def test_the_roles_are_given_by_azures_names_and_all_are_used():
    roles = of_type(Deployment(people=PEOPLE), ROLES)
    given = {role["properties"]["roleDefinitionId"].rpartition("/")[2] for role in roles}
    assert given == set(TEMPLATE["variables"]["roles"].values())
    guid = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    assert all(re.fullmatch(guid, role) for role in given)
    to_people = [r for r in roles if r["properties"]["principalType"] == "User"]
    assert {r["properties"]["principalId"] for r in to_people} == set(PEOPLE)
    to_services = {r["properties"]["principalId"] for r in roles if r not in to_people}
    assert to_services == {"p-1", "k-1"}


def test_an_existing_account_is_used_and_not_created():
    mine, theirs = Deployment(), Deployment(storageAccount="theirs")
    assert len(of_type(mine, "Microsoft.Storage/storageAccounts")) == 1
    assert of_type(theirs, "Microsoft.Storage/storageAccounts") == []
    [container] = of_type(theirs, "Microsoft.Storage/storageAccounts/blobServices/containers")
    assert container["name"] == "theirs/default/models"
    for deployed in (mine, theirs):
        location = parse_location(deployed.outputs["store"])
        assert isinstance(location, AzureLocation)
        assert location.container == container["name"].rpartition("/")[2]


def test_runners_scale_to_zero_and_only_spot_machines_are_tainted():
    for is_spot, priority in ((True, "Spot"), (False, "Regular")):
        [cluster] = of_type(Deployment(spot=is_spot), "Microsoft.ContainerService/managedClusters")
        system, runners = cluster["properties"]["agentPoolProfiles"]
        assert (system["mode"], system["minCount"]) == ("System", 1)
        assert (runners["mode"], runners["minCount"], runners["count"]) == ("User", 0, 0)
        assert runners["scaleSetPriority"] == priority
        assert runners["nodeLabels"] == {"edgeloop/pool": "runners"}
        assert bool(runners["nodeTaints"]) is is_spot


def test_there_is_no_key_and_no_secret(deployment: Deployment):
    for account in of_type(deployment, "Microsoft.Storage/storageAccounts"):
        assert account["properties"]["allowSharedKeyAccess"] is False
        assert account["properties"]["allowBlobPublicAccess"] is False
    [registry] = of_type(deployment, "Microsoft.ContainerRegistry/registries")
    assert registry["properties"]["adminUserEnabled"] is False
    [cluster] = of_type(deployment, "Microsoft.ContainerService/managedClusters")
    properties = cluster["properties"]
    assert properties["disableLocalAccounts"] is True
    assert properties["oidcIssuerProfile"]["enabled"] is True
    assert properties["securityProfile"]["workloadIdentity"]["enabled"] is True
    assert properties["workloadAutoScalerProfile"]["keda"]["enabled"] is True
    content = (FOLDER / "main.json").read_text()
    assert not re.search(r"(?i)listkeys|password|secureString|accountKey|sasToken", content)


def test_the_identity_belongs_to_the_service_account_of_the_fleet():
    deployed = Deployment(namespace="lab", serviceAccount="runners")
    kind = "Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials"
    [credential] = of_type(deployed, kind)
    assert credential["properties"]["subject"] == "system:serviceaccount:lab:runners"
    assert credential["properties"]["issuer"] == "https://issuer/"
    assert deployed.outputs["identityClientId"] == "c-1"
