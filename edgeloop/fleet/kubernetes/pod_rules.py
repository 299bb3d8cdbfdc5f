"""What a server refuses in a pod's template although its schema allows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from edgeloop._util.values import shown
from edgeloop.fleet.kubernetes.formats import (
    is_image,
    is_key,
    is_label,
    is_label_key,
    is_label_value,
    is_name,
    is_port,
    is_port_name,
    is_variable,
    quantity,
)
from edgeloop.fleet.kubernetes.values import Plain

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
