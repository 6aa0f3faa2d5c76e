"""Every number of the learning-rate advice, once, with its reason.

Those marked "fitted" come from 18 small trainings of the measurements behind the design (13 rates
each, 2 to 3 seeds); the formula's own come from the sweeps of `benchmarks/learning_rate_fit.py`.
All of it stands on small models: treat them as a start.
"""

from __future__ import annotations

from typing import NamedTuple

# --- the course that is kept: bounded, whatever the run's length ---
HEAD_ROWS = 1536  # the early regime (1,000 accepted steps) and its skips
TAIL_ROWS = 1024  # what stands at the end of the record, row by row
CELL_ROWS = 16  # the smallest part of the history between
MOST_CELLS = 512  # then pairs are merged: a cell is never wider than 1/256 of the run

# --- onset, from random weights (fitted: fires on 9 to 16 % of stable runs by itself) ---
EARLY_STEPS = 1000  # accepted steps; beyond, the rate has been shown to work
SCRATCH_STEPS = 500  # the tests against the first loss hold this long
SKIPS_IN_A_ROW = 3
COLLAPSED_SHARE = 1 / 3  # of the last 30 steps: what is left of a run that fell
CLIMB = 1.5  # times the first loss
RELAPSE_SHARE = 0.5  # of the progress made ...
RELAPSE_PROGRESS = 0.1  # ... once that is a tenth of the first loss
NO_LEARNING = 0.9  # of the first loss ...
NO_LEARNING_STEPS = 50  # ... after this many steps
STALLED = 0.7  # of the first loss, or more, is left ...
STALLED_PROGRESS = 0.1  # ... and no more than this was gained since the first quarter ...
STALLED_STEPS = 100  # ... of this many steps
# Of the first loss, or more, is left after as many steps. That says nothing by itself. With first
# updates that the formula places over the limit, and weights four times as large, it is found in 4
# of the 10 fitted trainings that were over their limit and looked calm, and in none of 298 stable
# ones, of which those with such weights came down to 0.51 at least.
LITTLE_LEARNT = 0.6
# A record too short for these tests (their windows, their noise) still shows plain facts: a loss
# that has doubled by its end, and first updates larger than the weights that they changed. Both
# together are an onset, one of them leaves the rate open. In fewer steps a leap may still settle,
# unless it is the higher: so many steps times octaves.
SHORT_STEPS = STALLED_STEPS
SHORT_LEAST = 20
DOUBLED = 2.0
BEYOND_WEIGHTS = 1.0
MEDIAN_STEPS = 10
MEDIAN_NOISE = 0.4  # a median of ten is as noisy as 1.25 / sqrt(10) of one
FINAL_STEPS = 30  # what stands at the end is the median of these
# Onset and not recovered at the end fires on 1 to 3 % of stable runs: recovery is part of it.
RECOVERED_SHARE = 0.25  # of what was lost may still be missing
ROBUST_DEVIATIONS = 6.0
DESCENT_SHARE = 0.2  # of a climb, given back by the end: it may be on its way down
DESCENT_PARTS = 8  # of a trouble, whose medians are its top and its end
WANDER_PARTS = 32  # ... and fine enough to show that it goes up and down
HALF_BACK = 0.5  # of a climb is left: whatever its pace, the way back is nearly made
MEDIAN_POINTS = 3  # whose median is no single high or low point

NEAR_BEST = 0.1  # of the progress made: a restart stands where no more than this was lost

# --- the table of evidence: "lower" is said where the chance that it is the rate is worth it ---
# What a run wrongly told to lower costs, and one wrongly told to keep. Nearly alike: of healthy
# runs only one in ten comes as far as being weighed at all.
WRONG_LOWER, WRONG_KEEP = 1.2, 1.0
LOWER_LINE = WRONG_LOWER / (WRONG_LOWER + WRONG_KEEP)

# --- the mechanism: updates or gradients out of band. A loss alone is never "lower" ---
# Update over weight norm of the whole network; trainings that work stay near 2^-10 to 2^-6.
LARGE_UPDATE = 0.03
# The largest layer's, in the last 10 accepted steps before trouble (fitted, 150 of 151 told apart).
PROOF_RATIO = 0.3
PROOF_STEPS = 10
PROOF_ACTIVATION = 500.0
UPDATE_PERCENTILE = 90.0
BORN_ZERO = 10.0  # largest layer over whole network, at the first steps of a LoRA
BAND_FACTOR = 2.0  # a drift doubles at least
DATA_INPUT = 5.0  # ... with an input maximum this many times its median
STATIC_SCALE = 2.0**-32
EVENT_SKIPS = 5  # the streak that is an event for the attribution

# --- relative onset, late or in a resumed run ---
WINDOW_STEPS = 100
WINDOW_SHARE = 0.02
SUSTAINED_STEPS = 20
POINT_STEPS = 10

# --- the formula: octaves too high = offset + slope x log2 u, u the first updates over the weights
# at the base rate, in the steady state. Fitted by `benchmarks/learning_rate_fit.py` to 147 unstable
# runs of the tuning configurations. Within one training the octaves grow one to one with u and over
# all of them by 0.5 to 0.8: the flatter lines left the highest rates too high. ---
SLOPE = 0.75


class Line(NamedTuple):
    """One family's offset, and how much deeper to cut; in octaves."""

    offset: float
    margin: float  # the limit lies above the advised rate in 49 of 50 runs


ADAPTIVE = Line(1.5, 2.5)
PLAIN = Line(2.8, 1.8)
UNKNOWN = Line(2.2, 2.5)  # between the two
BLIND = Line(2.0, 1.2)  # no update norm: only "it was too high" is known


class Spread(NamedTuple):
    """How far the true octaves over the limit may lie from the estimate, either way."""

    below: float
    above: float


# Conformal: the 6 and 94 % quantiles of truth - estimate over 261 failed runs of 32 families, each
# family in turn left out (`benchmarks/learning_rate_fit.py --evidence`): 0.88 inside, 3.4 octaves.
SPREAD = Spread(2.4, 1.2)
UNKNOWN_SPREAD = Spread(3.1, 1.9)  # as far again as the two lines lie apart
BLIND_SPREAD = Spread(4.0, 4.0)
UPDATE_STEPS = 2  # one may be odd, and from the third on a rate far too high has changed the run
# Octaves on top where a plain optimizer's first update was enough to break the run: the second one
# would have been far larger (2^4 to 2^8 times; without this all ten such runs came out 0.5 to 1.0
# too low).
BROKE_AT_ONCE = 0.8
LEAST_OCTAVES = 0.5  # a rate that failed is over the limit, however small its updates
# A run that still learns is not far over: the fitted ones were 0.5 to 1.5, whatever their updates.
MOST_OCTAVES_LEARNING = 1.5
# Octaves below the limit that clear the rate: trainings that work stay near u = 2^-10 to 2^-6, and
# what is below all of them is not too high.
CLEARED = 6.0
BEYOND_ONE_SHOT = 6.0  # octaves; 64 times too high often needs a second pass

# --- how sure: shares of reruns that were stable at the first try, rounded down ---
CONFIDENT, UNCERTAIN, FEW_STEPS_CONFIDENCE = 0.9, 0.6, 0.5
FEW_STEPS = 10

# --- late: what large runs did (x0.9 and x0.67 OPT, x0.5 BLOOM 104B, x0.89 icefall) ---
LATE_FACTOR, LATE_LOW, LATE_HIGH = 0.7, 0.5, 0.9

# --- clipping, warm-up, raising ---
BINDING_SHARE = 0.9  # of accepted steps whose gradient was made smaller
MOST_MICRO_BATCHES = 1e6  # beyond, the record is not to be believed
RISING_STEPS = 3
# Offered beside a lower peak: a warm-up is 1 to 10 % of a training as a rule, and more than eight
# times that would be most of it; the first transformer took 4,000 steps, GPT-3 and Llama 2,000.
LONGEST_STRETCH, LONGEST_WARMUP = 8.0, 4000
RAISE_ALIGNMENT = -0.5  # below: doubling was stable in every run tried
RAISE_STEPS = 100
RAISE_FACTOR = 2.0
DECAY_SHARE = 0.1  # beyond, weight decay makes updates alike whatever the gradients do

# --- bounds of the limit that the record shows ---
BELOW_FAILED = 0.1  # octaves: no rerun tells rates apart that are nearer than this 7 %
WORKED_SHARE = 0.2  # of the steps before the trouble, at a rate or above it: it had worked

# --- optimizers by behaviour ---
SAME_OCTAVES = 0.35  # an identity holds within this: the update norm is an estimate
PLAIN_OCTAVES = (-1.0, 4.3)  # update over rate x gradient: half, to 1 / (1 - 0.95)
ADAPTIVE_SLOPE, PLAIN_SLOPE = 0.35, 0.65  # of log(update / rate) over log(gradient)
