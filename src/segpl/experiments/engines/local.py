"""Run tasks on this machine: one after another, or in several processes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Event

import torch

from segpl.cores import usable_cores
from segpl.engine.device import choose_device
from segpl.engine.interrupt import StopSignal
from segpl.errors import Spelling
from segpl.experiments.engines.base import Engine, EngineOptions, Task, Update, perform

VISIBLE = "CUDA_VISIBLE_DEVICES"
KILLED = (
    "its process was killed twice, probably because it ran out of memory. Repeat the command with "
    "fewer --jobs to resume."
)


class LocalEngine(Engine):
    name = "local"

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        self.processes = options.jobs or 1
        self.in_process = self.processes == 1

    def check(self, tasks: Sequence[Task]) -> None:
        for device in {task.device for task in tasks}:
            choose_device(device)

    def slots(self, tasks: Sequence[Task]) -> int:
        return self.processes

    def run(self, tasks: Sequence[Task]) -> Generator[Update, None, None]:
        if self.in_process:
            for task in tasks:
                yield Update(task)
                yield Update(task, task.call())
        else:
            yield from run_in_workers(tasks, min(self.processes, len(tasks)))


def run_in_workers(tasks: Sequence[Task], processes: int) -> Generator[Update, None, None]:
    # a forked process cannot use a GPU that its parent has initialized
    context = get_context("spawn")
    stop = context.Event()
    gpus = gpus_to_assign(tasks)
    threads = max(1, usable_cores() // max(1, processes))
    idle = [
        Worker(context, threads, stop, gpus[n % len(gpus)] if gpus else None)
        for n in range(processes)
    ]
    workers = tuple(idle)
    waiting = deque(tasks)
    repeated: set[str] = set()  # names of restarted tasks
    running: dict[Future[str], tuple[Worker, Task]] = {}
    try:
        while waiting or running:
            while waiting and idle:
                worker, task = idle.pop(0), waiting.popleft()
                running[worker.start(task)] = worker, task
                yield Update(task)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                worker, task = running.pop(future)
                error = worker.error_of(future)
                idle.append(worker)
                if error == KILLED and task.name not in repeated:
                    repeated.add(task.name)
                    waiting.append(task)  # last: then fewer tasks compete for memory
                    yield Update(task, was_killed=True)
                else:
                    yield Update(task, error)
    except BaseException:
        stop.set()
        for worker in workers:
            worker.pool.shutdown(wait=False, cancel_futures=True)
        raise
    finally:
        for worker in workers:
            worker.pool.shutdown()


class Worker:
    """A process that runs one task at a time; a new one replaces it if it is killed."""

    def __init__(self, context: SpawnContext, threads: int, stop: Event, gpu: str | None) -> None:
        self.context = context
        self.arguments = (threads, stop, gpu)
        self.pool = self.new_pool()

    def new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1, mp_context=self.context, initializer=prepare_worker, initargs=self.arguments
        )

    def start(self, task: Task) -> Future[str]:
        return self.pool.submit(perform_unless_stopped, task, Spelling.is_command_line)

    def error_of(self, ended: Future[str]) -> str:
        try:
            return ended.result()
        except BrokenExecutor:
            self.pool.shutdown()
            self.pool = self.new_pool()
            return KILLED


def gpus_to_assign(tasks: Sequence[Task]) -> list[str]:
    """The GPUs to distribute over workers; none if there is one, or if a task names its own."""
    count = torch.cuda.device_count()
    if count < 2 or any(":" in task.device for task in tasks):
        return []
    visible = os.environ.get(VISIBLE)
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


def prepare_worker(threads: int, stop: Event, gpu: str | None) -> None:
    """Share cores and GPUs, and exit with the parent, even if it is killed."""
    StopSignal.requested = stop
    if gpu is not None:
        os.environ[VISIBLE] = gpu  # torch reads it when it first uses a GPU
    torch.set_num_threads(threads)
    threading.Thread(target=exit_with_parent, daemon=True).start()


def exit_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def perform_unless_stopped(task: Task, is_command_line: bool) -> str:
    if StopSignal.requested is not None and StopSignal.requested.is_set():
        raise KeyboardInterrupt
    return perform(task.call, is_command_line)
