"""A fleet on Kubernetes: `edgeloop fleet manifest`, from the settings of a project to YAML for
`kubectl apply`.

The objects are described once, by the templates of the Helm chart in `chart/`, which `helm.py`
renders here without Helm. The models below are the chart's values, and the section
`fleet.kubernetes` of `edgeloop.yaml`: both have the same keys, so that a part of one file can be
moved to the other. The chart's `values.yaml` and `values.schema.json` are generated from them by
`scripts/chart_files.py`. Checks that concern several values are in the chart itself, in
`templates/_checks.tpl`.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from edgeloop._util.redact import redact
from edgeloop._util.schema import Section, key, validated, with_overrides
from edgeloop._util.values import Reads, mapping, matching, shown
from edgeloop._util.yaml import Origin, read_document
from edgeloop.errors import BadInput, BadName, BadSetting
from edgeloop.models.columns import check_experiment_name
from edgeloop.operate.fleet.control import carried_settings
from edgeloop.operate.fleet.helm import render_chart
from edgeloop.operate.fleet.records import FleetSpec, read_spec
from edgeloop.operate.fleet.start import is_folder
from edgeloop.platforms import board_kinds, is_board, platform_of
from edgeloop.settings import Settings

CHART = Path(__file__).with_name("chart")
GRACE_MARGIN_S = 15  # between the end of a stage's grace and SIGKILL, as in templates/_pods.tpl
_WHERE = "fleet.kubernetes"
_EXAMPLE = "runner.maxReplicas=50"
_RELEASE = r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?"  # as Helm demands
_NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


def fleet_manifest(
    settings: Settings,
    words: Sequence[str] = (),
    file: Path | None = None,
    *,
    name: str = "edgeloop",
    namespace: str = "edgeloop",
) -> list[Plain]:
    """Return the objects of a fleet.

    Args:
        settings: The project; its `fleet` section, with the section `kubernetes` in it.
        words: `key=value` overrides of single values.
        file: A file of values for the Helm chart. It wins over the settings.
        name: Prefix of the names of all objects: the release's name in Helm.
        namespace: The namespace of the objects.

    Raises:
        BadSetting: A value is wrong, or two contradict each other.
    """
    if not re.fullmatch(_RELEASE, name):
        reason = f"its name must have small letters, digits and '-', and not be {shown(name)}"
        raise BadSetting(where="the manifest", reason=reason)
    if not re.fullmatch(_NAMESPACE, namespace):
        raise BadSetting(where="the manifest", reason=f"{shown(namespace)} is not a namespace")
    values = fleet_values(settings, words, file)
    if values.store.create or values.portal.token:
        key_name = "store.create" if values.store.create else "portal.token"
        reason = f"{key_name} would put a secret into the manifest: create the Secret with kubectl"
        raise BadSetting(where=_WHERE, reason=f"{reason}, and name it")
    return fleet_objects(values, name, namespace)


def fleet_objects(values: KubernetesValues, name: str, namespace: str) -> list[Plain]:
    """Render the chart. Raises BadSetting where the values contradict each other."""
    plain = values.model_dump(by_alias=True)
    # A key that an experiment leaves out is as in `runner`, so it must stay left out.
    plain["experiments"] = [
        experiment.model_dump(by_alias=True, exclude_unset=True)
        for experiment in values.experiments
    ]
    release = {"Name": name, "Namespace": namespace, "Service": "edgeloop"}
    return render_chart(CHART, plain, release)


def fleet_values(
    settings: Settings, words: Sequence[str] = (), file: Path | None = None
) -> KubernetesValues:
    """What `fleet` says about any fleet, then `fleet.kubernetes`, then the file, then the words."""
    spec = read_spec(settings.fleet)
    origin = Origin(_WHERE, BadSetting)
    document = _merged(_of_any_fleet(spec, settings), spec.kubernetes)
    if file is not None:
        written, origin = read_document(file, BadSetting)
        if not isinstance(written, Mapping | None):
            raise origin.at((), "must hold 'key: value' lines")
        document = _merged(document, written or {})
    document, origin = with_overrides(KubernetesValues, document, words, origin, example=_EXAMPLE)
    runner = document.get("runner")
    # Jobs end when nothing is left, so only a Deployment can keep the least of any other fleet.
    if isinstance(runner, dict) and runner.get("mode") == "deployment":
        runner.setdefault("minReplicas", spec.runners.least)
    return validated(KubernetesValues, document, origin)


def manifest_text(objects: Sequence[Plain]) -> str:
    """As YAML documents, the same text for the same objects."""
    import yaml

    plain = json.loads(json.dumps(objects))  # no anchors for parts that two objects share
    return yaml.safe_dump_all(
        plain, sort_keys=False, explicit_start=True, allow_unicode=True, width=120
    )


def _of_any_fleet(spec: FleetSpec, settings: Settings) -> Plain:
    """Keys of `fleet` that have the same meaning on every engine."""
    explicit = spec.model_fields_set
    runner: Plain = {}
    if "runners" in explicit:
        runner["maxReplicas"] = spec.runners.most
    if "cpus" in explicit:
        runner |= {"cpus": spec.cpus, "resources": {"requests": {"cpu": str(spec.cpus)}}}
    if "grace" in explicit:
        runner["graceSeconds"] = math.ceil(spec.grace) + GRACE_MARGIN_S
    # Boards are outside of the cluster.
    devices = [device for device in spec.devices if not is_board(device)]
    if len(devices) > 1:
        reason = "a runner on Kubernetes has one device: use an experiment for each"
        raise BadSetting(where="fleet.devices", reason=reason)
    if devices:
        runner["device"] = devices[0]
    words = [*(["--task", spec.task] if spec.task else []), *spec.options]
    if words:
        runner["args"] = words
    if is_folder(spec.dataset) and not spec.kubernetes.get("dataset"):
        reason = f"pods have no folder {spec.dataset}: set {_WHERE}.dataset to a claim"
        raise BadSetting(where="fleet.dataset", reason=reason)
    pull = {} if is_folder(spec.dataset) or not spec.dataset else {"pull": spec.dataset}
    return {
        "settings": carried_settings(settings),
        "runner": runner,
        "dataset": pull,
        "experiments": [
            {"name": name, **({"maxReplicas": share.quota} if share.quota else {})}
            for name, share in spec.experiments.items()
        ]
        or [{"name": settings.experiment}],
    }


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Plain:
    """As Helm merges values: mappings key by key, everything else as a whole."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(str(name))
        is_deep = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[str(name)] = _merged(under, value) if is_deep else value  # type: ignore[arg-type]
    return merged


# The values of the chart.

Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Plain = dict[str, Any]
Labels = dict[str, str]
KubernetesName = Annotated[
    str,
    matching(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?", "small letters, digits, '-' and '.'"),
]


def _experiment(value: object) -> str:
    try:
        return check_experiment_name(str(value))
    except BadName as error:
        raise ValueError(f"is not a name: {error}") from None


def _with_default(default: Plain) -> Reads:
    """Keys that are written replace those of the default one by one; null removes one."""

    def read(value: object) -> Plain:
        return _without_null(_merged(default, mapping(value)))

    return Reads(read, {"type": "object", "additionalProperties": True})


def _without_null(value: Plain) -> Plain:
    return {
        name: _without_null(item) if isinstance(item, dict) else item
        for name, item in value.items()
        if item is not None
    }


def _cidr(text: str) -> str:
    try:
        ipaddress.ip_network(text if "/" in text else "")  # one address is written with its length
    except ValueError:
        reason = f"must be a range of addresses such as 10.0.0.0/8, not {text!r}"
        raise ValueError(reason) from None
    return text


def _unavailable(value: int | str) -> int | str:
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,2}%|100%", value, re.ASCII):
        raise ValueError(f"must be a number or a percentage, not {value!r}")
    return value


ExperimentName = Annotated[
    str,
    Reads(_experiment, {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{2,39}$"}),
]
ImageName = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9.:/_-]*", "the name of an image, without its tag")
]
Quantity = Annotated[
    str, matching(r"[0-9]+(\.[0-9]+)?([KMGTPE]i?|[mk])?", "a size such as 20Gi or 500Mi")
]
Cidr = Annotated[str, AfterValidator(_cidr)]
_CAPABILITY = r"(convert )?[A-Za-z0-9][A-Za-z0-9:._-]{0,99}"
_TOOLCHAIN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}"
_DEVICE = r"[a-z][a-z0-9_-]{0,40}(:[A-Za-z0-9._-]{1,80})?"


def _capability(text: str) -> str:
    if not re.fullmatch(_CAPABILITY, text):
        raise ValueError(f"must be a line of 'edgeloop queue', such as linux, not {text!r}")
    return text


def _toolchain(text: str) -> str:
    if not re.fullmatch(_TOOLCHAIN, text):
        raise ValueError(f"must be a toolchain such as qnn or snpe, not {text!r}")
    return text


class _DeviceName:
    """The name of a device that every machine can have, as the installed platforms name them."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, _: object, handler: object) -> Plain:
        boards = "|".join(sorted(board_kinds()))
        pattern = f"^({_DEVICE})?$"
        return {"type": "string", "pattern": pattern, "not": {"pattern": f"^({boards})(:|$)"}}

    def _read(self, value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(f"({_DEVICE})?", value):
            raise ValueError(f"must be a device such as htp:CHIP or host, not {shown(value)}")
        if is_board(value):
            raise ValueError(f"cannot be {value!r}: boards are outside of the cluster")
        if value:
            try:
                platform_of(value)
            except BadInput as error:
                raise ValueError(f"cannot be {value!r}: {error}") from None
        return value


# Not `Reads`: types of keys that may be left out must be hashable.
Capability = Annotated[
    str,
    AfterValidator(_capability),
    WithJsonSchema({"type": "string", "pattern": f"^{_CAPABILITY}$"}),
]
Toolchain = Annotated[
    str,
    AfterValidator(_toolchain),
    WithJsonSchema({"type": "string", "pattern": f"^{_TOOLCHAIN}$"}),
]
Device = Annotated[str, _DeviceName()]


class ChartSection(Section):
    """Keys in the spelling of Helm and Kubernetes: `pullPolicy`."""

    model_config = ConfigDict(alias_generator=to_camel)


class ImageValues(ChartSection):
    """The image of `deploy/docker`, in your registry."""

    repository: ImageName = key("edgeloop", "Where the image is, such as `REGISTRY/edgeloop`.")
    tag: str = key("", "Its tag; by default the version of Edgeloop.")
    digest: str = key("", "Its digest, `sha256:…`: the same image for ever, whatever the tag says.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = key(
        "IfNotPresent", "When nodes fetch the image."
    )
    pull_secrets: list[KubernetesName] = key(
        list, "Names of Secrets with the registry's credentials."
    )


class StoreValues(ChartSection):
    """Where the store is, and how pods may open it."""

    secret: KubernetesName = key(
        "edgeloop-store",
        "A Secret whose keys are environment variables: EDGELOOP_STORE with the store's URL, or "
        "MODEL_STORAGE_CONNECTION_STRING; also EDGELOOP_BLOBS, PGPASSWORD, AWS_… It must exist "
        "unless `create` has its content. Empty: none is needed.",
    )
    create: Labels = key(
        dict,
        "Content for the Secret, which is then created. The release holds it too: an existing "
        "Secret is better. `edgeloop fleet manifest` refuses it.",
    )
    url: str = key(
        "",
        "The store's URL where it holds no secret: `azure:https://ACCOUNT.blob.core.windows.net` "
        "with workload identity. It wins over the Secret.",
    )
    blobs: str = key("", "Where a PostgreSQL store has its files, such as `s3://BUCKET`.")


class ServiceAccountValues(ChartSection):
    """The account that pods run as."""

    create: bool = key(True, "Whether to create it.")
    name: KubernetesName = key("", "Its name; by default the release's.")
    annotations: Labels = key(
        dict,
        "Annotations, such as `eks.amazonaws.com/role-arn` or `iam.gke.io/gcp-service-account`.",
    )
    azure_client_id: str = key(
        "",
        "Client id of a managed identity in Azure: adds the annotation and the label of workload "
        "identity.",
    )


class DatasetValues(ChartSection):
    """Images for calibration and accuracy: a volume, or a dataset of the store."""

    claim: KubernetesName = key("", "An existing PersistentVolumeClaim, mounted read-only.")
    sub_path: str = key("", "The dataset's folder in that volume.")
    pull: str = key(
        "",
        "A dataset of the store, such as `faces@3`: an init container fetches it with "
        "`edgeloop data pull`.",
    )
    size: Quantity = key("20Gi", "Limit of the folder that it is fetched into.")


class SpreadValues(ChartSection):
    """How runners spread over nodes."""

    max_skew: Positive = key(1, "How many more runners one node may have than another.")
    topology_key: str = key("kubernetes.io/hostname", "What counts as one place.")
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = key(
        "ScheduleAnyway", "Prefer (`ScheduleAnyway`) or demand (`DoNotSchedule`) it."
    )


RUNNER_RESOURCES: Plain = {
    "requests": {"cpu": "2", "memory": "2Gi", "ephemeral-storage": "4Gi"},
    "limits": {"memory": "6Gi"},
}
PORTAL_RESOURCES: Plain = {
    "requests": {"cpu": "100m", "memory": "384Mi"},
    "limits": {"memory": "1Gi"},
}


class ScalerValues(ChartSection):
    """How KEDA learns how much work waits."""

    type: Literal["metrics-api", "postgresql"] = key(
        "metrics-api", "`metrics-api` asks the portal; `postgresql` asks the database itself."
    )
    polling_interval: Positive = key(15, "Seconds between two questions.")
    connection_key: str = key(
        "KEDA_CONNECTION",
        "For `postgresql`: the key of the store's Secret with a connection for KEDA, "
        "`postgresql://USER:PASSWORD@HOST/DATABASE` and nothing about files.",
    )


class PlacementValues(ChartSection):
    """Where pods may run."""

    node_selector: Labels = key(dict, "Labels that a node must have.")
    tolerations: list[Plain] = key(list, "Taints that pods tolerate, such as those of spot nodes.")
    affinity: Plain = key(dict, "Affinity of pods to nodes and to each other.")
    priority_class_name: KubernetesName = key("", "A PriorityClass.")
    pod_labels: Labels = key(dict, "More labels for the pods.")
    pod_annotations: Labels = key(dict, "More annotations for the pods.")
    env: list[Plain] = key(list, "More environment variables, as Kubernetes writes them.")


class RunnerValues(PlacementValues):
    """The runners: what they do, how many there are, and what each gets."""

    mode: Literal["job", "deployment"] = key(
        "job",
        "`job`: a KEDA ScaledJob; a runner works until nothing is left, and ends. `deployment`: a "
        "Deployment with a ScaledObject; fewer starts, but Kubernetes chooses which one ends.",
    )
    min_replicas: Natural = key(
        0,
        "Runners at the least, for each experiment. In mode `job` it must be 0: idle runners end.",
    )
    max_replicas: Positive = key(
        20, "Runners at the most, for each experiment: three experiments may have 60 together."
    )
    stages_per_runner: Positive = key(
        1, "Waiting stages for which one more runner starts: a larger number saves starts."
    )
    device: Device = key(
        "",
        "`htp:CHIP` to measure on the simulator as well; by default runners convert and score on "
        "the CPU. Boards are outside of the cluster, with runners of their own.",
    )
    toolchains: list[Toolchain] = key(
        lambda: ["qnn"],
        "What the image converts with: `qnn`; also `snpe` if the SDK is built in (with `snpeClaim` "
        "it is there). A chosen one in `settings.toolchain` or `--toolchain` among `args` counts "
        "alone.",
    )
    capabilities: list[Capability] = key(
        list,
        "Lines of `edgeloop queue` that the number of runners follows; by default `linux`, "
        "`convert TOOLCHAIN` for each of the toolchains, and with a device also `device` and the "
        "device's own.",
    )
    cpus: Natural = key(
        2, "Cores that a runner uses (`--cpus`), as it requests; 0: all that its container may use."
    )
    args: list[str] = key(
        list, "More options of `edgeloop runner`, such as `[--precision, a16w8]`."
    )
    grace_seconds: Annotated[int, Field(gt=GRACE_MARGIN_S)] = key(
        135,
        "Seconds from SIGTERM to SIGKILL. A stage has 15 fewer to finish (`--grace`); then it is "
        "given back, and another runner begins it again.",
    )
    ttl_seconds_after_finished: Natural = key(600, "When finished jobs are removed.")
    successful_jobs_history_limit: Natural = key(5, "Finished jobs that KEDA keeps.")
    failed_jobs_history_limit: Natural = key(20, "Failed jobs that KEDA keeps.")
    cooldown_seconds: Natural = key(300, "Deployment: how long without work before runners end.")
    max_unavailable: Annotated[int | str, AfterValidator(_unavailable)] = key(
        "25%", "Deployment: how many runners may be evicted at the same time."
    )
    resources: Annotated[Plain, _with_default(RUNNER_RESOURCES)] = key(
        lambda: RUNNER_RESOURCES,
        "What a container gets. Measured: ResNet-50 needs 0.9 GiB to convert, BEiT-B 3.1 GiB; "
        "see docs/how-to/kubernetes.md.",
    )
    work_size: Quantity = key(
        "25Gi", "Limit of the working folder; a runner caches 20 GB of files."
    )
    spread: SpreadValues = key(SpreadValues, "How runners spread over nodes.")
    scaler: ScalerValues = key(ScalerValues, "How KEDA learns how much work waits.")
    snpe_claim: KubernetesName = key(
        "", "A PersistentVolumeClaim with Qualcomm's SNPE SDK, mounted at /opt/snpe."
    )


class ExperimentValues(ChartSection):
    """An experiment with runners of its own; what is not given is as in `runner` and `dataset`."""

    name: ExperimentName = Field(description="The experiment.")
    min_replicas: Natural | None = key(None, "Runners at the least.")
    max_replicas: Positive | None = key(None, "Runners at the most: the experiment's quota.")
    stages_per_runner: Positive | None = key(None, "Waiting stages per runner.")
    device: Device | None = key(None, "Its device.")
    cpus: Natural | None = key(None, "Cores that a runner uses.")
    toolchains: list[Toolchain] | None = key(None, "What its image converts with.")
    capabilities: list[Capability] | None = key(None, "Lines of `edgeloop queue` to follow.")
    args: list[str] | None = key(None, "More options of `edgeloop runner`.")
    resources: Plain | None = key(None, "What a container gets.")
    node_selector: Labels | None = key(None, "Labels that a node must have.")
    tolerations: list[Plain] | None = key(None, "Taints that pods tolerate.")
    dataset: DatasetValues | None = key(None, "Its dataset; `{}`: none.")


class PortalValues(PlacementValues):
    """The portal: pages for people, and the numbers that KEDA asks for."""

    enabled: bool = key(True, "Whether there is one. The scaler `metrics-api` needs it.")
    token_secret: KubernetesName = key(
        "edgeloop-portal",
        "A Secret with the key `token`, of 16 characters or more, which visitors and KEDA need. It "
        "must exist unless `token` has its content.",
    )
    token: str = key(
        "", "Content for that Secret, which is then created; an existing one is better."
    )
    allow_changes: bool = key(False, "Whether visitors may reset, delete and prioritise models.")
    port: Port = key(8750, "Port of the Service.")
    resources: Annotated[Plain, _with_default(PORTAL_RESOURCES)] = key(
        lambda: PORTAL_RESOURCES, "What the container gets."
    )


class NetworkPolicyValues(ChartSection):
    """Who may talk to whom. It needs a network plug-in that enforces policies."""

    enabled: bool = key(True, "Whether there are policies.")
    keda_namespace: KubernetesName = key("keda", "The namespace that KEDA's operator runs in.")
    from_namespaces: list[KubernetesName] = key(
        list, "More namespaces that reach the portal, such as the ingress controller's."
    )
    store_ports: list[Port] = key(
        lambda: [443, 5432], "Ports that pods may reach: the store's, and the identity's."
    )
    store_cidrs: list[Cidr] = key(
        lambda: ["0.0.0.0/0", "::/0"], "Addresses that have those ports; narrow them if you can."
    )
    store_namespaces: list[KubernetesName] = key(list, "Namespaces of a store in this cluster.")


class KubernetesValues(ChartSection):
    """A fleet on Kubernetes."""

    image: ImageValues = key(ImageValues, "The image of `deploy/docker`, in your registry.")
    store: StoreValues = key(StoreValues, "Where the store is, and how pods may open it.")
    service_account: ServiceAccountValues = key(
        ServiceAccountValues, "The account that pods run as."
    )
    settings: Plain = key(
        dict, "The `edgeloop.yaml` of all pods, for example `{max_attempts: 5}`; no secrets."
    )
    dataset: DatasetValues = key(
        DatasetValues, "Images for calibration and accuracy; without them inputs are random."
    )
    runner: RunnerValues = key(RunnerValues, "The runners.")
    experiments: Annotated[list[ExperimentValues], Field(min_length=1)] = key(
        lambda: [ExperimentValues(name="default")],
        "Experiments, each with runners and a quota of its own.",
    )
    portal: PortalValues = key(PortalValues, "The portal, which KEDA asks for waiting work.")
    network_policy: NetworkPolicyValues = key(NetworkPolicyValues, "Who may talk to whom.")

    @field_validator("settings")
    @classmethod
    def _without_secrets(cls, settings: Plain) -> Plain:
        """The chart looks for passwords too, but Helm cannot recognise as many as `redact`."""
        text = json.dumps(settings, ensure_ascii=False, default=str)
        if redact(text) != text:
            raise ValueError("holds a password or a key: put it into store.secret")
        return settings
