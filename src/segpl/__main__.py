"""Runs `python -m segpl`."""

import sys

from segpl.cli.main import main

sys.exit(main())
