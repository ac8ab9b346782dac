"""Run tasks on a Ray cluster."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from segpl.errors import InputError, Spelling
from segpl.experiments.engines.base import (
    Engine,
    EngineOptions,
    Task,
    Update,
    import_extra,
    perform,
)

RETRIES = 3
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # Ray itself tries for minutes
GIGABYTE = 10**9
GPU_DECIMALS = 4  # of a fraction of a GPU
START_ONE = "Start one with `ray start --head`, or pass --address HOST:PORT."
WHERE_TO_RUN = (
    "Run the command on a machine of the cluster, with the same versions of Ray and Python as the "
    "others."
)


class RayEngine(Engine):
    name = "ray"

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        gpus = options.gpus or 0
        if gpus != round(gpus, GPU_DECIMALS if gpus < 1 else 0):
            raise InputError(
                f"--gpus is {gpus}, but Ray needs a whole number, or a fraction below 1 with up to "
                f"{GPU_DECIMALS} decimals."
            )

    def slots(self, tasks: Sequence[Task]) -> int:
        """Tasks that fit on the nodes when these are idle."""
        wanted = {name: value for name, value in self.resources(tasks).items() if value}
        room = sum(
            min(int(node.get(name, 0) // value) for name, value in wanted.items())
            for node in self.nodes()
        )
        return min(room, self.options.jobs or room)

    def nodes(self) -> list[dict[str, float]]:
        with self.connected() as ray:
            return [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def check(self, tasks: Sequence[Task]) -> None:
        wanted, nodes = self.resources(tasks), self.nodes()
        if not any(all(node.get(k, 0) >= value for k, value in wanted.items()) for node in nodes):
            words = ", ".join(f"{amount(name, value)}" for name, value in wanted.items() if value)
            most = ", ".join(
                amount(name, max(node.get(name, 0) for node in nodes)) for name in wanted
            )
            raise InputError(
                f"no node of the Ray cluster has {words} for a task. The most on any node: {most}. "
                "Lower --cpus, --gpus or --memory, or add a node."
            )

    def resources(self, tasks: Sequence[Task]) -> dict[str, float]:
        """What one task requests, by Ray's names."""
        memory = (self.options.memory or 0) * GIGABYTE
        return {"CPU": self.options.cpus or 1, "GPU": self.gpus_for(tasks), "memory": memory}

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Ray, connected to the cluster; an existing connection stays."""
        ray = import_extra("ray")
        if ray.is_initialized():
            yield ray
            return
        address = self.options.address or "auto"
        require_cluster(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            # the cause of a ConnectionError has the details
            raise connection_error(address, str(error.__cause__ or error)) from error
        try:
            yield ray
        finally:
            ray.shutdown()  # also ends the tasks

    def run(self, tasks: Sequence[Task]) -> Generator[Update, None, None]:
        with self.connected() as ray:
            wanted, retries = self.resources(tasks), self.options.retries
            remote = ray.remote(stream_updates).options(
                num_cpus=wanted["CPU"],
                num_gpus=wanted["GPU"],
                memory=wanted["memory"],
                max_retries=RETRIES if retries is None else retries,
                num_returns="streaming",
            )
            waiting = deque(tasks)
            running: dict[Any, Task] = {}  # by the stream of its updates
            while waiting or running:
                while waiting and len(running) < (self.options.jobs or len(tasks)):
                    task = waiting.popleft()
                    running[remote.remote(task.call, Spelling.is_command_line)] = task
                (stream,), _ = ray.wait(list(running), fetch_local=False)
                try:
                    error = ray.get(next(stream))
                except ray.exceptions.RayError as lost:
                    error = f"Ray lost the task: {' '.join(str(lost).split())}"
                yield Update(running[stream], error)
                if error is not None:
                    del running[stream]


def stream_updates(call: Callable[[], str], is_command_line: bool) -> Iterator[str | None]:
    """First None, when the task starts, and then its error."""
    yield None
    yield perform(call, is_command_line)


@cache
def require_cluster(address: str) -> None:
    """Raise unless a cluster of this Ray version answers."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    if address != "auto":
        require_listener(address)
        command += ["--address", address]
    try:
        # in a subprocess, since Ray itself has no time limit
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired as error:
        place = "on this machine" if address == "auto" else f"at {address}"
        raise InputError(
            f"no Ray cluster answered {place} within {ANSWER_SECONDS:.0f} s. {START_ONE}"
        ) from error
    if done.returncode:
        raise connection_error(address, (done.stderr.strip().splitlines() or [""])[-1])


def connection_error(address: str, cause: str) -> InputError:
    words = " ".join(cause.split()).rstrip(".")
    if "Could not find any running Ray" in words:
        return InputError(f"no Ray cluster found on this machine. {START_ONE}")
    return InputError(f"cannot connect to the Ray cluster ({address}): {words}. {WHERE_TO_RUN}")


def require_listener(address: str) -> None:
    """Raise if nothing accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InputError(
            f"--address is '{address}'. Write HOST:PORT, as `ray start --head` prints it."
        )
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster answers at {address}: {error}. {START_ONE}") from error


def amount(name: str, value: float) -> str:
    """'2 CPU', '0 GPU' or '16 GB memory'."""
    return f"{value / GIGABYTE:.0f} GB memory" if name == "memory" else f"{value:g} {name}"
