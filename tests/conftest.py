"""Set before torch is loaded; this file also makes `tests/tiny.py` importable by every test."""

import os

# one thread is fastest for tensors of 16^3, and workers of pytest-xdist do not fight over cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

from segpl.errors import Spelling

# most tests match messages as the command line prints them
Spelling.is_command_line = True
