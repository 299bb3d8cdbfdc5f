"""What a cluster refuses although the schemas allow it: references to nothing, names that are too
long, selectors that find no pods, pods that may do too much.

The tests check all objects of the chart with them, after the schemas of Kubernetes and KEDA.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from urllib.parse import urlsplit

from edgeloop._util.values import shown, suggestion
from edgeloop.operate.fleet.kubernetes import Plain

_VERSIONS = {
    **dict.fromkeys(("ConfigMap", "Secret", "Service", "ServiceAccount"), "v1"),
    **{"Deployment": "apps/v1", "NetworkPolicy": "networking.k8s.io/v1"},
    "PodDisruptionBudget": "policy/v1",
    **dict.fromkeys(("ScaledJob", "ScaledObject", "TriggerAuthentication"), "keda.sh/v1alpha1"),
}
_DATA_LIMIT = 2**20  # of a ConfigMap or a Secret
# They change with every version, and a selector cannot.
_CHANGING = ("app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart")


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


# What a server refuses in a pod's template although its schema allows it.


Problems = Iterator[str]
_FIELDS = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "status.podIP"),
    *("spec.serviceAccountName", "status.hostIP", "status.podIPs", "status.hostIPs"),
)
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_SECONDS = ("periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold")
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


def mapping_of(value: object) -> Plain:
    """A mapping, or an empty one: that it is none is said by whoever checks its keys."""
    return dict(value) if isinstance(value, Mapping) else {}


def list_of(value: object) -> list[Plain]:
    return [mapping_of(item) for item in value] if isinstance(value, Sequence) else []


def repeated(values: Iterable[object]) -> list[object]:
    return [value for value, count in Counter(map(repr, values)).items() if count > 1]


def unknown_keys(where: str, value: object, known: Iterable[str]) -> Problems:
    if value is not None and not isinstance(value, Mapping):
        yield f"{where} must hold keys, not {shown(value)}"
    for key in mapping_of(value):
        if key not in known:
            yield f"{where} has an unknown key {key!r}"


def label_problems(where: str, labels: object, is_annotation: bool = False) -> Problems:
    for key, value in mapping_of(labels).items():
        if not is_label_key(key):
            yield f"{where} has {key!r}, which is not a key of a label"
        elif not isinstance(value, str) or not (is_annotation or is_label_value(value)):
            yield f"{where}.{key} cannot be {shown(value)}"


def selects(selector: object, labels: Mapping[str, object]) -> bool:
    """Whether a selector by labels alone finds a pod with these labels."""
    wanted = mapping_of(mapping_of(selector).get("matchLabels"))
    return all(labels.get(key) == value for key, value in wanted.items())


def template_problems(where: str, template: object, is_job: bool) -> Problems:
    """Of the template of a Deployment's or a Job's pods."""
    metadata = mapping_of(mapping_of(template).get("metadata"))
    spec = mapping_of(mapping_of(template).get("spec"))
    yield from label_problems(f"{where}: labels", metadata.get("labels"))
    yield from label_problems(f"{where}: annotations", metadata.get("annotations"), True)
    policy = spec.get("restartPolicy", "Always")
    allowed = ("Never", "OnFailure") if is_job else ("Always",)
    if policy not in allowed:
        yield f"{where}: restartPolicy must be {' or '.join(allowed)}, not {policy}"
    init, containers = list_of(spec.get("initContainers")), list_of(spec.get("containers"))
    if not containers:
        yield f"{where} has no containers"
    for name in repeated(item.get("name") for item in (*init, *containers)):
        yield f"{where} has two containers named {name}"
    volumes = list_of(spec.get("volumes"))
    for name in repeated(item.get("name") for item in volumes):
        yield f"{where} has two volumes named {name}"
    for volume in volumes:
        yield from _volume_problems(where, volume)
    names = {volume.get("name") for volume in volumes}
    for container in (*init, *containers):
        yield from _container_problems(f"{where}, container {container.get('name')}", container)
        for mount in list_of(container.get("volumeMounts")):
            if mount.get("name") not in names:
                yield (
                    f"{where}, container {container.get('name')} mounts the volume "
                    f"{mount.get('name')!r}, which does not exist"
                )
    for container in init:
        if any(f"{kind}Probe" in container for kind in ("liveness", "readiness", "startup")):
            yield f"{where}: the init container {container.get('name')} cannot have probes"
    yield from _placement_problems(where, spec, mapping_of(metadata.get("labels")))
    yield from _security_problems(where, spec, (*init, *containers))


def _volume_problems(where: str, volume: Plain) -> Problems:
    name = volume.get("name")
    if not is_label(name):
        yield f"{where} has a volume named {shown(name)}, which is not a DNS label"
    sources = [key for key in volume if key != "name"]
    if len(sources) != 1:
        yield f"{where}, volume {name} must have one source, not {len(sources)}"
    limit = mapping_of(volume.get("emptyDir")).get("sizeLimit")
    if limit is not None and quantity(limit) is None:
        yield f"{where}, volume {name}: sizeLimit cannot be {shown(limit)}: write 20Gi or 500Mi"
    claim = volume.get("persistentVolumeClaim")
    if claim is not None and not is_name(mapping_of(claim).get("claimName")):
        yield f"{where}, volume {name} needs the name of a claim"


def _container_problems(where: str, container: Plain) -> Problems:
    if not is_label(container.get("name")):
        yield f"{where}: its name is not a DNS label"
    if not is_image(container.get("image")):
        yield f"{where}: {shown(container.get('image'))} is not an image"
    if container.get("imagePullPolicy", "Always") not in ("Always", "IfNotPresent", "Never"):
        yield f"{where}: imagePullPolicy cannot be {shown(container['imagePullPolicy'])}"
    for word in container.get("args") or ():
        if not isinstance(word, str):
            yield f"{where}: args must be texts, not {shown(word)}"
    yield from _variable_problems(where, container)
    yield from _mount_problems(where, list_of(container.get("volumeMounts")))
    yield from _resource_problems(where, container.get("resources"))
    yield from _core_problems(where, container)
    ports = list_of(container.get("ports"))
    for port in ports:
        if not is_port(port.get("containerPort")):
            yield f"{where}: containerPort cannot be {shown(port.get('containerPort'))}"
        if "name" in port and not is_port_name(port["name"]):
            yield f"{where}: a port cannot be named {shown(port['name'])}"
    for name in repeated(port["name"] for port in ports if "name" in port):
        yield f"{where} has two ports named {name}"
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        if kind in container:
            named = {port.get("name") for port in ports}
            yield from _probe_problems(f"{where}: {kind}", kind, container[kind], named)


def _variable_problems(where: str, container: Plain) -> Problems:
    variables = list_of(container.get("env"))
    for name in repeated(variable.get("name") for variable in variables):
        yield f"{where} sets the variable {name} twice"
    for variable in variables:
        name = variable.get("name")
        yield from unknown_keys(f"{where}: env", variable, ("name", "value", "valueFrom"))
        if not is_variable(name):
            yield f"{where}: a variable cannot be named {shown(name)}"
        if "value" in variable and "valueFrom" in variable:
            yield f"{where}: the variable {name} has both value and valueFrom"
        if not isinstance(variable.get("value", ""), str):
            yield f"{where}: the variable {name} must be a text, not {shown(variable['value'])}"
        if "valueFrom" in variable:
            yield from _source_problems(f"{where}: the variable {name}", variable["valueFrom"])
    for source in list_of(container.get("envFrom")):
        kinds = [kind for kind in ("secretRef", "configMapRef") if kind in source]
        if len(kinds) != 1 or not is_name(mapping_of(source[kinds[0]]).get("name")):
            yield f"{where}: envFrom needs the name of one Secret or ConfigMap"


def _source_problems(where: str, source: object) -> Problems:
    kinds = list(mapping_of(source))
    if len(kinds) != 1:
        yield f"{where}: valueFrom must have one source, not {len(kinds)}"
        return
    found = mapping_of(mapping_of(source)[kinds[0]])
    if kinds[0] in ("secretKeyRef", "configMapKeyRef"):
        if not is_name(found.get("name")) or not is_key(found.get("key")):
            yield f"{where}: {kinds[0]} needs name and key"
    elif kinds[0] == "fieldRef":
        path = str(found.get("fieldPath"))
        if path not in _FIELDS and not path.startswith(("metadata.labels", "metadata.annotations")):
            yield f"{where}: a pod has no field {path!r} for variables"
    elif kinds[0] != "resourceFieldRef":
        yield f"{where}: valueFrom has an unknown key {kinds[0]!r}"


def _mount_problems(where: str, mounts: list[Plain]) -> Problems:
    for path in repeated(mount.get("mountPath") for mount in mounts):
        yield f"{where} mounts two volumes at {path}"
    for mount in mounts:
        path, sub_path = str(mount.get("mountPath")), str(mount.get("subPath", ""))
        if not path.startswith("/") or ":" in path:
            yield f"{where}: mountPath must be absolute and have no ':', not {path!r}"
        if sub_path.startswith("/") or ".." in sub_path.split("/"):
            yield f"{where}: subPath must be a path inside the volume, not {sub_path!r}"


def _resource_problems(where: str, resources: object) -> Problems:
    yield from unknown_keys(f"{where}: resources", resources, ("requests", "limits", "claims"))
    found = mapping_of(resources)
    amounts = {}
    for kind in ("requests", "limits"):
        for name, value in mapping_of(found.get(kind)).items():
            amount = amounts[kind, name] = quantity(value)
            if name not in _RESOURCES and "/" not in name and not name.startswith("hugepages-"):
                yield f"{where}: resources.{kind} has an unknown resource {name!r}"
            elif amount is None:
                yield f"{where}: {kind}.{name} cannot be {shown(value)}: write 2, 500m or 4Gi"
    for (kind, name), amount in amounts.items():
        limit = amounts.get(("limits", name))
        if kind == "requests" and amount is not None and limit is not None and amount > limit:
            yield f"{where}: it requests more {name} than its limit"


def _core_problems(where: str, container: Plain) -> Problems:
    """A runner refuses to start with more cores than it may use."""
    words = [str(word) for word in container.get("args") or ()]
    limit = mapping_of(mapping_of(container.get("resources")).get("limits")).get("cpu")
    amount = None if limit is None else quantity(limit)
    cores = next((words[i + 1] for i, w in enumerate(words[:-1]) if w == "--cpus"), "0")
    if amount is not None and cores.isdecimal() and int(cores) > amount:
        yield f"{where}: it uses {cores} cores (cpus), and its limit is {limit}"


def _probe_problems(where: str, kind: str, probe: object, ports: set[object]) -> Problems:
    found = mapping_of(probe)
    handlers = [name for name in _HANDLERS if name in found]
    if len(handlers) != 1:
        yield f"{where} must have one handler, not {len(handlers)}"
        return
    for name in _SECONDS:
        value = found.get(name, 1)
        if not isinstance(value, int) or value < 1:
            yield f"{where}.{name} must be 1 or more, not {shown(value)}"
    if kind != "readinessProbe" and found.get("successThreshold", 1) != 1:
        yield f"{where}.successThreshold must be 1"
    handler = mapping_of(found[handlers[0]])
    if handlers[0] == "exec" and not handler.get("command"):
        yield f"{where} has no command"
    port = handler.get("port")
    is_known = port in ports if isinstance(port, str) else is_port(port)
    if handlers[0] != "exec" and not is_known:
        yield f"{where}: the container has no port {shown(port)}"


def _placement_problems(where: str, spec: Plain, labels: Plain) -> Problems:
    if "serviceAccountName" in spec and not is_name(spec["serviceAccountName"]):
        yield f"{where}: {shown(spec['serviceAccountName'])} is not a service account"
    grace = spec.get("terminationGracePeriodSeconds", 30)
    if not isinstance(grace, int) or grace < 0:
        yield f"{where}: terminationGracePeriodSeconds cannot be {shown(grace)}"
    yield from label_problems(f"{where}: nodeSelector", spec.get("nodeSelector"))
    kinds = ("nodeAffinity", "podAffinity", "podAntiAffinity")
    yield from unknown_keys(f"{where}: affinity", spec.get("affinity"), kinds)
    for toleration in list_of(spec.get("tolerations")):
        yield from _toleration_problems(f"{where}: a toleration", toleration)
    spreads = list_of(spec.get("topologySpreadConstraints"))
    for pair in repeated((s.get("topologyKey"), s.get("whenUnsatisfiable")) for s in spreads):
        yield f"{where} has two topologySpreadConstraints for {pair}"
    for spread in spreads:
        skew = spread.get("maxSkew")
        if not isinstance(skew, int) or skew < 1:
            yield f"{where}: maxSkew must be 1 or more, not {shown(skew)}"
        if not selects(spread.get("labelSelector"), labels):
            yield f"{where}: topologySpreadConstraints do not count its own pods"


def _toleration_problems(where: str, toleration: Plain) -> Problems:
    known = ("key", "operator", "value", "effect", "tolerationSeconds")
    yield from unknown_keys(where, toleration, known)
    operator, effect = toleration.get("operator", "Equal"), toleration.get("effect", "")
    if operator not in ("Equal", "Exists"):
        yield f"{where}: operator cannot be {shown(operator)}"
    if operator == "Exists" and toleration.get("value"):
        yield f"{where} with operator Exists cannot have a value"
    if operator == "Equal" and not toleration.get("key"):
        yield f"{where} without a key needs operator Exists"
    if effect not in _EFFECTS:
        yield f"{where}: effect cannot be {shown(effect)}"
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        yield f"{where}: tolerationSeconds need effect NoExecute"


def _security_problems(where: str, spec: Plain, containers: Iterable[Plain]) -> Problems:
    """The profile "restricted" of Kubernetes, which every cluster admits."""
    pod = mapping_of(spec.get("securityContext"))
    for container in containers:
        name = f"{where}, container {container.get('name')}"
        own = mapping_of(container.get("securityContext"))
        both: Callable[[str], object] = {**pod, **own}.get
        dropped = mapping_of(own.get("capabilities")).get("drop") or ()
        added = mapping_of(own.get("capabilities")).get("add") or ()
        profile = mapping_of(both("seccompProfile")).get("type")
        if both("runAsNonRoot") is not True or both("runAsUser") == 0:
            yield f"{name} may run as root"
        if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
            yield f"{name} may gain privileges: allowPrivilegeEscalation must be false"
        if "ALL" not in dropped or set(added) - {"NET_BIND_SERVICE"}:
            yield f"{name} must drop all capabilities"
        if profile not in ("RuntimeDefault", "Localhost"):
            yield f"{name} has no seccompProfile"
        if own.get("readOnlyRootFilesystem") is not True:
            yield f"{name} can write to its root file system"
    for volume in list_of(spec.get("volumes")):
        if "hostPath" in volume:
            yield f"{where}: the volume {volume.get('name')} is a folder of the node"
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield f"{where} shares {key} with its node"


# What KEDA refuses, at once or when it scales, although its schemas allow it.


# Jobs and pods get the name of a ScaledJob with a suffix, an autoscaler `keda-hpa-` before it, as
# values of labels.
SCALED_NAME_LIMIT = 52
_MOST_REPLICAS = 100  # what KEDA takes if nothing is said


@dataclass(frozen=True)
class Scaler:
    """What the metadata of a trigger may hold, and what its authentication."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()


SCALERS = {
    "metrics-api": Scaler(
        required=("url", "valueLocation", "targetValue"),
        optional=(
            *("format", "authMode", "method", "keyParamName", "unsafeSsl", "timeout"),
            *("activationTargetValue", "aggregateFromKubeServiceEndpoints", "aggregationType"),
        ),
        numbers=("targetValue", "activationTargetValue"),
        choices={
            "format": ("json", "prometheus", "xml", "yaml"),
            "authMode": ("apiKey", "basic", "tls", "bearer", "custom", "oauth"),
            "method": ("header", "query"),
            "unsafeSsl": ("true", "false"),
            "aggregationType": ("average", "sum", "max", "min"),
        },
        secrets=("token", "apiKey", "username", "password", "ca", "cert", "key"),
    ),
    "postgresql": Scaler(
        required=("query", "targetQueryValue"),
        optional=(
            *("activationTargetQueryValue", "connectionFromEnv", "passwordFromEnv", "host"),
            *("port", "userName", "dbName", "sslmode"),
        ),
        numbers=("targetQueryValue", "activationTargetQueryValue"),
        secrets=("connection", "host", "port", "userName", "dbName", "sslmode", "password"),
    ),
}


def scaled_job_problems(where: str, found: Plain, authentications: Mapping[str, Plain]) -> Problems:
    spec = mapping_of(found.get("spec"))
    yield from _common_problems(where, found, authentications)
    job = mapping_of(spec.get("jobTargetRef"))
    if "selector" in job and not job.get("manualSelector"):
        yield f"{where}: the selector of a job is Kubernetes' own"
    for key in ("parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished"):
        value = job.get(key, 0)
        if not isinstance(value, int) or value < 0:
            yield f"{where}: {key} must be 0 or more, not {shown(value)}"
    yield from template_problems(f"{where}, pod", job.get("template"), is_job=True)
    strategy = mapping_of(spec.get("scalingStrategy"))
    for key, value, allowed in (
        (
            "scalingStrategy.strategy",
            strategy.get("strategy"),
            ("default", "custom", "accurate", "eager"),
        ),
        (
            "scalingStrategy.multipleScalersCalculation",
            strategy.get("multipleScalersCalculation"),
            ("max", "min", "avg", "sum"),
        ),
        (
            "rollout.strategy",
            mapping_of(spec.get("rollout")).get("strategy"),
            ("default", "gradual"),
        ),
    ):
        if value is not None and value not in allowed:
            hint = suggestion(str(value), allowed, "there are")
            yield f"{where}: {key} cannot be {shown(value)}: {hint}"


def scaled_object_problems(
    where: str, found: Plain, authentications: Mapping[str, Plain], deployments: Mapping[str, Plain]
) -> Problems:
    spec = mapping_of(found.get("spec"))
    yield from _common_problems(where, found, authentications)
    target = mapping_of(spec.get("scaleTargetRef")).get("name")
    if target not in deployments:
        yield f"{where} scales the Deployment {shown(target)}, which does not exist"
    elif "replicas" in mapping_of(deployments[str(target)].get("spec")):
        yield f"{where} scales {target}, whose own number of replicas would reset it"
    least, idle = spec.get("minReplicaCount", 0), spec.get("idleReplicaCount")
    if idle is not None and not (isinstance(least, int) and 0 <= idle < least):
        yield f"{where}: idleReplicaCount must be below minReplicaCount"
    triggers = list_of(spec.get("triggers"))
    names = [trigger["name"] for trigger in triggers if "name" in trigger]
    for name in repeated(names):
        yield f"{where} has two triggers named {name}"
    modifiers = mapping_of(mapping_of(spec.get("advanced")).get("scalingModifiers"))
    if modifiers:
        if not modifiers.get("target"):
            yield f"{where}: scalingModifiers need a target"
        used = set(re.findall(r"[A-Za-z_]\w*", str(modifiers.get("formula", ""))))
        for name in sorted(used - set(names)):
            yield f"{where}: the formula names {name!r}, which no trigger has"


def authentication_problems(where: str, found: Plain) -> Problems:
    secrets = list_of(mapping_of(found.get("spec")).get("secretTargetRef"))
    for secret in secrets:
        if not is_name(secret.get("name")) or not is_key(secret.get("key")):
            yield f"{where}: secretTargetRef needs name and key of a Secret"
        known = {name for scaler in SCALERS.values() for name in scaler.secrets}
        if secret.get("parameter") not in known:
            yield f"{where}: no scaler has the parameter {shown(secret.get('parameter'))}"


def _common_problems(where: str, found: Plain, authentications: Mapping[str, Plain]) -> Problems:
    spec = mapping_of(found.get("spec"))
    name = str(mapping_of(found.get("metadata")).get("name"))
    if len(name) > SCALED_NAME_LIMIT:
        yield (
            f"{where}: its name has {len(name)} characters; {SCALED_NAME_LIMIT} are the limit: "
            "choose a shorter name for the fleet"
        )
    least, most = spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", _MOST_REPLICAS)
    if not (isinstance(least, int) and isinstance(most, int) and 0 <= least <= most and most):
        yield f"{where}: minReplicaCount must be at most maxReplicaCount, which must be 1 or more"
    if not isinstance(spec.get("pollingInterval", 30), int) or spec.get("pollingInterval", 30) < 1:
        yield f"{where}: pollingInterval must be 1 or more"
    triggers = list_of(spec.get("triggers"))
    if not triggers:
        yield f"{where} has no triggers"
    for trigger in triggers:
        yield from _trigger_problems(f"{where}, trigger {trigger.get('type')}", trigger)
        reference = mapping_of(trigger.get("authenticationRef")).get("name")
        if reference is None:
            continue
        if reference not in authentications:
            yield f"{where} names the TriggerAuthentication {reference!r}, which does not exist"
            continue
        scaler = SCALERS.get(str(trigger.get("type")))
        own = mapping_of(authentications[reference].get("spec"))
        given = {secret.get("parameter") for secret in list_of(own.get("secretTargetRef"))}
        if scaler and not given & set(scaler.secrets):
            yield f"{where}: {reference} holds nothing that {trigger['type']} asks for"


def _trigger_problems(where: str, trigger: Plain) -> Problems:
    scaler = SCALERS.get(str(trigger.get("type")))
    if scaler is None:
        yield f"{where}: Edgeloop knows the scalers {' and '.join(SCALERS)} alone"
        return
    metadata = mapping_of(trigger.get("metadata"))
    known = (*scaler.required, *scaler.optional)
    for key, value in metadata.items():
        if key not in known:
            yield f"{where} has an unknown key {key!r}: {suggestion(key, known, 'there are')}"
        elif not isinstance(value, str):
            yield f"{where}: {key} must be a text, not {shown(value)}"
        elif key in scaler.choices and value not in scaler.choices[key]:
            hint = suggestion(value, scaler.choices[key], "there are")
            yield f"{where}: {key} cannot be {value!r}: {hint}"
        elif key in scaler.numbers and not re.fullmatch(r"[0-9]+(\.[0-9]+)?", value, re.ASCII):
            yield f"{where}: {key} must be a number, not {value!r}"
        elif key == "url" and not _is_address(value):
            yield f"{where}: {value!r} is not an address"
    for key in scaler.required:
        if not metadata.get(key):
            yield f"{where} needs {key}"
    if re.fullmatch(r"0+(\.0+)?", str(metadata.get(scaler.numbers[0], "1"))):
        yield f"{where}: {scaler.numbers[0]} must be above 0"


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


# The small formats of Kubernetes: names, labels, quantities, images.


LABEL_LIMIT, NAME_LIMIT, PORT_NAME_LIMIT = 63, 253, 15
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_KEY = re.compile(r"[-._A-Za-z0-9]+")
_VARIABLE = re.compile(r"[^=\x00-\x1f]+")
_QUANTITY = re.compile(
    r"(?P<number>\+?([0-9]+(\.[0-9]*)?|\.[0-9]+))"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?"
)
_PATH = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{{1,5}})?/)?{_PATH}(/{_PATH})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(@[a-z0-9]+([+._-][a-z0-9]+)*:[0-9a-fA-F]{32,})?"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def is_label(text: object) -> bool:
    """A DNS label: the name of a container, a volume, a namespace."""
    return _fits(_LABEL, text, LABEL_LIMIT)


def is_name(text: object) -> bool:
    """A DNS subdomain: the name of most objects."""
    return (
        isinstance(text, str)
        and len(text) <= NAME_LIMIT
        and all(_LABEL.fullmatch(part) for part in text.split("."))
    )


def is_service_name(text: object) -> bool:
    return _fits(_SERVICE, text, LABEL_LIMIT)


def is_port_name(text: object) -> bool:
    return _fits(_PORT_NAME, text, PORT_NAME_LIMIT)


def is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535


def is_label_key(text: object) -> bool:
    if not isinstance(text, str):
        return False
    prefix, slash, name = text.rpartition("/")
    return (not slash or is_name(prefix)) and _fits(_QUALIFIED, name, LABEL_LIMIT)


def is_label_value(text: object) -> bool:
    return text == "" or _fits(_QUALIFIED, text, LABEL_LIMIT)


def is_key(text: object) -> bool:
    """A key of a ConfigMap or a Secret."""
    return _fits(_KEY, text, NAME_LIMIT) and text not in (".", "..")


def is_variable(text: object) -> bool:
    return _fits(_VARIABLE, text, NAME_LIMIT)


def is_image(text: object) -> bool:
    return _fits(_IMAGE, text, 1000)


def is_percent(text: object) -> bool:
    return isinstance(text, str) and bool(re.fullmatch(r"[0-9]{1,2}%|100%", text, re.ASCII))


def is_cidr(text: object) -> bool:
    try:
        ipaddress.ip_network(str(text), strict=True)
    except ValueError:
        return False
    return "/" in str(text)


def quantity(value: object) -> Decimal | None:
    """`500m`, `2Gi`, `1e3`, 2: the number that it stands for."""
    text = str(value) if isinstance(value, str | int | float) else ""
    found = _QUANTITY.fullmatch(text) if not isinstance(value, bool) else None
    if found is None:
        return None
    number, suffix = Decimal(found["number"]), found["suffix"] or ""
    if suffix in _BINARY:
        return number * Decimal(1024 ** (_BINARY.index(suffix) + 1))
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    return number.scaleb(int(suffix[1:])) if suffix else number


def _fits(pattern: re.Pattern[str], text: object, limit: int) -> bool:
    return isinstance(text, str) and 0 < len(text) <= limit and bool(pattern.fullmatch(text))
