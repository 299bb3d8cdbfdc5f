"""The supervisor, tick by tick: store, queue and registry are real, engine and clock are not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgeloop.errors import ComputeUnavailable, StoreUnavailable, SupervisorReplaced
from edgeloop.models.runners import CurrentStage, Registry, RunnerDevice, RunnerEntry
from edgeloop.operate.fleet.launcher import Launcher, RunnerOrder, RunnerState
from edgeloop.operate.fleet.records import Bounds, FleetRecord, Fleets, FleetSpec
from edgeloop.operate.fleet.supervisor import FleetSupervisor, drain_orphans
from edgeloop.settings import Settings
from tests.store.passing import ClockedStore


class Engine(Launcher):
    """Runners that exist on paper. `slots`: how many find a place."""

    def __init__(self, slots: int = 10_000, boards: Sequence[str] = ()) -> None:
        self.slots, self.boards = slots, list(boards)
        self.there: dict[str, RunnerOrder] = {}
        self.told: dict[str, RunnerState] = {}
        self.killed: list[str] = []
        self.most: int | None = None
        self.can_convert: list[str] | None = None
        self.is_away = False

    def start(self, order: RunnerOrder) -> None:
        self.there.setdefault(order.id, order)

    def states(self) -> Mapping[str, RunnerState]:
        if self.is_away:
            raise ComputeUnavailable(compute="cluster", reason="it does not answer")
        placed = list(self.there)[: self.slots]
        free: dict[str, RunnerState] = {
            i: "running" if i in placed else "waiting" for i in self.there
        }
        return {**free, **{i: s for i, s in self.told.items() if i in self.there}}

    def orders(self) -> Mapping[str, RunnerOrder]:
        return dict(self.there)

    def drain(self, runner: str) -> None:
        self.told[runner] = "draining"

    def kill(self, runner: str) -> None:
        self.killed.append(runner)
        self.there.pop(runner, None)

    def devices(self) -> Sequence[str]:
        return self.boards

    def places(self, cpus: int) -> int | None:
        return self.most

    def toolchains(self) -> Collection[str] | None:
        return self.can_convert

    def notes(self) -> Mapping[str, str]:
        return {i: "no node has 1 CPU" for i, s in self.states().items() if s == "waiting"}

    def close(self) -> None: ...

    def finish(self) -> None:
        """What was told to end has ended."""
        for runner in [i for i, s in self.told.items() if s == "draining"]:
            self.there.pop(runner, None)
            del self.told[runner]

    def of(self, experiment: str, state: str = "running") -> list[str]:
        states = self.states()
        return [
            i for i, o in self.there.items() if o.experiment == experiment and states[i] == state
        ]


class House:
    """A fleet with its supervisor, its engine, its store and its clock."""

    def __init__(self, folder: Path, engine: Engine | None = None, **keys: Any) -> None:
        self.folder = folder
        self.store = ClockedStore()
        self.settings = Settings.load(folder, {"EDGELOOP_STORE": f"sqlite:{folder}/unused"})
        self.engine = engine or Engine()
        self.spec = FleetSpec(compute="local", **{"experiments": {"faces": None}, **keys})
        self.fleets = Fleets(self.store)
        self.fleets.declare(self.spec, "local", "here")
        self.time_s = 0.0
        self.offered = 0
        self.registry = Registry(self.store)
        self.supervisor = self.supervisor_now()

    def supervisor_now(self, is_alone: bool = False) -> FleetSupervisor:
        record = self.fleets.claim(self.spec.name, "the test", is_alone=is_alone)
        return FleetSupervisor(
            self.settings, self.store, record, self.engine, clock=lambda: self.time_s
        )

    def pass_s(self, seconds: float) -> None:
        self.time_s += seconds
        self.store.time_s += seconds

    def tick(self, times: int = 1, each_s: float = 1.0) -> None:
        for _ in range(times):
            self.pass_s(each_s)
            assert self.supervisor.tick()

    def offer(self, count: int, experiment: str = "faces") -> None:
        """That many stages that a machine could do now, as hints in the queue."""
        for _ in range(count):
            self.offered += 1
            key, model = f"quantize|0|x|m{self.offered}|convert", f"m{self.offered}"
            self.store.queue(experiment).insert(key, {"model": model, "stage": "convert"})

    def take_all(self, experiment: str) -> None:
        queue = self.store.queue(experiment)
        for hint in list(queue.query("quantize|")):
            queue.delete(hint)

    def register(
        self,
        runner: str,
        is_working: bool = False,
        since: float | None = None,
        can: tuple[str, ...] = ("quantize", "onnx"),
    ) -> None:
        doing = (CurrentStage("convert", "net-1", self.store.now()),) if is_working else ()
        state = "busy" if is_working else "idle"
        device = RunnerDevice(
            state=state,
            can=can,
            doing=doing,
            since=self.store.now() if since is None else since,
        )
        entry = RunnerEntry(f"{runner}|1", runner, "faces", devices=(device,))
        self.registry.write(entry)

    @property
    def record(self) -> FleetRecord:
        return self.fleets.named(self.spec.name)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "edgeloop.yaml").write_text("")
    yield tmp_path


def test_it_grows_from_zero_to_the_work_and_not_beyond_its_bound(folder: Path):
    house = House(folder, runners="0:4")
    house.tick(3)
    assert not house.engine.there
    house.offer(3)
    house.tick()
    assert len(house.engine.there) == 3
    house.offer(9)
    house.tick(3)
    assert len(house.engine.there) == 4
    seen = house.record.observed
    assert (seen.wanted, seen.running, seen.waiting) == (4, 4, 0)
    assert seen.shares["faces"]["ready"] >= 4
    order = next(iter(house.engine.there.values()))
    assert order.arguments == ("--experiment", "faces", "--cpus", "1", "--grace", "900")


def test_it_shrinks_to_its_least_by_idle_runners_only_and_after_a_while(folder: Path):
    house = House(folder, runners="1:4")
    house.offer(4)
    house.tick()
    runners = list(house.engine.there)
    for runner in runners:
        house.register(runner, is_working=runner == runners[0])
    house.take_all("faces")
    house.tick(9, each_s=3)
    assert not house.engine.told, "none has been idle for 30 seconds"
    for runner in runners:  # they are alive still
        house.register(runner, is_working=runner == runners[0])
    house.tick(9, each_s=3)
    assert not house.engine.told, "they became idle again meanwhile"
    house.tick(3, each_s=3)
    assert set(house.engine.told) == set(runners[1:]), "the one at work is left"
    house.engine.finish()
    house.tick(20)
    assert list(house.engine.there) == runners[:1]


def test_work_of_runners_elsewhere_is_left_to_them(folder: Path):
    house = House(folder, runners="0:4")
    house.offer(1)
    house.register("somebody-elses", is_working=True)
    house.tick(2)
    assert not house.engine.there


def test_two_experiments_share_by_weight_and_quota_and_who_comes_late_gets_its_share(folder: Path):
    house = House(
        folder,
        runners="0:7",
        experiments={"faces": {"weight": 2}, "hands": None, "cars": {"quota": 1}},
    )
    house.offer(9, "faces")
    house.tick()
    assert len(house.engine.of("faces")) == 7
    for runner in house.engine.of("faces"):
        house.register(runner, is_working=True)
    house.offer(9, "hands")
    house.offer(9, "cars")
    house.tick()
    assert not house.engine.told, "working ones get a while"
    house.tick(11)
    assert len(house.engine.of("faces", "draining")) == 3
    house.tick(5)
    assert len(house.engine.there) == 7, "a place is free when its runner has ended"
    house.engine.finish()
    house.tick(2)
    counts = {name: len(house.engine.of(name)) for name in ("faces", "hands", "cars")}
    assert counts == {"faces": 4, "hands": 2, "cars": 1}
    house.tick(30)
    assert counts == {name: len(house.engine.of(name)) for name in counts}, "and nothing moves"
    assert not house.engine.told


def test_an_idle_runner_goes_at_once_to_whom_it_helps(folder: Path):
    house = House(folder, runners="2:2", experiments={"faces": None, "hands": None})
    house.offer(2, "faces")
    house.tick()
    for runner in house.engine.there:
        house.register(runner, is_working=False)
    house.take_all("faces")
    house.offer(1, "hands")
    house.tick(4)
    assert len(house.engine.of("faces", "draining")) == 1
    house.engine.finish()
    house.tick()
    assert len(house.engine.of("hands")) == 1


def test_what_people_want_anew_is_obeyed(folder: Path):
    house = House(folder, runners="0:2")
    house.offer(8)
    house.tick()
    house.fleets.scale("fleet", Bounds(0, 5))
    house.tick()
    assert len(house.engine.there) == 5
    assert house.record.seen == house.record.generation
    changed = house.spec.model_copy(update={"cpus": 2, "runners": Bounds(0, 5)})
    house.fleets.declare(changed, "local", "here")
    house.tick()
    assert len(house.engine.told) == 5, "they were started with one core"
    house.engine.finish()
    house.tick()
    assert {order.cpus for order in house.engine.there.values()} == {2}


def test_of_runners_that_cannot_take_the_work_one_stays_and_looks(folder: Path):
    house = House(folder, runners="0:4")
    house.offer(9)
    house.tick()
    runners, since = list(house.engine.there), house.store.now()
    for _ in range(5):
        for runner in runners:
            house.register(runner, since=since)
        house.tick(3, each_s=3)
    assert not house.engine.told, "they may find something yet"
    for runner in runners:
        house.register(runner, since=since)
    house.tick(7, each_s=3)
    assert len(house.engine.told) == 3
    house.engine.finish()
    (prober,) = house.engine.there
    house.register(prober, since=since)
    house.tick(9)
    assert list(house.engine.there) == [prober]
    house.register(prober, is_working=True)
    house.tick(4)
    assert len(house.engine.there) == 4, "it found something, so others may"


def test_runners_that_wait_for_a_machine_are_not_taken_for_useless_ones(folder: Path):
    """A cluster that must grow first needs minutes for a machine."""
    house = House(folder, Engine(slots=2), runners="0:8")
    house.offer(8)
    house.tick()
    for runner in house.engine.of("faces"):
        house.register(runner, is_working=True)
    house.tick(30, 10.0)
    assert len(house.engine.of("faces", "waiting")) == 6
    assert not house.engine.of("faces", "draining")


def test_a_lower_bound_is_obeyed_though_all_are_at_work(folder: Path):
    house = House(folder, runners="0:4")
    house.offer(9)
    house.tick()
    runners = list(house.engine.there)
    for runner in runners:
        house.register(runner, is_working=runner != runners[2])
    house.tick(3)
    house.fleets.scale("fleet", Bounds(0, 2))
    house.tick()
    assert len(house.engine.told) == 2 and runners[2] in house.engine.told
    assert not house.engine.killed


def test_there_are_no_more_runners_than_places(folder: Path):
    engine = Engine()
    engine.most = 3
    house = House(folder, engine, runners="2:9")
    house.offer(9)
    house.tick()
    assert len(engine.there) == 3
    assert house.record.observed.note == "there is room for 3 runners"


def test_down_waits_for_stages_and_forgets_the_fleet_and_now_does_not_wait(folder: Path):
    house = House(folder, runners="2:2")
    house.tick()
    working = next(iter(house.engine.there))
    house.register(working, is_working=True)
    house.fleets.end("fleet", now=False)
    house.tick(5)
    assert set(house.engine.told) == set(house.engine.there) and not house.engine.killed
    assert house.record.observed.note == "1 finishes its stage"
    house.fleets.end("fleet", now=True)
    assert not house.supervisor.tick()
    assert len(house.engine.killed) == 2 and house.fleets.get("fleet") is None


def test_up_while_it_goes_down_keeps_the_fleet(folder: Path):
    house = House(folder, runners="1:1")
    house.tick()
    house.fleets.end("fleet", now=False)
    house.tick()
    house.fleets.declare(house.spec, "local", "here")
    house.engine.finish()
    house.tick()
    assert len(house.engine.of("faces")) == 1


def test_a_successor_adopts_and_the_old_one_never_acts_again(folder: Path):
    house = House(folder, runners="0:4")
    house.offer(3)
    house.tick()
    before = dict(house.engine.there)
    old = house.supervisor
    house.pass_s(21)
    house.supervisor = house.supervisor_now()
    house.offer(1)
    with pytest.raises(SupervisorReplaced):
        old.tick()
    old.run()  # ends by itself
    assert house.engine.there == before
    house.tick()
    assert set(before) < set(house.engine.there) and len(house.engine.there) == 4


def test_runners_of_a_fleet_whose_record_is_gone_finish_and_end(folder: Path):
    house = House(folder, runners="2:2")
    house.tick()
    drain_orphans(house.fleets, "fleet", house.engine, lambda _: True)
    assert not house.engine.told, "the fleet is there, whoever leads it"
    assert house.fleets.remove(house.record)
    house.supervisor.run()
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        assert set(house.engine.told) == set(house.engine.there)
        if len(waits) == 3:
            house.engine.finish()
        return len(waits) > 3

    drain_orphans(house.fleets, "fleet", house.engine, wait)
    assert len(waits) == 3 and not house.engine.there and not house.engine.killed


def test_a_supervisor_that_was_stopped_for_long_looks_again_before_it_acts(folder: Path):
    house = House(folder, runners="0:4")
    house.offer(2)
    slow = house.engine.states

    def states() -> Mapping[str, RunnerState]:
        house.pass_s(11)
        return slow()

    house.engine.states = states  # type: ignore[method-assign]
    assert house.supervisor.tick()
    assert not house.engine.there


def test_without_a_store_or_an_engine_everything_stays_and_it_tries_again(folder: Path):
    house = House(folder, runners="2:2")
    pauses: list[float] = []
    original = house.store.fleets().get

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        house.pass_s(seconds)
        if len(pauses) == 4:
            house.supervisor._fleets._table.get = original  # type: ignore[attr-defined]
            house.engine.is_away = True
        if len(pauses) == 8:
            house.engine.is_away = False
        return len(pauses) == 10

    def away(key: str) -> None:
        raise StoreUnavailable(store="x", reason="away")

    house.tick()
    house.supervisor._wait = wait
    house.supervisor._fleets._table.get = away  # type: ignore[attr-defined]
    house.supervisor.run()
    assert pauses == [2, 4, 8, 15, 15, 15, 15, 15, 1, 1]
    assert len(house.engine.there) == 2 and not house.engine.told
    assert not house.record.supervisor, "it gave the fleet back when it was stopped"


def test_why_runners_wait_is_told(folder: Path):
    house = House(folder, Engine(slots=1), runners="3:3")
    house.tick(2)
    seen = house.record.observed
    assert (seen.running, seen.waiting) == (1, 2)
    assert seen.note == "2 wait: no node has 1 CPU"


def test_every_board_has_one_runner_and_experiments_take_turns(folder: Path):
    engine = Engine(boards=["adb:one"])
    both = {"faces": None, "hands": None}
    house = House(folder, engine, runners="0:1", devices=("adb",), experiments=both)
    house.tick()
    (first,) = engine.there.values()
    assert (first.device, first.cpus, first.resources) == ("adb:one", 0, {"adb:one": 1.0})
    assert first.words[0] == "--no-quantize"
    for name in ("faces", "hands"):  # both have work that any device may do
        house.store.queue(name).insert(
            "device|0|x|m|benchmark", {"model": "m", "stage": "benchmark"}
        )
    house.tick(2)
    assert not engine.told
    house.pass_s(301)
    house.tick()
    assert engine.told == {first.id: "draining"}
    house.tick(3)
    assert len(engine.there) == 1, "a board has one runner at a time"
    engine.finish()
    house.tick()
    (second,) = engine.there.values()
    assert {first.experiment, second.experiment} == {"faces", "hands"}
    engine.boards.clear()
    house.tick()
    assert engine.told == {second.id: "draining"}


def offer_conversion(house: House, toolchain: str, count: int) -> None:
    """As a board asks for it that another machine has."""
    for number in range(count):
        key = f"quantize@{toolchain}|0|x|{toolchain}-{number}|convert {toolchain}"
        values = {"model": f"{toolchain}-{number}", "stage": f"convert {toolchain}"}
        house.store.queue("faces").insert(key, values)


def test_machines_of_a_fleet_of_boards_are_told_no_toolchain(folder: Path):
    """They convert for whichever devices ask, with all that they have."""
    house = House(folder, Engine(boards=["adb:one"]), runners="1:1", devices=("adb:one",))
    house.tick()
    (machine,) = [order for order in house.engine.there.values() if not order.device]
    assert machine.words[0] == "--grace"
    house.engine.boards.clear()  # its cable is loose
    house.tick(3)
    assert not house.engine.told.get(machine.id)


def test_a_fleet_follows_the_conversions_that_its_machines_can_do(folder: Path):
    engine = Engine()
    engine.can_convert = ["qnn"]
    house = House(folder, engine, runners="0:9")
    offer_conversion(house, "snpe", 4)
    house.tick()
    assert not engine.there, "no machine of the fleet has the SDK"
    offer_conversion(house, "qnn", 2)
    house.tick()
    assert len(engine.of("faces")) == 2
    engine.can_convert = ["qnn", "snpe"]  # it has just been installed
    house.tick()
    assert len(engine.of("faces")) == 6


@pytest.mark.parametrize(
    ("options", "runners"),
    [((), 5), (("--toolchain", "snpe"), 3), (("--toolchain=qnn",), 2), (("--no-quantize",), 0)],
)
def test_options_decide_which_conversions_a_fleet_follows(
    folder: Path, options: tuple[str, ...], runners: int
):
    house = House(folder, runners="0:9", options=options)
    offer_conversion(house, "snpe", 3)
    offer_conversion(house, "qnn", 2)
    house.tick()
    assert len(house.engine.of("faces")) == runners


def test_where_toolchains_are_unknown_the_runners_tell(folder: Path):
    """Machines of a cluster: the first runners find out, and later work of the kind is left."""
    house = House(folder, runners="0:4", idle_seconds=5)
    offer_conversion(house, "snpe", 2)
    house.tick()
    started = house.engine.of("faces")
    assert len(started) == 2
    for runner in started:
        house.register(runner, can=("quantize", "quantize@qnn", "onnx"))
    house.tick(12)
    assert set(house.engine.told) == set(started), "they are idle, and nothing is for them"
    house.engine.finish()
    house.tick(12)
    assert not house.engine.there, "the same is not tried again and again"
    offer_conversion(house, "qnn", 1)
    house.tick()
    assert len(house.engine.of("faces")) == 1


def test_conversions_are_no_work_for_boards(folder: Path):
    engine = Engine(boards=["adb:one"])
    both = {"faces": None, "hands": None}
    house = House(folder, engine, runners="0:1", devices=("adb",), experiments=both)
    engine.can_convert = []
    offer_conversion(house, "snpe", 3)
    values = {"model": "m", "stage": "benchmark"}
    house.store.queue("hands").insert("device@qcs8550|0|x|m|benchmark", values)
    house.tick(2)
    (order,) = engine.there.values()
    assert order.experiment == "hands"


def test_virtual_devices_are_of_every_runner_and_count_as_its_work(folder: Path):
    house = House(folder, runners="0:2", devices=("host",))
    values = {"model": "m", "stage": "benchmark"}
    house.store.queue("faces").insert("device@host|0|x|m|benchmark", values)
    house.tick()
    (order,) = house.engine.there.values()
    assert order.words[:2] == ("--device", "host")
