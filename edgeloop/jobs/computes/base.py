"""The interface between jobs and the machines that run them.

A compute starts one program, the wrapper, and can tell whether it still runs. Everything else
(code, data, outputs, logs, exit code) is up to the wrapper and goes through the store, so a new
compute is one small file. A job has the same id everywhere; there is no second handle to lose.
Submitting an id again is harmless: a compute that has it already does nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from edgeloop._util.schema import Section, Text, key, validated
from edgeloop._util.values import suggestion
from edgeloop._util.yaml import Origin
from edgeloop.errors import BadSetting
from edgeloop.node.ticket import Environment, Pace, Resources, State, WrapperOrder
from edgeloop.store import Access, Blobs

ENTRY_POINTS = "edgeloop.computes"
_BUILT_IN = {
    "local": ("local", "LocalCompute"),
    "ray": ("ray", "RayCompute"),
    "azureml": ("azureml.compute", "AzureMLCompute"),
}


class ComputeOptions(Section):
    """The keys of a compute in `edgeloop.yaml`; those that every compute has."""

    kind: Text = key("", "The kind of compute; by default the compute's name.")


@dataclass(frozen=True)
class ServedPlace:
    """Data at a URL that the compute itself mounts, downloads or uploads. The wrapper finds its
    path in the variable of that name."""

    variable: str
    url: str
    mode: str  # mount, download (of outputs: upload), or empty for the compute's own choice
    is_output: bool
    is_file: bool


@dataclass(frozen=True)
class JobOrder:
    """All that a compute needs to start a job. The access holds secrets: never log an order."""

    job: str
    name: str
    resources: Resources
    priority: int
    access: Access = field(repr=False)
    wrapper: str  # its key in the store
    environment: Environment = field(default_factory=Environment)  # if the compute `builds` it
    recipe: str = field(default="", repr=False)  # the text of its file
    experiment: str = ""
    timeout_s: float | None = None
    threads: int = 0  # for numerical libraries, if a number of CPUs was asked for
    together: bool = False  # with the others of its batch, if the compute has pipelines
    places: tuple[ServedPlace, ...] = ()  # if the compute `serves` their kind of URL
    requires: tuple[str, ...] = ()  # what an environment that is built for it must have as well
    link: str = field(default="", repr=False)  # reads a file of the order, where it `exposes` it


def order_variables(order: JobOrder, pace: Pace | None = None) -> dict[str, str]:
    """The variables that a compute sets for the process it starts."""
    nodes = order.resources.nodes
    return WrapperOrder(
        order.job, order.wrapper, order.access, pace or Pace(), nodes
    ).to_variables()


@dataclass(frozen=True)
class ObservedState:
    """What a compute itself knows about a job: whether it waits, runs or is over.

    `completed` and `failed` tell how the wrapper's process ended. The wrapper's own report in the
    store, if there is one, is better. None: this compute does not know the job.
    """

    state: State | None
    reason: str = ""


class Compute(ABC):
    """Any machine or cluster. Every call ends within a time limit or raises ComputeUnavailable."""

    Options: ClassVar[type[ComputeOptions]]  # the model of its settings
    is_per_machine: ClassVar[bool] = False  # whether each machine has a folder of its own for it
    name: str
    kind: str
    builds: frozenset[str] = frozenset()  # kinds of environments that the node need not build
    serves: frozenset[str] = frozenset()  # kinds of URLs that it provides: azureml, azure, s3, gs
    sees_folders: bool = True  # whether its machines may see the folders of this one
    on_its_way_s: float = 60.0  # from the record of a job until the compute must know it

    @property
    def place(self) -> Mapping[str, str]:
        """Settings that a job's record keeps, so that the job is found again after they changed,
        for example its workspace."""
        return {}

    @property
    def note(self) -> str:
        """What a submitter should know about the jobs, in a few words; empty: nothing."""
        return ""

    @abstractmethod
    def check(self, resources: Resources) -> None:
        """Raises Infeasible, with what is available, if the job could never start."""

    @abstractmethod
    def submit(self, order: JobOrder) -> None:
        """Accept the job, which may have to wait. Submitting an id twice is the same as once."""

    @abstractmethod
    def states(self, jobs: Sequence[str]) -> dict[str, ObservedState]:
        """The state of each job, with as few calls as the compute allows."""

    @abstractmethod
    def cancel(self, jobs: Sequence[str]) -> None:
        """Ask jobs to end, and return at once. Those that ended or are unknown are ignored."""

    @abstractmethod
    def logs(self, job: str) -> str:
        """The compute's own output about a job whose wrapper reported nothing; may be empty."""

    @abstractmethod
    def forget(self, jobs: Sequence[str]) -> None:
        """Remove what the compute keeps about jobs that are over."""

    def access_s(self, timeout_s: float | None) -> int | None:
        """How long a job's access to the store must be valid: 0 if the compute's machines have an
        identity of their own to open it, None for the default."""
        return None

    def exposes(self, access: Access, has_link: bool) -> str:
        """A sentence about who else can use a job's access to the store, and how to avoid that;
        empty if no one can. Where the store has links, such an order `has_link`: the compute stores
        the order under its key, and shows the link in place of the access."""
        return ""

    def submit_many(self, orders: Sequence[JobOrder]) -> None:
        """Override it if the compute can accept a batch at once."""
        for order in orders:
            self.submit(order)

    def rescue(self, job: str, blobs: Blobs) -> bool:
        """Store what a job left behind if all its processes died; True when that is done.

        Only a compute that is this machine can do so.
        """
        return False


Checked = TypeVar("Checked", bound=ComputeOptions)
Item = TypeVar("Item")


def read_options(model: type[Checked], name: str, config: Mapping[str, object]) -> Checked:
    """Raises BadSetting, which names the compute and the key."""
    return validated(model, config, Origin(f"computes.{name}", BadSetting))


def for_each(action: Callable[[Item], None], items: Iterable[Item], workers: int = 16) -> None:
    """In threads: all are tried, then the first error is raised."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(action, item) for item in items]
    for future in futures:
        future.result()


# A third-party compute plugs in by the entry point `edgeloop.computes`, which names its class:
# `Options` is the model of its settings, and it is constructed with its name, its checked options
# and the folder where it may keep files, which may not exist yet. A function that takes a mapping
# instead of options is accepted, too.


def make_compute(
    name: str, config: Mapping[str, object] | None = None, state_folder: Path | None = None
) -> Compute:
    """The compute of that name. Its settings say its `kind`, else the name does. Nothing is
    contacted or started before it is used. It always gets a folder: `state_folder`, or by default
    its kind's own in the state folder of the user, per machine if the kind `is_per_machine`."""
    settings = dict(config or {})
    kind = str(settings.get("kind", name))
    maker = _maker(kind)
    if maker is None:
        hint = suggestion(kind, compute_kinds(), "there are")
        raise BadSetting(where=f"computes.{name}", reason=f"unknown kind {kind!r}: {hint}")
    model = getattr(maker, "Options", None)
    options = settings if model is None else read_options(model, name, settings)
    folder = state_folder or _own_folder(kind, getattr(maker, "is_per_machine", False))
    made: Compute = maker(name, options, folder.absolute())
    return made


def compute_kinds() -> tuple[str, ...]:
    """What `kind` may be, those of plug-ins too."""
    others = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return (*_BUILT_IN, *sorted(others - set(_BUILT_IN)))


def compute_options(kind: str) -> type[ComputeOptions]:
    """The model of a kind's settings; of a plug-in without one, what every compute has."""
    maker = _maker(kind)
    if maker is None:
        hint = suggestion(kind, compute_kinds(), "there are")
        raise BadSetting(where="computes", reason=f"unknown kind {kind!r}: {hint}")
    model: type[ComputeOptions] = getattr(maker, "Options", ComputeOptions)
    return model


def _own_folder(kind: str, is_per_machine: bool) -> Path:
    from socket import gethostname

    from edgeloop.settings import state_folder

    folder = state_folder() / kind
    return folder / gethostname() if is_per_machine else folder


def _maker(kind: str) -> Callable[..., Any] | None:
    if kind in _BUILT_IN:
        module, name = _BUILT_IN[kind]
        built_in: Callable[..., Any] = getattr(
            import_module(f"edgeloop.jobs.computes.{module}"), name
        )
        return built_in
    for point in entry_points(group=ENTRY_POINTS, name=kind):
        loaded: Callable[..., Any] = point.load()
        return loaded
    return None
