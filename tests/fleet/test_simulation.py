"""The simulator of fleets: real code in virtual time, and a ledger that notices what goes wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.fleet_sim.backends import Outage
from bench.fleet_sim.ledger import SimLedger, Verdict
from bench.fleet_sim.report import bottleneck, report
from bench.fleet_sim.simulation import Scenario, Simulation, SimulationResult, assumptions
from edgeloop.models.leases import Lease, Leases, Outcome
from edgeloop.models.plan import default_plan, records_of
from edgeloop.store import Changes, Record

pytestmark = pytest.mark.slow

# A spot fleet that loses 5 % of its nodes per minute (the small one 10 %). Some of them only freeze
# and come back with results of leases that they have lost. The store goes away for two minutes, and
# some models are bad.
LARGE = Scenario(
    models=40,
    runners=8,
    boards=2,
    preempted_per_min=0.05,
    frozen_share=0.4,
    outages=(Outage(900, 120),),
    bad=0.12,
    seed=3,
)
HARSH = replace(LARGE, models=12, runners=6, preempted_per_min=0.1, seed=4)
QUICK_STAGES = {"f1_1k": 10.0, "f1_1k_f": 10.0, "f1_10k": 20.0, "benchmark": 4.0}


def quick_boards() -> dict[str, Any]:
    """Boards that keep up with the runners: a simulated hour costs time, whoever works in it."""
    assumed = dict(assumptions())
    stages = {
        name: {**times, "median_s": QUICK_STAGES.get(name, times["median_s"])}
        for name, times in assumed["stages"].items()
    }
    return {**assumed, "stages": stages}


def simulated(scenario: Scenario) -> SimulationResult:
    return Simulation(scenario, quick_boards()).run()


@pytest.fixture(scope="module")
def harsh_on_azure() -> SimulationResult:
    return simulated(HARSH)


@pytest.mark.parametrize("profile", ["azure", "postgres"])
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(HARSH, id="small"), pytest.param(LARGE, id="large", marks=pytest.mark.soak)],
)
def test_a_fleet_that_loses_nodes_and_its_store_loses_and_doubles_nothing(
    scenario: Scenario, profile: str
):
    result = simulated(replace(scenario, profile=profile))
    verdict = result.verdict
    assert result.is_over and verdict.violations == []
    assert verdict.complete + verdict.failed == scenario.models and verdict.failed > 0
    assert verdict.stages >= 10 * verdict.complete
    assert result.lost_nodes["killed"] > 3 and result.lost_nodes["frozen"] > 1
    assert sum(result.ledger.refused.values()) > 0  # late results, of those that came back
    assert result.backend.meter.refused > 0
    assert result.linux.idle_share < 0.1


def test_the_same_seed_gives_the_same_simulation(harsh_on_azure: SimulationResult):
    short = replace(HARSH, hours=0.1)
    first, second = simulated(short), simulated(short)
    assert first.events == second.events
    assert first.backend.meter.requests == second.backend.meter.requests
    assert first.seen.claims == second.seen.claims
    assert first.events != harsh_on_azure.events


def test_the_report_names_the_first_bottleneck(harsh_on_azure: SimulationResult):
    text = report(harsh_on_azure, assumptions())
    assert "| results doubled | 0 | 0 |" in text
    assert bottleneck(harsh_on_azure).name == "the number of runners"
    one_board = simulated(replace(HARSH, runners=12, boards=1))
    assert bottleneck(one_board).name == "the number of boards"
    narrow = quick_boards()
    azure = narrow["profiles"]["azure"]
    limits = {**azure["limits"], "entities_per_s": 20}
    narrow["profiles"] = {"azure": {**azure, "limits": limits}}
    scenario = Scenario(models=60, runners=8, boards=2, hours=0.15)
    found = bottleneck(Simulation(scenario, narrow).run())
    assert found.name == "the store's limit on the partition of hints"


def test_a_commit_that_ignores_the_token_is_noticed(monkeypatch: pytest.MonkeyPatch):
    """The planted fault: whoever comes back from a freeze may write its result all the same."""

    def commit(self: Leases, lease: Lease, outcome: Outcome) -> Record:
        def write(row: Record) -> Changes:
            records = records_of(row.values)
            records[lease.stage] = replace(records[lease.stage].settled(), attempts=0)
            return self._summary(row, records, outcome.columns)

        return self._change(lease, write)

    monkeypatch.setattr(Leases, "commit", commit)
    verdict = simulated(replace(HARSH, hours=1.0, bad=0.0)).verdict
    assert verdict.doubled


def test_the_ledger_finds_what_is_lost_doubled_or_made_up():
    plan, ledger = default_plan(), SimLedger()
    kept, lost, twice = (ledger.computed("m", "f1_onnx") for _ in range(3))

    def verdict(**columns: float) -> Verdict:
        row = Record("m", {"status": "new", **columns}, "1")
        return ledger.check([row], plan, {}, is_over=False)

    ledger.accept("m", "f1_onnx", kept)
    assert verdict(f1_onnx=float(kept)).violations == []
    assert verdict().lost and verdict(f1_onnx=float(lost)).lost
    assert verdict(f1_onnx=99.0).foreign and verdict(f1_1k=float(kept)).foreign
    ledger.accept("m", "f1_onnx", twice)
    assert verdict(f1_onnx=float(twice)).doubled
