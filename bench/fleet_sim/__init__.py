"""python -m bench fleet-sim: a fleet in virtual time, with the real queue, leases, workers and
supervisor on a store in memory that has the latencies and limits of a real one."""

from __future__ import annotations

from bench.fleet_sim.command import run

__all__ = ["run"]
