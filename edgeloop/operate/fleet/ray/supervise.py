"""`python -m edgeloop.operate.fleet.ray.supervise`: the supervisor of a fleet, inside its cluster.

An actor keeps this process alive. It exits with 0 when the fleet has ended or another supervisor
has taken over.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeloop._util.redact import redact
from edgeloop.errors import ComputeUnavailable, EdgeloopError, NotFound
from edgeloop.operate.fleet.launcher import Launcher, RunnerOrder, RunnerState
from edgeloop.operate.fleet.ray.node import (
    SHIPMENT_VARIABLE,
    SUPERVISOR,
    Shipment,
    connect,
    create_actor,
    own_variables,
)
from edgeloop.operate.fleet.records import Fleets
from edgeloop.operate.fleet.start import prepared
from edgeloop.operate.fleet.supervisor import drain_orphans, supervise
from edgeloop.platforms import is_board
from edgeloop.settings import Settings
from edgeloop.store.location import open_store

if TYPE_CHECKING:
    from edgeloop.operate.fleet.records import FleetRecord


def main() -> None:
    prepared(sys.argv[1:])
    environ = own_variables()
    shipment = Shipment.from_json(environ[SHIPMENT_VARIABLE], environ)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def make_launcher(_: FleetRecord) -> Launcher:
        launcher = RayLauncher(shipment)
        _report(shipment)
        return launcher

    where = f"actor {SUPERVISOR} in Ray's namespace {shipment.namespace}"
    try:
        settings = Settings.load()
        try:
            check_fleet(settings, shipment.fleet)
            # Ray has one actor of this name. Should an older one live on behind a broken network,
            # it finds another's token in the record and ends.
            supervise(
                settings,
                shipment.fleet,
                make_launcher,
                where=where,
                stop=stop,
                is_alone=True,
                tell=_tell,
            )
        except NotFound:
            _end(settings, shipment, stop)
    except EdgeloopError as error:
        sys.exit(f"edgeloop: {redact(str(error))}")


def check_fleet(settings: Settings, fleet: str) -> None:
    """Raises NotFound, or StoreError where this node cannot open the store, so that
    `fleet up` fails instead of waiting."""
    store = open_store(settings.location)
    try:
        Fleets(store).named(fleet)
    finally:
        store.close()


def _end(settings: Settings, shipment: Shipment, stop: threading.Event) -> None:
    """The fleet has ended, or its record was removed while it had runners."""
    store, launcher = open_store(settings.location), RayLauncher(shipment)
    try:
        drain_orphans(Fleets(store), shipment.fleet, launcher, stop.wait)
    finally:
        launcher.close()
        store.close()


def _tell(sentence: str) -> None:
    sys.stderr.write(f"edgeloop: {redact(sentence)}\n")


def _report(shipment: Shipment) -> None:
    """Tell the actor, which tells the job that waits for the fleet to come up."""
    import ray

    with suppress(ValueError, ray.exceptions.RayError):
        ray.get_actor(SUPERVISOR, namespace=shipment.namespace).is_ready.remote()


# Runners as detached actors of a Ray cluster, placed by the CPUs and boards that they need.
#
# An actor's name holds the whole order, so that a supervisor that was started again, on whatever
# node, knows what an earlier one had started, including what still waits for a place. It adopts
# what Ray started again with it; what belongs to an earlier `fleet up` ends after its stage.


_ANSWER_S = 0.2
_SILENCE_S = 5.0  # until an actor that does not answer counts as waiting
_LOST_S, _UNPLACED_S = 60.0, 20.0  # until one that was told to end and does not answer is killed
_NODES_KNOWN_FOR_S = 5.0
# What Ray calls actors that have no process now.
_UNPLACED = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")


@dataclass
class _Actor:
    """One runner as this launcher knows it."""

    order: RunnerOrder
    handle: Any
    question: Any = None  # a call that was not answered yet
    asked: float = 0.0
    state: RunnerState = "waiting"
    note: str = ""
    is_placed: bool = False  # it answered lately
    is_drained: bool = False  # it was told to end

    @property
    def shown_state(self) -> RunnerState:
        """What was told to end is ending, wherever it is."""
        return "draining" if self.is_drained and self.state != "ended" else self.state

    def silent_s(self, now: float) -> float:
        """For how long it has owed an answer."""
        return now - self.asked if self.question is not None else 0.0

    @property
    def has_process(self) -> bool:
        """Unless Ray is certain that it has none. It may be at work though it does not answer."""
        return actor_state(self.handle) not in _UNPLACED

    def is_lost(self, now: float) -> bool:
        """Whether it may never have been told to end: it has no place, or no connection."""
        if not self.is_drained or self.silent_s(now) > _LOST_S:
            return self.is_drained
        has_failed = self.question is None and not self.is_placed
        return (has_failed or self.silent_s(now) > _UNPLACED_S) and not self.has_process


class RayLauncher(Launcher):
    """For the process of a supervisor inside the cluster."""

    def __init__(self, shipment: Shipment) -> None:
        import ray

        self._ray, self._shipment = ray, shipment
        self._actors: dict[str, _Actor] = {}
        self._nodes: tuple[float, list[dict[str, float]]] = (float("-inf"), [])
        with self._calls():
            connect(shipment)

    def start(self, order: RunnerOrder) -> None:
        if order.id in self._actors:
            return
        arguments = [self._shipment.to_json(), order.to_json()]
        with self._calls():
            handle = create_actor(self._name(order), arguments, order.cpus, _resources_of(order))
        self._actors[order.id] = _Actor(order, handle)

    def states(self) -> Mapping[str, RunnerState]:
        with self._calls():
            self._find()
            self._ask()
        return {name: actor.shown_state for name, actor in self._actors.items()}

    def orders(self) -> Mapping[str, RunnerOrder]:
        return {name: actor.order for name, actor in self._actors.items()}

    def drain(self, runner: str) -> None:
        """What has no place yet has nothing to finish."""
        actor = self._actors.get(runner)
        if actor is None:
            return
        if not actor.is_placed and not actor.has_process:
            self.kill(runner)
            return
        actor.is_drained = True
        with self._calls():
            actor.handle.drain.remote()

    def kill(self, runner: str) -> None:
        actor = self._actors.pop(runner, None)
        if actor is not None:
            with self._calls(), suppress(ValueError):
                self._ray.kill(actor.handle)

    def devices(self) -> Sequence[str]:
        return sorted({name for node in self._resources() for name in node if _is_board(name)})

    def notes(self) -> Mapping[str, str]:
        notes = {}
        for name, actor in self._actors.items():
            note = actor.note or ("" if actor.is_placed else self._obstacle(actor.order))
            if note:
                notes[name] = note
        return notes

    def close(self) -> None:
        with suppress(Exception):
            self._ray.shutdown()

    def _find(self) -> None:
        """The actors of this fleet that are not dead, by their names."""
        listed = {}
        for name in self._ray.util.list_named_actors():
            order = _order(name)
            if order is not None:
                listed[order.id] = (name, order)
        for gone in self._actors.keys() - listed.keys():
            del self._actors[gone]
        for each in listed.keys() - self._actors.keys():
            name, order = listed[each]
            with suppress(ValueError):  # it ended meanwhile
                actor = _Actor(order, self._ray.get_actor(name))
                actor.is_drained = name != self._name(order)
                self._actors[each] = actor

    def _name(self, order: RunnerOrder) -> str:
        return f"{order.id} {self._shipment.id} {order.to_json()}"

    def _ask(self) -> None:
        """All at once; one that waits for a place answers when it has one."""
        now = time.monotonic()
        for actor in self._actors.values():
            if actor.question is None:
                actor.question, actor.asked = actor.handle.status.remote(), now
        questions = [actor.question for actor in self._actors.values()]
        if not questions:
            return
        answered, _ = self._ray.wait(questions, num_returns=len(questions), timeout=_ANSWER_S)
        ready = set(answered)
        for actor in self._actors.values():
            if actor.question in ready:
                self._take(actor)
            elif now - actor.asked > _SILENCE_S:
                actor.state = "waiting"
        for name in [name for name, actor in self._actors.items() if actor.is_lost(now)]:
            self.kill(name)

    def _take(self, actor: _Actor) -> None:
        question, actor.question = actor.question, None
        try:
            answer = self._ray.get(question, timeout=_ANSWER_S)
        except self._ray.exceptions.RayError as error:
            is_over = isinstance(error, self._ray.exceptions.ActorDiedError)
            actor.state, actor.is_placed = "ended" if is_over else "waiting", False
            actor.note = "" if is_over else "Ray is starting it again"
            return
        actor.state, actor.note, actor.is_placed = answer["state"], answer["note"], True
        if actor.is_drained and actor.state in ("running", "waiting"):  # it was started again
            actor.handle.drain.remote()

    def _obstacle(self, order: RunnerOrder) -> str:
        """Why it has no place. Ray itself lets what no node can have wait for ever."""
        needed = {"CPU": float(order.cpus), **_resources_of(order)}
        nodes = self._resources()
        if not any(all(node.get(n, 0.0) >= v for n, v in needed.items()) for node in nodes):
            what = ", ".join(f"{value:g} × {name}" for name, value in needed.items() if value)
            return f"no node of the cluster has {what}"
        return "every node that could run it is full, or it is being started"

    def _resources(self) -> list[dict[str, float]]:
        """Of the living nodes, in total."""
        asked, nodes = self._nodes
        if time.monotonic() - asked > _NODES_KNOWN_FOR_S:
            with self._calls():
                listed: list[Any] = self._ray.nodes()  # type: ignore[no-untyped-call]
            nodes = [node["Resources"] for node in listed if node["Alive"]]
            self._nodes = (time.monotonic(), nodes)
        return nodes

    @contextmanager
    def _calls(self) -> Iterator[None]:
        try:
            yield
        except (self._ray.exceptions.RayError, ConnectionError, TimeoutError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ComputeUnavailable(compute="ray", reason=f"Ray said: {reason}") from None


def actor_state(handle: Any) -> str:
    """In Ray's own table, such as ALIVE; empty where it cannot be had."""
    with suppress(Exception):  # no public function answers without the dashboard
        from ray._private import state

        return str(state.actors(handle._actor_id.hex())["State"])
    return ""


def _resources_of(order: RunnerOrder) -> dict[str, float]:
    board = {order.device: 1.0} if is_board(order.device) else {}
    return {**board, **order.resources}


def _order(name: str) -> RunnerOrder | None:
    """None: it is no runner."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        _, _, text = name.split(" ", 2)
        return RunnerOrder.from_json(text)
    return None


def _is_board(name: str) -> bool:
    """Whether a resource of a node is a board that is plugged into it."""
    return ":" in name.strip(":") and is_board(name)


if __name__ == "__main__":
    main()
