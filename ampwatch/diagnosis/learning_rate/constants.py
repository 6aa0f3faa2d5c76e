"""The constants that several parts of the learning-rate advice share, each with its reason.

Those marked "fitted" come from 18 small trainings of the measurements behind the design (13 rates
each, 2 to 3 seeds). All are based on small models: treat them as a start.
"""

from __future__ import annotations

# --- the history that is kept: of fixed size, whatever the run's length ---
HEAD_ROWS = 1536  # the early regime (1,000 accepted steps) and its skips
TAIL_ROWS = 1024  # the end of the record, row by row
CELL_ROWS = 16  # the smallest part of the history between
MOST_CELLS = 512  # then pairs are merged: a cell is never wider than 1/256 of the run

# --- an onset (fitted: fires on 9 to 16 % of stable runs by itself, on 1 to 3 % at the end) ---
EARLY_STEPS = 1000  # accepted steps; beyond, the rate has been shown to work
SCRATCH_STEPS = 500  # the tests against the first loss hold this long
NO_LEARNING, NO_LEARNING_STEPS = 0.9, 50  # of the first loss, after so many steps
RECOVERED_SHARE = 0.25  # of what was lost may still be missing
NOTHING = 1e-3  # a loss below it is practically zero, and its level says nothing
NEAR_BEST = 0.1  # of the progress made: no more than this was lost
ROBUST_DEVIATIONS = 6.0
BAND_FACTOR = 2.0  # a drift doubles at least
STATIC_SCALE = 2.0**-32

# --- stretches of steps ---
WINDOW_STEPS = 100  # the recent past
FINAL_STEPS = 30  # the value at the end is the median of these
SUSTAINED_STEPS = 20
MEDIAN_STEPS = POINT_STEPS = PROOF_STEPS = FEW_STEPS = 10
EVENT_SKIPS = 5  # the streak that is an event for the attribution

# --- the mechanism ---
# The largest layer's, in the last 10 accepted steps before trouble (fitted; 150 of 151 separated).
PROOF_RATIO = 0.3
LEAST_OCTAVES = 0.5  # a rate that failed is above the limit, however small its updates
BELOW_FAILED = 0.1  # octaves: reruns cannot distinguish rates that are closer than this 7 %

# --- raising: below this alignment doubling was stable in every run tried ---
RAISE_ALIGNMENT, RAISE_STEPS = -0.5, 100
