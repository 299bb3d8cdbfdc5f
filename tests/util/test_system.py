"""How many CPUs a process may use, as made control groups say it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeloop._util.system import available_cpus, cgroup_cpus, is_container, thread_limit


def made(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root / "membership"


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"membership": "0::/a/b\n", "a/b/cpu.max": "150000 100000\n"}, 1.5),
        ({"membership": "0::/a/b\n", "a/b/cpu.max": "max 100000", "a/cpu.max": "50000 50000"}, 1.0),
        ({"membership": "0::/\n", "cpu.max": "400000 100000"}, 4.0),
        ({"membership": "0::/../..\n", "cpu.max": "250000 100000"}, 2.5),
        ({"membership": "0::/gone/away\n", "cpu.max": "100000 100000"}, 1.0),
        ({"membership": "0::/\n", "cpu.max": "max 100000"}, None),
        ({"membership": "0::/\n", "cpu.max": "nonsense"}, None),
        ({"membership": "0::/\n"}, None),
        (
            {
                "membership": "4:cpu,cpuacct:/docker/1\n1:name=systemd:/docker/1\n0::/\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "membership": "1:cpu:/x\n",
                "cpu/x/cpu.cfs_quota_us": "-1",
                "cpu/x/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        ({"membership": "1:cpu:/x\n0::/y\n", "unified/y/cpu.max": "75000 100000"}, 0.75),
    ],
)
def test_the_limit_of_control_groups(
    tmp_path: Path, files: dict[str, str], cpus: float | None
) -> None:
    assert cgroup_cpus(tmp_path, made(tmp_path, files)) == cpus


def test_a_system_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert cgroup_cpus(tmp_path, tmp_path / "membership") is None


def test_threads_follow_the_least_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = len(os.sched_getaffinity(0))
    monkeypatch.setattr("edgeloop._util.system.cgroup_cpus", lambda: None)
    assert available_cpus({}) == cpus
    assert available_cpus({"EDGELOOP_CPUS": "1"}) == 1
    assert available_cpus({"EDGELOOP_CPUS": str(cpus + 1)}) == cpus
    monkeypatch.setattr("edgeloop._util.system.cgroup_cpus", lambda: 0.2)
    assert available_cpus({}) == 1, "a part of a CPU is one"
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert thread_limit() == 1
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert thread_limit() == 0, "the whole machine: libraries choose themselves"


def test_containers_are_known_by_their_marks(tmp_path: Path) -> None:
    assert not is_container(tmp_path, {})
    assert is_container(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    made(tmp_path, {"run/.containerenv": ""})
    assert is_container(tmp_path, {})
