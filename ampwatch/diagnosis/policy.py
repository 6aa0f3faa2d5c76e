"""Every threshold of every rule, once, with its reason.

They are fractions, growth intervals or octaves, never counts that fit short runs only.
"""

from __future__ import annotations

# A scale is established when this many steps in a row were accepted at it (or a growth interval,
# if that is shorter): long enough that a lucky step inside a fall does not count.
ESTABLISHED_STEPS = 20

# Skips belong to one episode when the next comes within a tenth of a growth interval: a fall that
# pauses for a few accepted steps is one fall, overflows a whole interval apart are not.
EPISODE_SHARE_OF_INTERVAL = 0.1
EPISODE_STEPS = 20

# torch's own default, for records that do not say.
GROWTH_INTERVAL = 2000

# A search from 2^32 may halve twenty times and be healthy; beyond that something else is wrong.
STARTUP_WARNING_SKIPS = 20
STARTUP_ERROR_SCALE = 2.0**-32
# Where nobody saw the forward pass: sixteen halvings of the default 2^16 end below 1.
STARTUP_BLIND_SKIPS = 16
STARTUP_BLIND_SCALE = 1.0
# Five steps running whose forward is not finite: no scale can help, so it is no search.
STARTUP_FORWARD_STEPS = 5

# The largest fall seen to heal by itself took 8 halvings (BLOOM-13B: 65536 to 4096, less still).
COLLAPSE_OCTAVES = 8
# A fall is several skips close together; an isolated one that crosses the line is not.
COLLAPSE_SKIPS = 4

# At 2^-128 and below 1/scale is inf in float32 and the step destroys the weights; two octaves up.
FLOOR_SCALE = 2.0**-126

# One overflow may need two halvings to pass: still one tooth of the saw.
SAWTOOTH_SKIPS = 2
# Before it is a storm: one skip a growth interval is growth's own price, and the first two are
# free, because the initial scale is a guess.
STORM_FREE_SKIPS = 2
STORM_WINDOW_STEPS = 100
STORM_ERROR_SHARE = 0.5

# What happened in the last fiftieth of a run (20 steps at least) still stands at its end.
RECENT_SHARE = 0.02
RECENT_STEPS = 20

# Two values in three lost is beyond the tail that half precision always flushes.
UNDERFLOW_SHARE = 0.67
# ... in most of a layer's sampled steps, and in at least this many of them.
UNDERFLOW_SAMPLES = 3

# Backward overflows with one culprit before it is named: two may be growth's own.
BACKWARD_OVERFLOWS = 3

# Steps without an update before it is a mistake: one may be a loop that left off in the middle.
MISSING_UPDATES = 2
