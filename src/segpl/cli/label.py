"""Label scans in the browser, starting from the masks that a run predicts.

Starts a server for this computer only and opens its page: a queue of scans,
an editor for their masks, and training in the background. Labels are written
where the layout of the dataset expects them; earlier versions stay in
DATA/.segpl. Stop with Ctrl-C.

Examples:
  segpl label data                          # from empty masks; Train starts
                                            # the run runs/data
  segpl label data --run runs/a             # from the masks of a run
  segpl label data --labels my-labels       # the dataset stays unchanged
  segpl label data --rule disagreement      # another ranking, see segpl next
  segpl label --demo                        # on generated scans
"""

from __future__ import annotations

import argparse
import atexit
import os
import signal
from pathlib import Path

from segpl.cli.options import add_rule
from segpl.labeling.address import FIRST_PORT, LAST_PORT

DEMO = Path("segpl-demo")
DEMO_STEPS = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, nargs="?", help="dataset folder")
    parser.add_argument(
        "--run",
        type=Path,
        help="run folder to predict with; further rounds of training are RUN-2, RUN-3, ... "
        "(default: runs/NAME, named after the dataset)",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FOLDER",
        help="folder for new labels; the dataset stays unchanged",
    )
    add_rule(parser)
    parser.add_argument("--demo", action="store_true", help="label generated scans, in segpl-demo")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--port",
        type=int,
        default=FIRST_PORT,
        help=f"port of the server, or the first to try (default: {FIRST_PORT})",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="only print the address of the page"
    )


def run(args: argparse.Namespace) -> int:
    stopped_by = 0

    def skip_shutdown() -> None:
        """End without Python's shutdown, which aborts if a thread is predicting."""
        if stopped_by:
            os._exit(128 + stopped_by)

    atexit.register(skip_shutdown)  # before the imports: the first exit handler runs last

    from segpl.display import say
    from segpl.engine.device import choose_device
    from segpl.errors import InputError
    from segpl.labeling.ranking import require_rule
    from segpl.labeling.server import LabelServer
    from segpl.labeling.session import Session

    if args.demo == (args.data is not None):
        raise InputError("give either a dataset, or --demo to label generated scans.")
    require_rule(args.rule)
    choose_device(args.device)
    if not 1 <= args.port <= LAST_PORT:
        raise InputError(f"--port is {args.port}, but must be between 1 and {LAST_PORT}.")
    options: list[str] = []
    if args.demo:
        from segpl.experiments.phantom_data import make_pelvis

        args.data, plan = make_pelvis(DEMO, 0)
        args.run = args.run or DEMO / "runs" / "label"
        args.labels = args.labels or DEMO / "labels"
        options = ["--plan", str(plan), "--steps", str(DEMO_STEPS), "--set", "train.ratio=1"]
    if args.device != "auto":
        options += ["--device", args.device]
    runs = args.run or Path("runs", args.data.resolve().name)
    session = Session(
        args.data,
        run=runs,
        labels=args.labels,
        options=options,
        device=args.device,
        rule=args.rule,
    )
    if args.run is not None and not args.demo and not session.rounds.trained:
        raise InputError(
            f"{args.run} is not a trained run. Train it, or omit --run to start from empty masks."
        )
    try:
        server = LabelServer(session, args.port)
    except OSError as error:
        raise InputError(
            f"port {args.port} cannot be used: {error.strerror}. Omit --port to use a free one."
        ) from error
    if server.port != args.port:
        say(f"Port {args.port} is in use. The server uses port {server.port} instead.")
    say(f"Label at {server.url}")
    say("Stop with Ctrl-C. Strokes and labels are saved automatically.")
    if not args.no_browser:
        import webbrowser

        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt as stop:
        stopped_by = stop.args[0] if stop.args else signal.SIGINT
        raise
    finally:
        session.rounds.stop()
        server.server_close()
    return 0
