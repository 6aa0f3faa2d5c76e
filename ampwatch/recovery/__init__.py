"""From verdict to recovery: reruns of a run's own command that prove what would have helped.

    run -> rerun (the same command, one Change, a folder of its own) -> Try -> Proof

A `Plan` tells a launcher what to do next: continue, restart with changes, or stop.

A rerun is an ordinary process: `ampwatch run` watches it and the same engine judges it. The change
is passed in an environment variable, and `integrations` applies it.
"""
