"""The CPU cores that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds per period: "150000 100000"


def usable_cores() -> int:
    """Cores that the operating system and the CPU quota of a container allow."""
    if hasattr(os, "sched_getaffinity"):  # missing on macOS
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota, *period = CPU_QUOTA.read_text().split() if CPU_QUOTA.exists() else ["max"]
    return cores if quota == "max" else min(cores, math.ceil(int(quota) / int(period[0])))


def limit_threads() -> None:
    """Let torch use no more threads than cores: it ignores the CPU quota of a container.

    Extra threads would only wait for each other. The user's OMP_NUM_THREADS takes precedence.
    """
    import torch  # preparing scans does not need it

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))
