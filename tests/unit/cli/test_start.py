from __future__ import annotations

import subprocess
import sys

CODE = """
import gc, sys
from segpl.cli.main import main
print(main(sys.argv[1:]), gc.get_freeze_count() > 10_000, gc.isenabled())
"""


def test_torch_is_imported_without_garbage_collection(tmp_path):
    """Collections would take a tenth of the import, and half a second at the exit."""
    command = ["train", str(tmp_path / "missing"), "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", CODE, *command], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True", "True"], done.stderr
