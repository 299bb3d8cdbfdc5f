"""`azure setup`: plans what a workspace lacks, and creates it step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal
from uuid import uuid4

from edgeloop.azure.connection import Connection, require_packages
from edgeloop.azure.errors import explain, explained, is_azure_error
from edgeloop.azure.provisioning.resources import (
    ClusterDescription,
    DesiredCluster,
    DesiredDatastore,
    DesiredEnvironment,
    WorkspaceRequirements,
    change_cluster,
    find_cluster,
    find_datastore,
    find_environment,
    has_identity,
    list_sizes,
    make_cluster,
    make_datastore,
    make_environment,
    storage_suffix,
)
from edgeloop.azure.services import WORKSPACE_VERSION
from edgeloop.errors import ComputeUnavailable, EdgeloopError, SetupFailed

Action = Literal["create", "keep", "change", "differs", "missing"]
_SECONDS_OFF = 1.0
TRIAL_FOLDER = "doctor"


@dataclass(frozen=True)
class DesiredResource:
    """Any other resource, as its REST interface takes it: see `account`."""

    path: str
    version: str
    body: Mapping[str, Any]
    method: str = "PUT"
    action: str = ""  # behind the path


@dataclass(frozen=True)
class Step:
    """`differs`: it exists, but not as described; `missing`: it cannot be created as described."""

    kind: str
    name: str
    action: Action
    text: str
    desired: DesiredCluster | DesiredDatastore | DesiredEnvironment | DesiredResource = field(
        repr=False
    )

    @property
    def is_work(self) -> bool:
        return self.action in ("create", "change")


def unchecked_plan(required: WorkspaceRequirements) -> tuple[Step, ...]:
    """All that would be created in a workspace that does not exist yet."""
    return (
        *(
            Step("cluster", each.cluster.name, "create", str(each.cluster), each)
            for each in required.clusters
        ),
        *(
            Step("datastore", each.name, "create", f"container {each.container}", each)
            for each in required.datastores
        ),
        *(
            Step("environment", str(each), "create", each.image, each)
            for each in required.environments
        ),
    )


def make_plan(
    connection: Connection, required: WorkspaceRequirements, change: bool = False
) -> tuple[Step, ...]:
    """Reads only. `change`: update what can be updated in place."""
    plan = _Planner(connection, change)
    return (
        *(plan.cluster(desired) for desired in required.clusters),
        *(plan.datastore(desired) for desired in required.datastores),
        *(plan.environment(desired) for desired in required.environments),
    )


class _Planner:
    def __init__(self, connection: Connection, change: bool) -> None:
        self._connection = connection
        self._change = change
        self._sizes: dict[str, Any] | None = None

    def cluster(self, desired: DesiredCluster) -> Step:
        wanted = desired.cluster
        existing = find_cluster(self._connection, wanted.name)
        if existing is None:
            reason = self._cannot_be_created(wanted)
            if reason:
                return Step("cluster", wanted.name, "missing", reason, desired)
            return Step("cluster", wanted.name, "create", str(wanted), desired)
        fixed = list(_fixed_differences(desired, existing))
        loose = list(_loose_differences(desired, existing))
        if not fixed and not loose:
            size, spot = getattr(existing, "size", ""), ", spot" if is_spot(existing) else ""
            least = getattr(existing, "min_instances", 0)
            nodes = f"{least} to {getattr(existing, 'max_instances', 0)} nodes"
            return Step("cluster", wanted.name, "keep", f"{size}, {nodes}{spot}", desired)
        differences = "; ".join((*fixed, *loose))
        if fixed:
            fix = "size, tier and identity are fixed; delete it, or choose another name"
            text = f"{differences}: {fix}"
            return Step("cluster", wanted.name, "differs", text, desired)
        if self._change:
            return Step("cluster", wanted.name, "change", differences, desired)
        text = f"{differences}: 'edgeloop azure setup --change' applies it"
        return Step("cluster", wanted.name, "differs", text, desired)

    def datastore(self, desired: DesiredDatastore) -> Step:
        existing = find_datastore(self._connection, desired.name)
        address = f"container {desired.container} of account {desired.account}"
        if existing is None:
            how = "with its key" if desired.key else "by identity"
            return Step("datastore", desired.name, "create", f"{address}, {how}", desired)
        found = (getattr(existing, "account_name", ""), getattr(existing, "container_name", ""))
        if found == (desired.account, desired.container):
            return Step("datastore", desired.name, "keep", address, desired)
        text = f"it points to container {found[1]} of account {found[0]}, not to {address}"
        text = f"{text}: name another one with 'datastore:' in the compute's settings"
        return Step("datastore", desired.name, "differs", text, desired)

    def environment(self, desired: DesiredEnvironment) -> Step:
        existing = find_environment(self._connection, desired)
        name = str(desired)
        if existing is not None:
            return Step("environment", name, "keep", "registered", desired)
        if not desired.image:
            text = "it is not registered: correct its name, or name a conda file instead"
            return Step("environment", name, "missing", text, desired)
        text = f"{desired.image}{' and packages' if desired.conda else ''}"
        return Step("environment", name, "create", text, desired)

    def _cannot_be_created(self, wanted: ClusterDescription) -> str:
        if not wanted.size:
            return "it does not exist, and no 'size' says how to create it"
        if self._sizes is None:
            self._sizes = list_sizes(self._connection)
        if not self._sizes or wanted.size.upper() in self._sizes:
            return ""
        near = get_close_matches(wanted.size.upper(), self._sizes, n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        return f"unknown size {wanted.size} in the workspace's region{hint}"


def _fixed_differences(desired: DesiredCluster, existing: Any) -> Iterator[str]:
    wanted = desired.cluster
    size = str(getattr(existing, "size", "") or "")
    if "size" in desired.explicit and size and size.upper() != wanted.size.upper():
        yield f"its nodes are {size}, not {wanted.size}"
    spot = is_spot(existing)
    if "spot" in desired.explicit and spot != wanted.spot:
        yield "it is spot, not dedicated" if spot else "it is dedicated, not spot"
    needs_identity = "identity" in desired.explicit and wanted.managed_identity
    if needs_identity and not has_identity(existing, wanted.client_id):
        yield (
            f"it lacks the identity {wanted.client_id}"
            if wanted.client_id
            else ("it has no managed identity")
        )


def _loose_differences(desired: DesiredCluster, existing: Any) -> Iterator[str]:
    wanted = desired.cluster
    nodes = (getattr(existing, "min_instances", None), getattr(existing, "max_instances", None))
    asked = (wanted.least_nodes, wanted.most_nodes)
    if "nodes" in desired.explicit and nodes != asked:
        yield f"it has {nodes[0]} to {nodes[1]} nodes, not {asked[0]} to {asked[1]}"
    idle = getattr(existing, "idle_time_before_scale_down", None)
    if "idle" in desired.explicit and abs(float(idle or 0) - wanted.idle_s) > _SECONDS_OFF:
        yield f"its idle time is {idle:g} s, not {wanted.idle_s:g} s"


def is_spot(existing: Any) -> bool:
    return str(getattr(existing, "tier", "") or "").lower().replace("_", "") == "lowpriority"


def as_row(step: Step) -> Mapping[str, object]:
    """For programs; `desired` may hold a key, so it is left out."""
    return {"kind": step.kind, "name": step.name, "action": step.action, "text": step.text}


@dataclass(frozen=True)
class StepResult:
    """`ok` is false for what failed; what differs from its description is reported and left
    alone."""

    step: Step
    did: str
    ok: bool = True
    text: str = ""


def plan_setup(
    connection: Connection, required: WorkspaceRequirements, change: bool = False
) -> tuple[Step, ...]:
    """The steps to take; Azure's errors become ours."""
    require_packages()
    with explained("azureml", required.address):
        # In a workspace that does not exist, everything would be missing.
        connection.manager.get(required.address.path, WORKSPACE_VERSION)
        return make_plan(connection, required, change)


def apply_plan(
    connection: Connection,
    required: WorkspaceRequirements,
    plan: Sequence[Step],
    tell: Callable[[StepResult], None],
) -> list[StepResult]:
    """Every step is tried: a cluster without quota does not prevent the environment. Only a cloud
    that no longer responds ends it at once. Raises SetupFailed at the end if a step failed."""
    done: list[StepResult] = []
    for step in plan:
        try:
            result = _perform(connection, required, step)
        except ComputeUnavailable as error:
            tell(failed := StepResult(step, "failed", False, _reason(error)))
            raise failure([*done, failed], len(plan)) from None
        except EdgeloopError as error:
            result = StepResult(step, "failed", False, _reason(error))
        done.append(result)
        tell(result)
    if any(not each.ok for each in done):
        raise failure(done, len(plan))
    return done


def _perform(connection: Connection, required: WorkspaceRequirements, step: Step) -> StepResult:
    if step.action == "keep":
        return StepResult(step, "kept", text=step.text)
    if not step.is_work:
        return StepResult(step, step.action, step.action == "differs", step.text)
    begun: list[str] = []
    try:
        return _make(connection, required, step, lambda: begun.append(step.name))
    except EdgeloopError:
        raise
    except Exception as error:
        note = f"{step.kind} {step.name} was started and may exist" if begun else ""
        if not is_azure_error(error):
            raise
        raise explain(error, step.name, required.address, note) from None


def _make(
    connection: Connection, required: WorkspaceRequirements, step: Step, began: Callable[[], None]
) -> StepResult:
    desired = step.desired
    if isinstance(desired, DesiredCluster):
        if step.action == "change":
            return _waited(step, "changed", change_cluster(connection, desired.cluster))
        return _waited(step, "created", make_cluster(connection, desired.cluster, began))
    if isinstance(desired, DesiredDatastore):
        store = required.store
        is_own = (store.account, store.container) == (desired.account, desired.container)
        if is_own and not store.is_made:
            key = f"{TRIAL_FOLDER}/{uuid4().hex}"  # the first file creates the container
            store.files.put(key, b"created by 'edgeloop azure setup'")
            store.files.delete([key])
        make_datastore(connection, desired, storage_suffix(connection))
    elif isinstance(desired, DesiredEnvironment):
        make_environment(connection, desired)
    return StepResult(step, "created", text=step.text)


def _waited(step: Step, did: str, is_done: bool) -> StepResult:
    if is_done and isinstance(step.desired, DesiredCluster):
        return StepResult(step, did, text=str(step.desired.cluster))
    return StepResult(
        step, "failed", False, "Azure is still working on it: check again in some minutes"
    )


def failure(done: Sequence[StepResult], steps: int, command: str = "azure setup") -> SetupFailed:
    """What failed, what exists by now, and how to continue."""
    bad = [each for each in done if not each.ok]
    reason = "; ".join(f"{each.step.kind} {each.step.name}: {each.text}" for each in bad)
    made = [f"{d.step.kind} {d.step.name}" for d in done if d.did in ("created", "changed")]
    created = f"Created: {', '.join(made)}" if made else "Nothing was created"
    left = f"; {steps - len(done)} more steps were not tried" if len(done) < steps else ""
    advice = f"{created}{left}. Run 'edgeloop {command}' again to continue"
    return SetupFailed(reason=reason.rstrip("."), there=f"{advice}.")


def _reason(error: EdgeloopError) -> str:
    """Without 'The compute X refused', since the step is named."""
    return str(error.fields.get("reason") or error)
