"""What a fleet on Kubernetes is told: the values of the Helm chart, and `fleet.kubernetes` of
`edgeloop.yaml`.

Both have the same keys, so that a part of one file can be moved to the other. The chart's
`values.yaml` and `values.schema.json` are made from these models by `scripts/chart_files.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel

from edgeloop._util.redact import redact
from edgeloop._util.schema import Section, key
from edgeloop._util.values import Reads, mapping, matching
from edgeloop.errors import BadName
from edgeloop.models.columns import check_experiment_name

Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Plain = dict[str, Any]
Labels = dict[str, str]
KubernetesName = Annotated[
    str,
    matching(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?", "small letters, digits, '-' and '.'"),
]
_PASSWORD = re.compile(r"^\w+://[^:/@\s]*:[^/@\s]+@|(?i:AccountKey|SharedAccessSignature|sig)=")
GRACE_MARGIN_S = 15
TOKEN_LENGTH = 16


def _experiment(value: object) -> str:
    try:
        return check_experiment_name(str(value))
    except BadName as error:
        raise ValueError(f"is not a name: {error}") from None


def _public_url(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    if _PASSWORD.search(value):
        raise ValueError("holds a password or a key: put it into a Secret and name that in secret")
    return value


def _merged(default: Plain) -> Reads:
    """What is written replaces single keys of the default, as in Helm; null removes one."""

    def read(value: object) -> Plain:
        return _merge(default, mapping(value))

    return Reads(read, {"type": "object", "additionalProperties": True})


def _merge(default: Plain, written: Plain) -> Plain:
    merged = {
        name: _merge(default[name], value)
        if isinstance(value, dict) and isinstance(default.get(name), dict)
        else value
        for name, value in {**default, **written}.items()
    }
    return {name: value for name, value in merged.items() if value is not None}


ExperimentName = Annotated[
    str,
    Reads(_experiment, {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{2,39}$"}),
]
PublicUrl = Annotated[str, Reads(_public_url, {"type": "string"})]
_CAPABILITY = r"[A-Za-z0-9][A-Za-z0-9:._-]{0,99}"
_DEVICE = r"(host|htp:[A-Za-z0-9._-]{1,80})?"


def _capability(text: str) -> str:
    if not re.fullmatch(_CAPABILITY, text):
        raise ValueError(f"must be a line of 'edgeloop queue', such as linux, not {text!r}")
    return text


def _device(text: str) -> str:
    if not re.fullmatch(_DEVICE, text):
        reason = ": boards are outside of the cluster" if text.startswith("adb") else ""
        raise ValueError(f"must be htp:CHIP or host, not {text!r}{reason}")
    return text


# Not `Reads`: types of keys that may be left out must be hashable.
Capability = Annotated[
    str,
    AfterValidator(_capability),
    WithJsonSchema({"type": "string", "pattern": f"^{_CAPABILITY}$"}),
]
Device = Annotated[
    str, AfterValidator(_device), WithJsonSchema({"type": "string", "pattern": f"^{_DEVICE}$"})
]


# KEDA would start them anew at every poll.
_ENDS_AT_ONCE = (
    "must be 0 in mode job, whose runners end when nothing is left: for runners that stay, set "
    "mode: deployment"
)


class ChartSection(Section):
    """Keys in the spelling of Helm and Kubernetes: `pullPolicy`."""

    model_config = ConfigDict(alias_generator=to_camel)


class ImageValues(ChartSection):
    """The image of `deploy/docker`, in your registry."""

    repository: str = key("edgeloop", "Where the image is, such as `REGISTRY/edgeloop`.")
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
    url: PublicUrl = key(
        "",
        "The store's URL where it holds no secret: `azure:https://ACCOUNT.blob.core.windows.net` "
        "with workload identity. It wins over the Secret.",
    )
    blobs: PublicUrl = key("", "Where a PostgreSQL store has its files, such as `s3://BUCKET`.")


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
    size: str = key("20Gi", "Limit of the folder that it is fetched into.")

    @model_validator(mode="after")
    def _one(self) -> DatasetValues:
        if self.claim and self.pull:
            raise ValueError("has both claim and pull: give one of them")
        return self


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
    capabilities: list[Capability] = key(
        list,
        "Lines of `edgeloop queue` that the number of runners follows; by default `linux`, and "
        "with a device also `device` and the device's own.",
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
    max_unavailable: int | str = key(
        "25%", "Deployment: how many runners may be evicted at the same time."
    )
    resources: Annotated[Plain, _merged(RUNNER_RESOURCES)] = key(
        lambda: RUNNER_RESOURCES,
        "What a container gets. Measured: ResNet-50 needs 0.9 GiB to convert, BEiT-B 3.1 GiB; "
        "see docs/how-to/kubernetes.md.",
    )
    work_size: str = key("25Gi", "Limit of the working folder; a runner caches 20 GB of files.")
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
    resources: Annotated[Plain, _merged(PORTAL_RESOURCES)] = key(
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
    store_cidrs: list[str] = key(
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

    @model_validator(mode="after")
    def _agrees(self) -> KubernetesValues:
        for is_wrong, sentence in self._contradictions():
            if is_wrong:
                raise ValueError(sentence)
        return self

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        """The chart refuses the same, in `templates/_checks.tpl`."""
        store, portal, runner = self.store, self.portal, self.runner
        text = json.dumps(self.settings, ensure_ascii=False, default=str)
        yield redact(text) != text, "settings holds a password or a key: put it into store.secret"
        yield not (store.secret or store.url), "store needs a secret or a url"
        yield bool(store.create) and not store.secret, "store.create needs a name: store.secret"
        needs_portal = runner.scaler.type == "metrics-api" and not portal.enabled
        yield needs_portal, "the scaler metrics-api asks the portal: set portal.enabled to true"
        no_connection = runner.scaler.type == "postgresql" and not store.secret
        yield no_connection, "the scaler postgresql needs store.secret, with its connection"
        no_token = portal.enabled and not portal.token_secret
        yield no_token, "the portal needs portal.tokenSecret"
        is_short = bool(portal.token) and len(portal.token) < TOKEN_LENGTH
        yield is_short, f"portal.token must have {TOKEN_LENGTH} characters or more"
        is_both = bool(store.create and portal.token) and store.secret == portal.token_secret
        yield is_both, "store.secret and portal.tokenSecret must be two Secrets to be created"
        names = [experiment.name for experiment in self.experiments]
        yield len(set(names)) < len(names), "experiments has one twice"
        for experiment in self.experiments:
            least = experiment.min_replicas
            least = runner.min_replicas if least is None else least
            ends_at_once = runner.mode == "job" and least > 0
            yield ends_at_once, f"minReplicas of experiment {experiment.name} {_ENDS_AT_ONCE}"
            is_empty = least > (experiment.max_replicas or runner.max_replicas)
            yield is_empty, f"minReplicas of experiment {experiment.name} is above maxReplicas"
