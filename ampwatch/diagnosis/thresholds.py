"""The thresholds that several rules share, with their reasons.

A threshold of one rule is defined beside that rule. They are fractions, growth intervals or
octaves, never counts that fit short runs only.
"""

from __future__ import annotations

# So many equal steps in a row are not chance, neither by one batch nor by one lucky step.
NO_ACCIDENT_STEPS = 20
# Steps within this distance are close together.
NEAR_STEPS = 20

# A cause may be seen a little later than its effect. After a skip the very next steps are looked at
# closely; what only a sample shows (weights, all activations finite) can take longer.
DELAY_STEPS = 2
SAMPLING_DELAY_STEPS = 20

# A scale is established when this many steps in a row were accepted at it (or a growth interval,
# if that is shorter).
ESTABLISHED_STEPS = NO_ACCIDENT_STEPS

# If the forward pass is not recorded: sixteen halvings of the default 2^16 end below 1.
STARTUP_BLIND_SKIPS = 16

# The largest fall from which a run recovered by itself took 8 halvings (BLOOM-13B: 65536 to 4096,
# less still).
COLLAPSE_OCTAVES = 8
# A fall is several skips close together; an isolated one that crosses the line is not.
COLLAPSE_SKIPS = 4

# At 2^-128 and below 1/scale is inf in float32 and the step destroys the weights; two octaves up.
FLOOR_SCALE = 2.0**-126

# One overflow may need two halvings to pass: still one tooth of the sawtooth.
SAWTOOTH_SKIPS = 2
# More skips in a row than one overflow needs: a spike, which heals or becomes a fall.
SPIKE_SKIPS = SAWTOOTH_SKIPS + 1
# Skips that are no storm: one in each growth interval is the cost of growth, and the first two are
# free, because the initial scale is a guess.
STORM_FREE_SKIPS = 2
STORM_WINDOW_STEPS = 100

# Whether the loss fell can be judged from so many lines at each end of a record, not from fewer.
LOSS_LINES = 3

# What happened in the last fiftieth of a run (at least 20 steps) still counts at its end.
RECENT_SHARE = 0.02
RECENT_STEPS = NEAR_STEPS

# Skips in a row at the end: more than any search for a loss scale takes.
LONGEST_SEARCH = 40

# Half precision always flushes the tail; two values lost in three is more.
UNDERFLOW_SHARE = 0.67

# A loss that has come down to so small a share of its first one has nothing left to learn, and its
# gradients are next to nothing in any format.
ALL_LEARNT = 1e-4

# Backward overflows with one culprit before it is named: two may be caused by growth.
BACKWARD_OVERFLOWS = 3

# A gradient norm four times higher over the last four fifths of the record, rising from each fifth
# of that to the next; shorter records have no such windows.
# From random weights the norm may rise for hundreds of steps in health: there, while the loss is
# within a fiftieth of its best, it is no trouble.
DRIFT_EARLY_STEPS, DRIFT_LOSS = 1000, 1.02
DRIFT_FACTOR, DRIFT_PART, DRIFT_WINDOWS, DRIFT_ROWS = 4.0, 0.8, 5, 100

# Trouble within 30 steps of an event is attributed to it, except in the first steps of a warm-up,
# where the rate always doubles.
JUMP_STEPS = 30
JUMP_LEAST_POSITION = NEAR_STEPS
# "Diverging": the loss is this many times its first value.
DIVERGED_LOSS = 1.2
