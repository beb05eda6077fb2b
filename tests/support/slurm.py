"""A SLURM of two nodes on this machine, for tests.

    python tests/support/slurm.py FOLDER -- sbatch --wait --wrap hostname

starts it in a folder, runs a command, and ends it. It needs root, ``munged``, ``slurmctld`` and
``slurmd`` (Debian: ``apt-get install slurm-wlm munge``), and no systemd. Each node says that it
has 8 cores, and two GPUs that are none: they only have jobs bound to them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import psutil

NODES = ("n1", "n2")
SECONDS = 60  # until a daemon that does not start or end is a failure
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
MUNGE_FOLDER = Path("/run/munge")
CONTROL = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldPort={control}
SlurmdPort={daemon}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SchedulerParameters=sched_interval=2,batch_sched_delay=0
MinJobAge=60
KillWait=2
GresTypes=gpu
SlurmdParameters=config_overrides
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""
NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 "
    "RealMemory=32000 Gres=gpu:2 State=UNKNOWN\n"
)
GPUS = "NodeName={name} Name=gpu File=/dev/null\nNodeName={name} Name=gpu File=/dev/zero\n"


def missing() -> str:
    """Return why there can be no SLURM here; empty if there can."""
    os.environ["PATH"] += ":/usr/sbin"
    if absent := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"SLURM is not installed: no {absent[0]}"
    return "SLURM needs root" if os.geteuid() else ""


class Slurm:
    """A SLURM within a ``with`` block.

    Args:
        folder: for its files.

    Attributes:
        environment: variables by which its programs find it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        configuration = folder / "slurm.conf"
        self.environment = {"SLURM_CONF": str(configuration)}
        control, daemon, *ports = free_ports(2 + len(NODES))
        for name in NODES:
            (folder / "spool" / name).mkdir(parents=True)
        (folder / "state").mkdir()
        nodes = [NODE.format(name=name, port=port) for name, port in zip(NODES, ports, strict=True)]
        text = CONTROL.format(folder=folder, control=control, daemon=daemon)
        configuration.write_text("".join([text, *nodes]))
        (folder / "gres.conf").write_text("".join(GPUS.format(name=name) for name in NODES))

    def __enter__(self) -> Self:
        start_munge()
        self.run("slurmctld")
        for name in NODES:
            self.run("slurmd", "-N", name)
        end = time.monotonic() + SECONDS
        while self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() != str(len(NODES)):
            if time.monotonic() > end:
                state = self.run("sinfo")
                self.__exit__()
                raise RuntimeError(f"no SLURM within {SECONDS} s:\n{state}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        if jobs := self.jobs():
            self.run("scancel", "--full", *jobs)
        end = time.monotonic() + SECONDS
        while self.jobs() and time.monotonic() < end:
            time.sleep(0.2)
        self.run("scontrol", "shutdown")
        daemons = [
            psutil.Process(int(file.read_text()))
            for file in self._folder.glob("slurm*.pid")
            if psutil.pid_exists(int(file.read_text()))
        ]
        for left in psutil.wait_procs(daemons, SECONDS)[1]:
            left.kill()

    def run(self, *command: str) -> str:
        """Run a command that finds this SLURM, and return what it prints."""
        done = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the numbers of the jobs that wait or run. Cancelled ones may be ending still."""
        return self.run("squeue", "-h", "-t", "PENDING,CONFIGURING,RUNNING", "-o", "%A").split()


def start_munge() -> None:
    """Start the daemon by which SLURM's programs know each other, unless it runs."""
    if any(process.name() == "munged" for process in psutil.process_iter()):
        return
    MUNGE_FOLDER.mkdir(exist_ok=True)
    shutil.chown(MUNGE_FOLDER, "munge", "munge")
    subprocess.run(["runuser", "-u", "munge", "--", "munged"], check=True, capture_output=True)


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def main() -> None:
    """Run a command under a SLURM of its own."""
    if why := missing():
        sys.exit(why)
    folder, separator, *command = sys.argv[1:]
    if separator != "--" or not command:
        sys.exit(__doc__)
    Path(folder).mkdir()
    with Slurm(Path(folder).resolve()) as slurm:
        done = subprocess.run(command, env=os.environ | slurm.environment, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
