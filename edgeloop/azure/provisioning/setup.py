"""Does what the plan says, a step at a time, and says what is there now when one fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from edgeloop.azure.connection import Connection, require_packages
from edgeloop.azure.errors import explain, explained, is_azures
from edgeloop.azure.manager import WORKSPACE_VERSION
from edgeloop.azure.provisioning.plan import Step, make_plan
from edgeloop.azure.provisioning.resources import (
    ClusterWish,
    DatastoreWish,
    EnvironmentWish,
    Needs,
    StorePlace,
    change_cluster,
    make_cluster,
    make_datastore,
    make_environment,
    storage_suffix,
)
from edgeloop.errors import ComputeUnavailable, EdgeloopError, SetupFailed

TRIAL_FOLDER = "doctor"


@dataclass(frozen=True)
class Done:
    """`ok` is false for what failed; what is there but not as described is named, and left."""

    step: Step
    did: str
    ok: bool = True
    text: str = ""


def plan_setup(connection: Connection, needs: Needs, change: bool = False) -> tuple[Step, ...]:
    """What there is to do; Azure's errors are sentences."""
    require_packages()
    with explained("azureml", needs.place):
        # In a workspace that is not there, everything would be missing.
        connection.manager.get(needs.place.path, WORKSPACE_VERSION)
        return make_plan(connection, needs, change)


def carry_out(
    connection: Connection, needs: Needs, plan: Sequence[Step], tell: Callable[[Done], None]
) -> list[Done]:
    """Every step is tried: a cluster without quota is no reason to leave out the environment. Only
    a cloud that no longer answers ends it at once. Raises SetupFailed at the end where one failed.
    """
    done: list[Done] = []
    for step in plan:
        try:
            result = _perform(connection, needs, step)
        except ComputeUnavailable as error:
            tell(failed := Done(step, "failed", False, _reason(error)))
            raise _failure([*done, failed], len(plan)) from None
        except EdgeloopError as error:
            result = Done(step, "failed", False, _reason(error))
        done.append(result)
        tell(result)
    if any(not each.ok for each in done):
        raise _failure(done, len(plan))
    return done


def _perform(connection: Connection, needs: Needs, step: Step) -> Done:
    if step.action == "keep":
        return Done(step, "kept", text=step.text)
    if not step.is_work:
        return Done(step, step.action, step.action == "differs", step.text)
    begun: list[str] = []
    try:
        return _make(connection, needs, step, lambda: begun.append(step.name))
    except EdgeloopError:
        raise
    except Exception as error:
        note = f"{step.kind} {step.name} was begun and may be there" if begun else ""
        if not is_azures(error):
            raise
        raise explain(error, step.name, needs.place, note) from None


def _make(connection: Connection, needs: Needs, step: Step, began: Callable[[], None]) -> Done:
    wish = step.wish
    if isinstance(wish, ClusterWish):
        if step.action == "change":
            return _waited(step, "changed", change_cluster(connection, wish.cluster))
        return _waited(step, "created", make_cluster(connection, wish.cluster, began))
    if isinstance(wish, DatastoreWish):
        _make_container(needs.store, wish)
        make_datastore(connection, wish, storage_suffix(connection))
    elif isinstance(wish, EnvironmentWish):
        make_environment(connection, wish)
    return Done(step, "created", text=step.text)


def _waited(step: Step, did: str, is_done: bool) -> Done:
    if is_done and isinstance(step.wish, ClusterWish):
        return Done(step, did, text=str(step.wish.cluster))
    return Done(step, "failed", False, "Azure is still at it: look again in some minutes")


def _make_container(store: StorePlace, wish: DatastoreWish) -> None:
    """Writing the first file makes it; a datastore that leads nowhere would be noticed late."""
    if (store.account, store.container) == (wish.account, wish.container):
        key = f"{TRIAL_FOLDER}/{uuid4().hex}"
        store.files.put(key, b"made by 'edgeloop azure setup'")
        store.files.delete([key])


def _failure(done: Sequence[Done], steps: int) -> SetupFailed:
    bad = [each for each in done if not each.ok]
    reason = "; ".join(f"{each.step.kind} {each.step.name}: {each.text}" for each in bad)
    made = [f"{d.step.kind} {d.step.name}" for d in done if d.did in ("created", "changed")]
    there = f"Made: {', '.join(made)}" if made else "Nothing was made"
    left = f"; {steps - len(done)} more steps were not tried" if len(done) < steps else ""
    going_on = f"{there}{left}. Run 'edgeloop azure setup' again to continue"
    return SetupFailed(reason=reason.rstrip("."), there=f"{going_on}.")


def _reason(error: EdgeloopError) -> str:
    """Without 'The compute X refused', which the step says better."""
    return str(error.fields.get("reason") or error)
