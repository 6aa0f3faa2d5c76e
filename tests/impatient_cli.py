"""The command line as a user has it, but for its pauses: what a test waits for comes sooner."""

from __future__ import annotations

import sys
from functools import partial

from ampwatch import cli, mirrors
from ampwatch.alerts import alert_sender
from ampwatch.cli import run_argument
from ampwatch.follow import liveness
from ampwatch.recorder import recorder

PROGRAM = __file__

if __name__ == "__main__":
    mirrors.MirrorWorker = partial(mirrors.MirrorWorker, every_s=0.05)
    alert_sender.LOOK_EVERY_S = 0.05
    liveness.GRACE_S = 0.2
    recorder._PORT_WAIT_S = 0.05
    run_argument.PATIENCE_S = 0.05
    cli.main(sys.argv[1:])
