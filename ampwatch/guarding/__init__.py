"""The guard: acts in a training that allows it, and says so.

    gradients, loss, inputs, rate, before the optimizer's step -> outlying?
        -> caps, callback, the other ranks
        -> leave the step out | lower the rate for a while | stop -> a `guard` event

Opt-in, and a dry run until `dry_run=False`. The package is not called `guard`, because
`ampwatch.guard` is the function.
"""

from ampwatch.guarding.guard_settings import Proposed
from ampwatch.guarding.step_guard import NoGuard, StepGuard, guard

__all__ = ["NoGuard", "Proposed", "StepGuard", "guard"]
