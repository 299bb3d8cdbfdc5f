"""The Helm chart, rendered by Helm itself and by `edgeloop fleet manifest`: both give the same
objects, and the schemas of Kubernetes and KEDA and the rules of their servers accept them."""

from __future__ import annotations

import importlib.util
from copy import deepcopy
from typing import Any

import pytest
import yaml

from edgeloop import __version__
from edgeloop.errors import BadSetting
from edgeloop.operate.fleet.kubernetes import KubernetesValues, fleet_objects, manifest_text
from tests.fleet.kubernetes.cases import CASES
from tests.fleet.kubernetes.cluster import CHART, ROOT, documents, helm, schema_problems
from tests.fleet.kubernetes.rules import object_problems

pytestmark = pytest.mark.server  # Node, and KEDA's validators of `make setup`

NAME, NAMESPACE = "edgeloop", "fleet"
# What Helm says about itself differs, and nothing else does.
MANAGED = "app.kubernetes.io/managed-by"
ENDS_AT_ONCE = (
    "must be 0 in mode job, whose runners end when nothing is left: for runners that stay, set "
    "mode: deployment"
)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"runner": {"maxReplica": 3}}, "maxReplica"),
    "a text for a number": ({"runner": {"maxReplicas": "many"}}, "maxReplicas"),
    "a removed key": ({"runner": {"maxReplicas": None}}, "maxReplicas"),
    "a board": ({"runner": {"device": "adb:8c2f11d0"}}, "device"),
    "an experiment without a name": ({"experiments": [{"maxReplicas": 3}]}, "name"),
    "no store": ({"store": {"secret": ""}}, "store needs a secret or a url"),
    "a Secret without a name": (
        {"store": {"secret": "", "url": "azure:https://a.example", "create": {"A": "b"}}},
        "store.create needs a name",
    ),
    "a password in the URL": ({"store": {"url": "postgresql://u:p@h/d"}}, "holds a password"),
    "a key in the settings": ({"settings": {"store": "AccountKey=abc"}}, "settings holds"),
    "no portal to ask": ({"portal": {"enabled": False}}, "asks the portal"),
    "no connection": (
        {
            "runner": {"scaler": {"type": "postgresql"}},
            "store": {"secret": "", "url": "azure:https://a.example"},
        },
        "needs store.secret",
    ),
    "no token": ({"portal": {"tokenSecret": ""}}, "portal.tokenSecret"),
    "a short token": ({"portal": {"token": "abc"}}, "16 characters"),
    "one Secret for two": (
        {
            "store": {"create": {"A": "b"}, "secret": "s"},
            "portal": {"token": "x" * 20, "tokenSecret": "s"},
        },
        "two Secrets",
    ),
    "an experiment twice": ({"experiments": [{"name": "one"}, {"name": "one"}]}, "one twice"),
    "too few at the most": (
        {
            "runner": {"mode": "deployment"},
            "experiments": [{"name": "one", "minReplicas": 3, "maxReplicas": 2}],
        },
        "minReplicas of experiment one is above maxReplicas",
    ),
    "jobs that would start again and again": (
        {"runner": {"minReplicas": 1}},
        f"minReplicas of experiment default {ENDS_AT_ONCE}",
    ),
    "jobs of one experiment that would start again and again": (
        {"experiments": [{"name": "one"}, {"name": "two", "minReplicas": 1}]},
        f"minReplicas of experiment two {ENDS_AT_ONCE}",
    ),
    "two datasets": ({"dataset": {"claim": "a", "pull": "b"}}, "both claim and pull"),
}


@pytest.fixture(scope="module")
def rendered() -> dict[str, Any]:
    """Everything that Helm is asked, in one process of its own."""
    releases = [(NAME, NAMESPACE, values) for values in CASES.values()]
    releases += [(NAME, NAMESPACE, values) for values, _ in REFUSED.values()]
    long = {"experiments": [{"name": "a" * 40}]}
    releases += [("a-release-of-20-chars", NAMESPACE, long), ("short", NAMESPACE, long)]
    answers, lint = helm(releases)
    named = dict(zip([*CASES, *REFUSED, "too long", "long"], answers, strict=True))
    return {**named, "lint": lint}


def made(values: dict[str, Any], name: str = NAME) -> list[dict[str, Any]]:
    return fleet_objects(KubernetesValues.model_validate(values), name, NAMESPACE)


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    found = {(item["kind"], item["metadata"]["name"]): deepcopy(item) for item in objects}
    assert len(found) == len(objects)
    for item in found.values():
        item["metadata"]["labels"].pop(MANAGED)
    return found


@pytest.mark.parametrize("case", CASES)
def test_helm_and_the_manifest_make_the_same_objects(rendered: dict[str, Any], case: str):
    from_helm, own = by_name(documents(rendered[case])), by_name(made(CASES[case]))
    assert from_helm.keys() == own.keys()
    for name, item in from_helm.items():
        assert item == own[name], name


def test_long_experiments_have_the_same_short_names(rendered: dict[str, Any]):
    values = {"experiments": [{"name": "a" * 40}]}
    assert by_name(documents(rendered["long"])) == by_name(made(values, "short"))
    assert "choose a shorter name" in rendered["too long"]
    with pytest.raises(BadSetting, match="choose a shorter name"):
        made(values, "a-release-of-20-chars")


def test_kubernetes_keda_and_our_rules_accept_every_object(rendered: dict[str, Any]):
    sets = [documents(rendered[case]) for case in CASES]
    sets += [list(yaml.safe_load_all(manifest_text(made(values)))) for values in CASES.values()]
    assert {item["kind"] for items in sets for item in items} == {
        *("ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "ScaledJob"),
        *("ScaledObject", "Secret", "Service", "ServiceAccount", "TriggerAuthentication"),
    }
    assert schema_problems(sets) == [[] for _ in sets]
    assert [list(object_problems(items)) for items in sets] == [[] for _ in sets]


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_values_are_refused_with_the_reason(rendered: dict[str, Any], case: str):
    values, reason = REFUSED[case]
    assert isinstance(rendered[case], str), "Helm rendered it"
    assert reason in rendered[case]
    if case not in ("a removed key",):  # null means the default in edgeloop.yaml
        with pytest.raises((ValueError, BadSetting), match=reason.partition(" ")[0]) as raised:
            made(values)
        assert ENDS_AT_ONCE not in reason or reason in str(raised.value)


def test_lint_finds_nothing_but_the_missing_icon(rendered: dict[str, Any]):
    assert not rendered["lint"]["errors"]
    assert [m["error"] for m in rendered["lint"]["messages"]] == ["icon is recommended"]


def test_the_notes_name_what_must_exist(rendered: dict[str, Any]):
    notes = rendered["as it comes"]["edgeloop/templates/NOTES.txt"]
    assert "secret generic edgeloop-store" in notes
    assert "0 to 20 runners" in notes
    created = "jobs that are scaled by the database, with Secrets of the release"
    assert "create secret" not in rendered[created]["edgeloop/templates/NOTES.txt"]


def test_the_files_of_the_chart_are_those_of_the_model():
    path = ROOT / "scripts/chart_files.py"
    spec = importlib.util.spec_from_file_location("chart_files", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in module.files().items():
        assert (CHART / name).read_text() == text, f"run {path.name}"
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert KubernetesValues.model_validate(values) == KubernetesValues()


DROP = object()
POD = "spec/jobTargetRef/template/spec"
RUNNER = f"{POD}/containers/0"
WEB = "spec/template/spec/containers/0"
# What somebody did, in which case, to which kind, where, and what is there instead.
MUTATIONS: list[tuple[str, str, str, Any]] = [
    # caught by the schemas
    ("ScaledJob", f"{RUNNER}/imagee", "x", "schema"),
    ("ScaledJob", "spec/maxReplicaCount", "20", "schema"),
    ("ScaledJob", "spec/rollout/strateg", "gradual", "schema"),
    ("ScaledJob", "spec/jobTargetRef/backofLimit", 0, "schema"),
    ("ScaledJob", "spec/triggers/0/metadata/targetValue", 1, "schema"),
    ("ScaledJob", "spec/triggers/0/authenticationRef/nam", "x", "schema"),
    ("ScaledJob", f"{POD}/volumes/0/emptyDir/sizeLimits", "1Gi", "schema"),
    ("ScaledJob", f"{RUNNER}/securityContext/readOnly", True, "schema"),
    ("ScaledObject", "spec/scaleTargetRef/name", DROP, "schema"),
    ("ScaledObject", "spec/cooldown", 300, "schema"),
    ("TriggerAuthentication", "spec/secretTargetRef/0/parameter", DROP, "schema"),
    ("Deployment", "spec/replica", 1, "schema"),
    ("Deployment", f"{WEB}/readinessProbe/period", 5, "schema"),
    ("Service", "spec/ports/0/port", "http", "schema"),
    ("NetworkPolicy", "spec/podSelectors", {}, "schema"),
    ("ConfigMap", "data/edgeloop.yaml", {"max_attempts": 5}, "schema"),
    # caught by our rules
    ("ScaledJob", f"{POD}/restartPolicy", "Always", "restartPolicy"),
    ("ScaledJob", f"{POD}/restartPolicy", DROP, "restartPolicy"),
    ("ScaledJob", "metadata/name", "Edgeloop_Runner", "small letters"),
    ("ScaledJob", "metadata/name", "e" * 53, "53 characters"),
    ("ScaledJob", "metadata/labels/edgeloop~1experiment", "my nets", "cannot be 'my nets'"),
    ("ScaledJob", "metadata/annotations", {"bad key": "x"}, "not a key of a label"),
    ("ScaledJob", f"{RUNNER}/volumeMounts/0/name", "temp", "'temp', which does not exist"),
    ("ScaledJob", f"{RUNNER}/volumeMounts/0/mountPath", "/work", "two volumes at '/work'"),
    ("ScaledJob", f"{RUNNER}/volumeMounts/2/subPath", "../x", "inside the volume"),
    ("ScaledJob", f"{POD}/volumes/0/name", "work", "two volumes named 'work'"),
    ("ScaledJob", f"{POD}/volumes/0/configMap", {"name": "x"}, "one source, not 2"),
    ("ScaledJob", f"{POD}/volumes/2/configMap/name", "other", "'other', which does not exist"),
    ("ScaledJob", f"{RUNNER}/env/0/value", "x", "both value and valueFrom"),
    ("ScaledJob", f"{RUNNER}/env/0/name", "EDGELOOP_WORKDIR", "'EDGELOOP_WORKDIR' twice"),
    ("ScaledJob", f"{RUNNER}/env/0/valueFrom/fieldRef/fieldPath", "metadata.nam", "no field"),
    ("ScaledJob", f"{RUNNER}/envFrom/0/secretRef/name", "Store!", "one Secret or ConfigMap"),
    ("ScaledJob", f"{RUNNER}/image", "Registry/Edge loop:1", "is not an image"),
    ("ScaledJob", f"{RUNNER}/resources/requests/memory", "2 GB", "cannot be '2 GB'"),
    ("ScaledJob", f"{RUNNER}/resources/requests/memory", "16Gi", "more memory than its limit"),
    ("ScaledJob", f"{RUNNER}/resources/requests/gpu", "1", "unknown resource 'gpu'"),
    ("ScaledJob", f"{RUNNER}/resources/limits/cpu", "1500m", "its limit is 1500m"),
    ("ScaledJob", f"{RUNNER}/livenessProbe/httpGet", {"port": 80}, "one handler, not 2"),
    ("ScaledJob", f"{RUNNER}/livenessProbe/successThreshold", 2, "must be 1"),
    ("ScaledJob", f"{RUNNER}/livenessProbe/periodSeconds", 0, "1 or more"),
    ("ScaledJob", f"{RUNNER}/securityContext/allowPrivilegeEscalation", True, "privileges"),
    ("ScaledJob", f"{RUNNER}/securityContext/runAsUser", 0, "may run as root"),
    ("ScaledJob", f"{RUNNER}/securityContext/capabilities/drop", ["NET_RAW"], "capabilities"),
    ("ScaledJob", f"{RUNNER}/securityContext/readOnlyRootFilesystem", False, "can write"),
    ("ScaledJob", f"{POD}/securityContext/seccompProfile", DROP, "seccompProfile"),
    ("ScaledJob", f"{POD}/hostNetwork", True, "shares hostNetwork"),
    ("ScaledJob", f"{POD}/terminationGracePeriodSeconds", -1, "cannot be -1"),
    (
        "ScaledJob",
        f"{POD}/tolerations",
        [{"operator": "Exists", "value": "spot"}],
        "cannot have a value",
    ),
    (
        "ScaledJob",
        f"{POD}/topologySpreadConstraints/0/labelSelector/matchLabels/x",
        "y",
        "do not count its own pods",
    ),
    ("ScaledJob", "spec/minReplicaCount", 21, "at most maxReplicaCount"),
    ("ScaledJob", "spec/scalingStrategy/strategy", "acurate", "did you mean 'accurate'"),
    ("ScaledJob", "spec/rollout/strategy", "gradually", "did you mean 'gradual'"),
    ("ScaledJob", "spec/triggers/0/type", "metric-api", "knows the scalers"),
    ("ScaledJob", "spec/triggers/0/metadata/valueLocatio", "x", "unknown key 'valueLocatio'"),
    ("ScaledJob", "spec/triggers/0/metadata/valueLocation", DROP, "needs valueLocation"),
    ("ScaledJob", "spec/triggers/0/metadata/targetValue", "0", "above 0"),
    ("ScaledJob", "spec/triggers/0/metadata/authMode", "token", "authMode cannot be 'token'"),
    ("ScaledJob", "spec/triggers/0/metadata/url", "portal:8750/api/queue", "not an address"),
    ("ScaledJob", "spec/triggers/0/authenticationRef/name", "portal", "does not exist"),
    ("TriggerAuthentication", "spec/secretTargetRef/0/parameter", "tokn", "no scaler has"),
    ("TriggerAuthentication", "spec/secretTargetRef/0/parameter", "connection", "holds nothing"),
    ("ScaledObject", "spec/minReplicaCount", 101, "at most maxReplicaCount"),
    ("ScaledObject", "spec/idleReplicaCount", 2, "below minReplicaCount"),
    ("ScaledObject", "spec/scaleTargetRef/name", "runner", "which does not exist"),
    ("ScaledObject", "spec/triggers/0/name", "queue1", "two triggers named 'queue1'"),
    ("ScaledObject", "spec/advanced/scalingModifiers/formula", "a + queue1", "'a', which no"),
    ("Deployment", "spec/selector/matchLabels/x", "y", "does not find its own pods"),
    (
        "Deployment",
        "spec/selector/matchLabels/app.kubernetes.io~1version",
        __version__,
        "a selector cannot",
    ),
    ("Deployment", "spec/template/spec/restartPolicy", "Never", "restartPolicy must be Always"),
    ("Deployment", f"{WEB}/ports/0/name", "the-http-of-the-portal", "cannot be named"),
    ("Deployment", f"{WEB}/readinessProbe/httpGet/port", "web", "has no port 'web'"),
    ("Deployment", f"{WEB}/env/2/valueFrom/secretKeyRef/key", DROP, "needs name and key"),
    ("Service", "spec/selector/app.kubernetes.io~1component", "web", "finds no pods"),
    ("Service", "spec/ports/0/targetPort", "web", "have no port 'web'"),
    ("Service", "metadata/name", "1portal", "small letters"),
    ("PodDisruptionBudget", "spec/minAvailable", 1, "one of minAvailable and maxUnavailable"),
    ("PodDisruptionBudget", "spec/maxUnavailable", "250%", "number or a percentage"),
    ("NetworkPolicy", "spec/egress/1/to/0/ipBlock/cidr", "10.0.0.0/40", "range of addresses"),
    ("NetworkPolicy", "spec/egress/1/to/0/podSelector", {}, "not both"),
    ("NetworkPolicy", "spec/policyTypes", ["Ingress"], "policyTypes do not name"),
    ("ConfigMap", "data/edge loop", "x", "not a key"),
    ("ServiceAccount", "metadata/namespace", "My_Fleet", "not a namespace"),
    ("ServiceAccount", "apiVersion", "v1beta1", "apiVersion must be v1"),
]


def mutated(kind: str, path: str, value: Any) -> list[dict[str, Any]]:
    """A fleet with one mistake. A `/` in a key is written `~1`."""
    case = "a Deployment that is scaled by the portal" if kind == "ScaledObject" else "as it comes"
    objects = deepcopy(made(CASES[case]))
    place: Any = next(item for item in objects if item["kind"] == kind)
    *above, last = [part.replace("~1", "/") for part in path.split("/")]
    for part in above:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if value is DROP:
        del place[last]
    else:
        assert last not in place or place[last] != value
        place[last] = value
    return objects


def test_every_planted_mistake_is_found():
    sets = [mutated(kind, path, value) for kind, path, value, _ in MUTATIONS]
    reasons = [reason for *_, reason in MUTATIONS]
    for_schemas = [
        [item for item in items if item["kind"] == kind]
        for items, (kind, *_, reason) in zip(sets, MUTATIONS, strict=True)
        if reason == "schema"
    ]
    said_by_schemas = iter(schema_problems(for_schemas))
    missed = []
    for mutation, items, reason in zip(MUTATIONS, sets, reasons, strict=True):
        if reason == "schema":
            found = next(said_by_schemas)
            is_found = bool(found)
        else:
            found = list(object_problems(items))
            is_found = any(reason in sentence for sentence in found)
        if not is_found:
            missed.append(f"{mutation}: {found}")
    assert not missed, "\n".join(missed)
    assert len(MUTATIONS) > 80 and reasons.count("schema") > 15


def test_two_objects_of_one_name_are_found():
    objects = made({})
    assert any("there are two objects" in text for text in object_problems([*objects, objects[0]]))
