"""What a cluster refuses although the schemas allow it: references to nothing, names that are too
long, selectors that find no pods, pods that may do too much.

`edgeloop fleet manifest` checks these before it prints anything, and the tests check the Helm chart
with them, after the schemas of Kubernetes and KEDA.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from edgeloop._util.values import shown
from edgeloop.errors import BadSetting
from edgeloop.fleet.kubernetes.formats import (
    is_cidr,
    is_key,
    is_label,
    is_name,
    is_percent,
    is_port,
    is_port_name,
    is_service_name,
)
from edgeloop.fleet.kubernetes.keda_rules import (
    authentication_problems,
    scaled_job_problems,
    scaled_object_problems,
)
from edgeloop.fleet.kubernetes.pod_rules import (
    Problems,
    label_problems,
    list_of,
    mapping_of,
    repeated,
    selects,
    template_problems,
)
from edgeloop.fleet.kubernetes.values import Plain

_VERSIONS = {
    **dict.fromkeys(("ConfigMap", "Secret", "Service", "ServiceAccount"), "v1"),
    **{"Deployment": "apps/v1", "NetworkPolicy": "networking.k8s.io/v1"},
    "PodDisruptionBudget": "policy/v1",
    **dict.fromkeys(("ScaledJob", "ScaledObject", "TriggerAuthentication"), "keda.sh/v1alpha1"),
}
_DATA_LIMIT = 2**20  # of a ConfigMap or a Secret
# They change with every version, and a selector cannot.
_CHANGING = ("app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart")


def check_objects(objects: Sequence[Plain]) -> None:
    """Raises BadSetting with the first problem."""
    for problem in object_problems(objects):
        raise BadSetting(where="the manifest", reason=problem)


def object_problems(objects: Sequence[Plain]) -> Problems:
    """Everything that is wrong with objects that belong together, one sentence each."""
    places = [
        (item.get("kind"), *map(mapping_of(item.get("metadata")).get, ("namespace", "name")))
        for item in objects
    ]
    for place in repeated(places):
        yield f"there are two objects {place}"
    for item in objects:
        where = f"{item.get('kind')} {mapping_of(item.get('metadata')).get('name')}"
        yield from _metadata_problems(where, item)
        yield from _kind_problems(where, item, objects)


def _metadata_problems(where: str, item: Plain) -> Problems:
    version = _VERSIONS.get(str(item.get("kind")))
    if version is None:
        yield f"{where}: Edgeloop makes no such objects"
    elif item.get("apiVersion") != version:
        yield f"{where}: its apiVersion must be {version}, not {item.get('apiVersion')}"
    metadata = mapping_of(item.get("metadata"))
    is_good = is_service_name if item.get("kind") == "Service" else is_name
    if not is_good(metadata.get("name")):
        yield f"{where}: its name must have small letters, digits and '-', and not be too long"
    if not is_label(metadata.get("namespace")):
        yield f"{where}: {shown(metadata.get('namespace'))} is not a namespace"
    yield from label_problems(f"{where}: labels", metadata.get("labels"))
    yield from label_problems(f"{where}: annotations", metadata.get("annotations"), True)


def _kind_problems(where: str, item: Plain, objects: Sequence[Plain]) -> Problems:
    kind, spec = item.get("kind"), mapping_of(item.get("spec"))
    authentications = _named(objects, "TriggerAuthentication")
    if kind == "Deployment":
        yield from _deployment_problems(where, spec)
    elif kind == "Service":
        yield from _service_problems(where, spec, objects)
    elif kind == "PodDisruptionBudget":
        yield from _budget_problems(where, spec, objects)
    elif kind == "NetworkPolicy":
        yield from _policy_problems(where, spec, objects)
    elif kind in ("ConfigMap", "Secret"):
        yield from _data_problems(where, item)
    elif kind == "TriggerAuthentication":
        yield from authentication_problems(where, item)
    elif kind == "ScaledJob":
        yield from scaled_job_problems(where, item, authentications)
    elif kind == "ScaledObject":
        deployments = _named(objects, "Deployment")
        yield from scaled_object_problems(where, item, authentications, deployments)
    yield from _reference_problems(where, item, objects)


def _deployment_problems(where: str, spec: Plain) -> Problems:
    replicas = spec.get("replicas", 1)
    if not isinstance(replicas, int) or replicas < 0:
        yield f"{where}: replicas cannot be {shown(replicas)}"
    template = mapping_of(spec.get("template"))
    labels = mapping_of(mapping_of(template.get("metadata")).get("labels"))
    selector = spec.get("selector")
    if not mapping_of(mapping_of(selector).get("matchLabels")):
        yield f"{where} has no selector"
    elif not selects(selector, labels):
        yield f"{where}: its selector does not find its own pods"
    for key in mapping_of(mapping_of(selector).get("matchLabels")):
        if key in _CHANGING:
            yield f"{where}: its selector holds {key}, which changes, and a selector cannot"
    yield from template_problems(f"{where}, pod", template, is_job=False)


def _service_problems(where: str, spec: Plain, objects: Sequence[Plain]) -> Problems:
    ports = list_of(spec.get("ports"))
    if not ports:
        yield f"{where} has no ports"
    for pair in repeated((port.get("port"), port.get("protocol", "TCP")) for port in ports):
        yield f"{where} has the port {pair} twice"
    for name in repeated(port.get("name") for port in ports):
        yield f"{where} has two ports named {name}"
    templates = [t for t in _templates(objects) if selects(_by(spec.get("selector")), _labels(t))]
    if not spec.get("selector") or not templates:
        yield f"{where}: its selector finds no pods"
    named = {
        port.get("name")
        for template in templates
        for container in list_of(mapping_of(template.get("spec")).get("containers"))
        for port in list_of(container.get("ports"))
    }
    for port in ports:
        if not is_port(port.get("port")):
            yield f"{where}: a port cannot be {shown(port.get('port'))}"
        if "name" in port and not is_label(port["name"]):
            yield f"{where}: a port cannot be named {shown(port['name'])}"
        target = port.get("targetPort", port.get("port"))
        is_good = is_port_name(target) and target in named if isinstance(target, str) else True
        if not is_good or (isinstance(target, int) and not is_port(target)):
            yield f"{where}: its pods have no port {shown(target)}"


def _budget_problems(where: str, spec: Plain, objects: Sequence[Plain]) -> Problems:
    given = [key for key in ("minAvailable", "maxUnavailable") if key in spec]
    if len(given) != 1:
        yield f"{where} must have one of minAvailable and maxUnavailable"
    for key in given:
        value = spec[key]
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not is_count and not is_percent(value):
            yield f"{where}: {key} must be a number or a percentage, not {shown(value)}"
    found = [t for t in _templates(objects) if selects(spec.get("selector"), _labels(t))]
    if not found:
        yield f"{where}: its selector finds no pods"
    is_of_jobs = any(mapping_of(t.get("spec")).get("restartPolicy") for t in found)
    if is_of_jobs and not isinstance(spec.get("minAvailable"), int):
        yield f"{where}: for pods of jobs only minAvailable as a number works"


def _policy_problems(where: str, spec: Plain, objects: Sequence[Plain]) -> Problems:
    if not any(selects(spec.get("podSelector"), _labels(t)) for t in _templates(objects)):
        yield f"{where}: its selector finds no pods"
    types = spec.get("policyTypes") or ()
    for kind in types:
        if kind not in ("Ingress", "Egress"):
            yield f"{where}: policyTypes cannot have {shown(kind)}"
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        if direction in spec and direction.capitalize() not in types:
            yield f"{where} has rules for {direction}, which policyTypes do not name"
        for rule in list_of(spec.get(direction)):
            for peer in list_of(rule.get(peers)):
                yield from _peer_problems(where, peer)
            for port in list_of(rule.get("ports")):
                value = port.get("port")
                is_good = is_port_name(value) if isinstance(value, str) else is_port(value)
                if not is_good or port.get("protocol", "TCP") not in ("TCP", "UDP", "SCTP"):
                    yield f"{where}: {shown(port)} is not a port"


def _peer_problems(where: str, peer: Plain) -> Problems:
    if not peer:
        yield f"{where} has a peer that names nobody"
    block = mapping_of(peer.get("ipBlock"))
    if block and len(peer) > 1:
        yield f"{where}: a peer is an ipBlock or selectors, not both"
    cidrs = [block["cidr"], *(block.get("except") or ())] if "cidr" in block else []
    for cidr in cidrs:
        if not is_cidr(cidr):
            yield f"{where}: {shown(cidr)} is not a range of addresses such as 10.0.0.0/8"
            return
    for part in cidrs[1:]:
        whole, inner = ipaddress.ip_network(str(cidrs[0])), ipaddress.ip_network(str(part))
        if whole.version != inner.version or not inner.subnet_of(whole):  # type: ignore[arg-type]
            yield f"{where}: {part} is not inside of {cidrs[0]}"
    if "ipBlock" in peer and not cidrs:
        yield f"{where}: an ipBlock needs a cidr"


def _data_problems(where: str, item: Plain) -> Problems:
    size = 0
    for part in ("data", "stringData", "binaryData"):
        for key, value in mapping_of(item.get(part)).items():
            if not is_key(key):
                yield f"{where} has {key!r}, which is not a key"
            elif not isinstance(value, str):
                yield f"{where}: {key} must be a text"
            else:
                size += len(value.encode())
    if size > _DATA_LIMIT:
        yield f"{where} holds {size} bytes; {_DATA_LIMIT} are the limit"


def _reference_problems(where: str, item: Plain, objects: Sequence[Plain]) -> Problems:
    """Names of objects that are among these, or must be. Secrets and claims may exist already."""
    maps, secrets = _named(objects, "ConfigMap"), _named(objects, "Secret")
    for template in _templates([item]):
        spec = mapping_of(template.get("spec"))
        for volume in list_of(spec.get("volumes")):
            name = mapping_of(volume.get("configMap")).get("name")
            if "configMap" in volume and name not in maps:
                yield f"{where} mounts the ConfigMap {shown(name)}, which does not exist"
        for container in list_of(spec.get("containers")):
            for variable in list_of(container.get("env")):
                source = mapping_of(mapping_of(variable.get("valueFrom")).get("secretKeyRef"))
                own = secrets.get(str(source.get("name")))
                if own and source.get("key") not in mapping_of(own.get("stringData")):
                    yield f"{where}: Secret {source.get('name')} has no key {source.get('key')}"


def _templates(objects: Sequence[Plain]) -> list[Plain]:
    found = []
    for item in objects:
        spec = mapping_of(item.get("spec"))
        if item.get("kind") == "Deployment":
            found.append(mapping_of(spec.get("template")))
        elif item.get("kind") == "ScaledJob":
            found.append(mapping_of(mapping_of(spec.get("jobTargetRef")).get("template")))
    return found


def _labels(template: Plain) -> Plain:
    return mapping_of(mapping_of(template.get("metadata")).get("labels"))


def _by(labels: object) -> Plain:
    return {"matchLabels": labels}


def _named(objects: Sequence[Plain], kind: str) -> dict[str, Plain]:
    return {
        str(mapping_of(item.get("metadata")).get("name")): item
        for item in objects
        if item.get("kind") == kind
    }
