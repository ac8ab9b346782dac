"""A real Slurm of one node, for tests. It needs root and Debian's packages, which CI installs."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "srun")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why Slurm cannot start here; empty if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"Slurm is not installed: there is no {absent[0]}"
    return "" if os.geteuid() == 0 else "Slurm can only be started by root"


def free_ports(count: int) -> list[int]:
    """Ports below those that Linux gives to other programs, which may take them first."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)


@contextmanager
def running_slurm(folder: Path) -> Iterator[Path]:
    """Start Slurm in `folder`; yields its configuration, for SLURM_CONF."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().split(".")[0]
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(host=host, folder=folder, ports=free_ports(2)))
    environment = {**os.environ, "SLURM_CONF": str(config)}
    start_munge()
    try:
        for name in ("slurmctld", "slurmd"):
            subprocess.run([name, "-f", str(config)], env=environment, check=True)
        wait_until_idle(environment, folder)
        yield config
    finally:
        subprocess.run(["scancel", "--me"], env=environment, capture_output=True)
        for name in ("slurmd", "slurmctld"):
            with suppress(FileNotFoundError, ProcessLookupError, ValueError):
                stop(int((folder / f"{name}.pid").read_text()))


def stop(process: int) -> None:
    """Ask a daemon to stop, and kill it if it does not."""
    os.kill(process, signal.SIGTERM)
    for _ in range(100):
        os.kill(process, 0)  # raises once it is gone
        time.sleep(0.1)
    os.kill(process, signal.SIGKILL)


def start_munge() -> None:
    """Slurm authenticates through this daemon; one that runs already is used."""
    if subprocess.run(["munge", "-n"], capture_output=True).returncode == 0:
        return
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown("/run/munge", "munge", "munge")
    subprocess.run(["runuser", "-u", "munge", "--", "munged"], check=True)


def wait_until_idle(environment: dict[str, str], folder: Path) -> None:
    for _ in range(60):
        shown = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True
        )
        if "idle" in shown.stdout:
            return
        time.sleep(0.5)
    logs = "\n".join(path.read_text() for path in folder.glob("*.log"))
    raise RuntimeError(f"Slurm did not start: {shown.stderr}\n{logs}")
