"""The actor that keeps one process alive on the node where Ray has put it.

Ray starts the actor again, here or on another node, when it or its node dies. Its process is
killed by the kernel when the actor ends, however it ends. It needs Ray and the standard library.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from edgeloop._util.system import python_module
from edgeloop.errors import EdgeloopError
from edgeloop.operate.fleet.launcher import RunnerOrder
from edgeloop.operate.fleet.process import RunnerProcess
from edgeloop.operate.fleet.ray import environment
from edgeloop.operate.fleet.ray.environment import SHIPMENT_VARIABLE, SUPERVISOR, Shipment

if TYPE_CHECKING:
    from pathlib import Path

_POLL_S = 0.2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 300.0  # before an environment is built again


class ProcessActor:
    """Keeps a runner alive, or (without an order) the supervisor, until it is told to end.

    All of its arguments are small texts: Ray keeps those for as long as the actor lives, but would
    lose an object of the process that created the actor when that ends.
    """

    def __init__(self, shipment: str, order: str = "") -> None:
        self._shipment = Shipment.from_json(shipment)
        self._order = RunnerOrder.from_json(order) if order else None
        self._process: RunnerProcess | None = None
        self._note = "its node is being made ready"
        self._is_unfit = self._is_ready = self._is_ending = self._is_killed = False
        # The kernel kills a process with the thread that started it: this one lives to the end.
        threading.Thread(target=self._keep, daemon=True).start()

    def status(self) -> dict[str, Any]:
        """What a launcher asks about every second."""
        process = self._process
        state = "waiting" if process is None else process.state
        if self._is_ending and state != "ended":
            state = "draining"
        note = self._note if process is None else process.note
        said = environment.last_words() if process is not None and note else ""
        return {
            "state": state,
            "note": f"{note}: {said}" if said else note,
            "ready": self._is_ready,
            "unfit": self._is_unfit,  # the node cannot be made ready
            "pid": None if process is None else process.pid,
        }

    def is_ready(self) -> None:
        """Called by the supervisor's own process when it has taken the fleet over."""
        self._is_ready = True

    def drain(self) -> None:
        self._is_ending = True

    def kill(self) -> None:
        self._is_ending = self._is_killed = True

    def _keep(self) -> None:
        process = self._prepared()
        if process is not None:
            with environment.interpreter_in_use(process.python):
                self._look_after(process)
        _leave()

    def _look_after(self, process: RunnerProcess) -> None:
        while process.poll() != "ended":
            if self._is_killed:
                process.kill()
            elif self._is_ending:
                process.drain()
            time.sleep(_POLL_S)

    def _prepared(self) -> RunnerProcess | None:
        """Once the node is ready; None if it is not wanted any more."""
        pause_s = _FIRST_PAUSE_S
        while not self._is_ending:
            try:
                self._process, self._is_unfit = self._new_process(), False
                return self._process
            except (EdgeloopError, OSError) as error:
                self._note, self._is_unfit = str(error), True
                sys.stderr.write(f"edgeloop: {error}\n")
            self._wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._is_ending:
            time.sleep(_POLL_S)

    def _new_process(self) -> RunnerProcess:
        import ray

        shipment, order = self._shipment, self._order
        address = ray.get_runtime_context().gcs_address
        variables = environment.node_variables(shipment.variables, address)
        python = environment.interpreter(shipment.requirements, variables)
        folder = environment.node_cache() / "fleet"
        folder.mkdir(parents=True, exist_ok=True)
        if order is not None:
            return RunnerProcess(order, variables, python=python, cwd=folder)
        return _supervisor(shipment, variables, python, folder)


def _supervisor(
    shipment: Shipment, variables: Mapping[str, str], python: str, folder: Path
) -> RunnerProcess:
    """It takes what it passes on from its own variables, so no secret is written twice."""
    own = {**variables, SHIPMENT_VARIABLE: shipment.public_json()}
    command = python_module("edgeloop.operate.fleet.ray.supervise", *shipment.words, python=python)
    order = RunnerOrder(f"{shipment.fleet}-{SUPERVISOR}", "")
    return RunnerProcess(order, own, python=python, cwd=folder, command=command)


def _leave() -> None:
    """End this actor for good: Ray would start it again otherwise."""
    import ray

    with suppress(Exception):
        ray.kill(ray.get_runtime_context().current_actor)


def connect(shipment: Shipment) -> None:
    """Join the cluster of this node, in the namespace of a fleet. Whatever is created then has the
    fleet's package."""
    import ray

    ray.init(
        namespace=shipment.namespace,
        runtime_env={"py_modules": [shipment.package]},
        log_to_driver=False,
        logging_level=logging.WARNING,
    )


def create_actor(
    name: str,
    arguments: Sequence[str],
    cpus: float = 0,
    resources: Mapping[str, float] | None = None,
) -> Any:
    """Its handle. The actor outlives whoever creates it, and Ray starts it again whenever it dies.
    CPUs are always said: without them, an autoscaler does not see what waits."""
    import ray

    kind: Any = ray.remote(ProcessActor)
    return kind.options(
        name=name,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=0,
        num_cpus=cpus,
        resources=dict(resources or {}),
        max_concurrency=4,
    ).remote(*arguments)
