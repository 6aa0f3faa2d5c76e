"""From verdict to recovery: reruns of a run's own command that prove what would have helped.

    run -> rerun (the same command, one Change, a folder of its own) -> Try -> Proof

A `Plan` says what a launcher does next: go on, start again so, or stop.

A rerun is a process like the first: `ampwatch run` watches it, the same engine judges it. What is
changed reaches it by an environment variable, and `integrations` applies it there.
"""
