"""A real Slurm cluster of one node, started as root in a network namespace of its own."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgeloop.testing import wait_until

CPUS = 4
UNSHARE = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
PROGRAMS = ("sbatch", "squeue", "scancel", "sinfo")
CONFIG = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=10000
GresTypes=board
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=2000 Gres=board:1
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# An address besides the loopback's: without one, Slurm resolves no address at all.
START = """\
set -e
ip link set lo up
ip address add 10.0.0.1/32 dev lo
munged --force --key-file=munge.key --socket=$PWD/munge.socket --pid-file=$PWD/munged.pid \
    --log-file=$PWD/munged.log --seed-file=$PWD/munge.seed
slurmctld -D -c &
exec slurmd -D -N node1
"""


@dataclass
class Cluster:
    """`bin` holds Slurm's programs, as seen from inside the namespace."""

    folder: Path
    bin: Path
    process: subprocess.Popen[bytes]

    def call(self, program: str, *arguments: str) -> str:
        command = [str(self.bin / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout

    def signal(self, number: int, name: str) -> None:
        """To the daemon of that name."""
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                namespace = line.with_name("ns").joinpath("net").readlink()
                command = line.read_bytes()
            except OSError:
                continue
            ours = Path(f"/proc/{self.process.pid}/ns/net").readlink()
            if namespace == ours and command.startswith(name.encode()):
                os.kill(int(line.parent.name), number)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    for part in ("state", "spool", "bin"):
        (folder / part).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    config = CONFIG.format(folder=folder, host=os.uname().nodename, cpus=CPUS)
    (folder / "slurm.conf").write_text(config)
    (folder / "gres.conf").write_text("Name=board Count=1\n")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*UNSHARE, "sh", "-c", START],
            cwd=folder,
            env={**os.environ, "SLURM_CONF": str(folder / "slurm.conf")},
            stdout=log,
            stderr=log,
        )
    cluster = Cluster(folder, folder / "bin", process)
    for program in PROGRAMS:
        path = shutil.which(program)
        assert path, f"{program} is missing: apt-get install slurm-client slurmctld slurmd munge"
        inside = f"nsenter --net=/proc/{process.pid}/ns/net {path}"
        script = f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {inside} "$@"\n'
        (cluster.bin / program).write_text(script)
        (cluster.bin / program).chmod(0o755)
    try:
        wait_until(lambda: "idle" in cluster.call("sinfo", "-h", "-o", "%T"), 30, "the cluster")
        yield cluster
    except TimeoutError as late:
        raise RuntimeError(f"{late}:\n{(folder / 'log').read_text()[-3000:]}") from None
    finally:
        process.send_signal(signal.SIGKILL)  # and with it all that runs inside
        process.wait()
