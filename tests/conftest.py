"""Set before torch is loaded; this file also makes `tests/tiny.py` importable by every test."""

import atexit
import gc
import os
import signal

import pytest

# one thread is fastest for tensors of 16^3, and workers of pytest-xdist do not fight over cores
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Triton's interpreter runs the kernels of GPUs on a CPU
os.environ["TRITON_INTERPRET"] = "1"

from segpl.errors import Spelling

# most tests match messages as the command line prints them
Spelling.is_command_line = True
# a shell starts background jobs with interrupts ignored, but tests interrupt commands
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Imported modules and collected tests are never garbage; searching them takes seconds."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# at exit, after the last collection by pytest; Triton reports what remains
atexit.register(gc.unfreeze)


@pytest.fixture(autouse=True, scope="session")
def any_cpu():
    """On every CPU, training and prediction compute in float32 unless a test says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segpl.engine.device.has_amx", lambda: False)
        yield


@pytest.fixture(autouse=True, scope="session")
def any_memory():
    """A plan depends on the free memory and names it; other programs change it while tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segpl.assembly.free_memory", lambda device: 2**34)
        yield


@pytest.fixture(autouse=True, scope="session")
def any_disk():
    """No test cuts the power, and thousands of files would wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_tests(tmp_path_factory):
    """Keep tests out of the user's cache."""
    os.environ["SEGPL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def own_port() -> int:
    """No other test process takes it from a server that starts again."""
    return 20000 + os.getpid() % 10000
