"""Healthy trainings that look ill: each is what some fault is confused with."""

from __future__ import annotations

import numpy as np

from examples.gallery.variety.noise import remembering
from examples.gallery.variety.registry import ATTACHED, FP16, NO_SCALER, SCALARS, mechanism
from examples.gallery.variety.story import Restart, Story
from examples.gallery.variety.truth import Truth, healthy


@mechanism("calm/plain", benign=True)
def plain(story: Story, at: int) -> Truth:
    """Nothing happens."""
    return healthy()


@mechanism("calm/sawtooth", benign=True, precisions=FP16, steps=(3000, 1_000_000))
def sawtooth(story: Story, at: int) -> Truth:
    """The scale grows into its ceiling once an interval."""
    story.growth_interval = int(story.random.choice([100, 200, 500, 1000]))
    story.init_scale = float(2.0 ** (story.task.ceiling // 1))
    return healthy(told=("AMP102",))


@mechanism("calm/start-up-search", benign=True, precisions=FP16, steps=(150, 100_000))
def start_up_search(story: Story, at: int) -> Truth:
    """From far above its ceiling the scale is searched down, and all is well."""
    story.init_scale = float(
        2.0 ** min(40, int(story.task.ceiling) + int(story.random.integers(5, 22)))
    )
    return healthy(told=("AMP101",))


@mechanism("calm/single-skip", benign=True, precisions=FP16, steps=(300, 300_000))
def single_skip(story: Story, at: int) -> Truth:
    """One step overflows, once."""
    story.overflows[max(at, min(80, story.steps - 10))] = True
    return healthy(told=("AMP102", "AMP206"))


@mechanism("calm/rate-falls-in-stairs", benign=True, steps=(500, 300_000))
def rate_falls(story: Story, at: int) -> Truth:
    """The rate falls by ten, twice; loss and updates follow it down."""
    shares = np.arange(story.steps) / story.steps
    factor = np.where(shares < 0.5, 1.0, np.where(shares < 0.8, 0.1, 0.01))
    story.rate[:] = story.rate_base * factor
    story.excess += np.where(shares < 0.5, 0.25, np.where(shares < 0.8, 0.08, 0.0))
    return healthy()


@mechanism("calm/curriculum", benign=True, steps=(1000, 300_000))
def curriculum(story: Story, at: int) -> Truth:
    """The data become harder: the loss steps up and falls again; gradients and updates stay."""
    since = story.since(at)
    height = story.random.uniform(0.2, 0.6)
    story.excess += height * np.exp(-since.clip(min=0) / (0.15 * story.steps)) * (since >= 0)
    return healthy(told=("AMP303", "AMP306"))


@mechanism("calm/alternation", benign=True, steps=(500, 300_000))
def alternation(story: Story, at: int) -> Truth:
    """One half of an adversarial pair: its loss swings with its partner's."""
    swing = np.tanh(remembering(story.random.standard_normal(story.steps), 0.995))
    story.excess += 0.35 * swing + 0.4 * np.arange(story.steps) / story.steps
    return healthy()


@mechanism("calm/rewards", benign=True, steps=(500, 300_000))
def rewards(story: Story, at: int) -> Truth:
    """A loss around zero, of either sign, that means nothing by itself."""
    size = float(story.task.unit[0])
    story.task.loss[:] -= story.task.level
    story.task.level[:] = 0.0
    story.task.unit[:] = size
    slow = remembering(story.random.standard_normal(story.steps), 0.999)
    story.excess += 0.3 * slow
    return healthy()


@mechanism("calm/small-batches", benign=True, steps=(200, 300_000))
def small_batches(story: Story, at: int) -> Truth:
    """Batches of one or two samples: loss and gradient differ by a factor from step to step."""
    spread = story.random.uniform(0.5, 0.9)
    shake = np.exp((spread * story.random.standard_normal(story.steps)).clip(-2.5, 2.5))
    story.excess += (story.task.level / story.task.unit) * (shake - 1)
    story.grad_gain *= np.exp((0.5 * story.random.standard_normal(story.steps)).clip(-2, 2))
    return healthy()


@mechanism("calm/clipping-binds", benign=True, steps=(200, 300_000))
def clipping_binds(story: Story, at: int) -> Truth:
    """Every gradient is clipped, most of them by far."""
    story.clip = float(np.median(story.task.grad_norm) / story.random.uniform(3, 30))
    return healthy()


@mechanism("calm/heavy-tails", benign=True, precisions=NO_SCALER, steps=(300, 300_000))
def heavy_tails(story: Story, at: int) -> Truth:
    """Losses and gradients with tails, clipped: one in some thousand is many times the median."""
    tails = story.random.standard_t(3, story.steps)
    story.excess += (0.1 * tails).clip(-0.5, 1.5) * (story.task.level / story.task.unit)
    story.grad_gain *= np.exp((0.4 * story.random.standard_t(4, story.steps)).clip(-2, 3))
    story.clip = float(np.median(story.task.grad_norm))
    return healthy(told=("AMP206", "AMP303"))


@mechanism("calm/plateau-then-insight", benign=True, steps=(500, 300_000))
def plateau(story: Story, at: int) -> Truth:
    """Nothing is learnt for a good part of the run; then the loss falls."""
    share = story.random.uniform(0.2, 0.6)
    begin = int(share * story.steps)
    flat = (story.task.level[0] - story.task.level) / story.task.unit
    fading = np.exp(-story.since(begin).clip(min=0) / (0.1 * story.steps))
    story.excess += flat * fading
    return healthy(told=("AMP305",))


@mechanism("calm/restarted-whole", benign=True, steps=(500, 1_000_000), onsets=("restart",))
def restarted_whole(story: Story, at: int) -> Truth:
    """Restarts that restore everything."""
    story.restarts += [Restart(story.part(share)) for share in (0.3, 0.55, 0.9)]
    return healthy()


@mechanism("calm/warm-restarts", benign=True, steps=(1000, 300_000))
def warm_restarts(story: Story, at: int) -> Truth:
    """A cosine that begins anew some times: rate and updates jump back up, the loss a little."""
    cycles = int(story.random.integers(3, 8))
    phase = np.arange(story.steps) * cycles / story.steps % 1
    shape = 0.05 + 0.95 * (1 + np.cos(np.pi * phase)) / 2
    story.rate[:] = story.rate_base * shape
    story.excess += 0.06 * shape
    return healthy()


@mechanism("calm/resumed-at-its-best", benign=True, steps=(200, 100_000))
def resumed_at_its_best(story: Story, at: int) -> Truth:
    """A resumed run with hardly anything left to learn: flat, and all states are there."""
    story.first_step = int(story.random.integers(1, 80)) * 1000
    settled = story.task.level[-1] - story.task.level
    story.task.loss[:] += settled
    story.task.level[:] += settled
    story.restarts.append(Restart(0))
    return healthy(told=("AMP305",))


@mechanism("calm/norm-settles-higher", benign=True, steps=(1000, 300_000))
def norm_settles(story: Story, at: int) -> Truth:
    """The gradient norm rises in the first part of the run, as nets do, and stays there."""
    share = np.arange(story.steps) / story.steps
    story.grad_gain *= 1 + story.random.uniform(0.5, 3) * (share / 0.2).clip(max=1)
    return healthy()


@mechanism("calm/larger-batches", benign=True, steps=(1000, 300_000))
def larger_batches(story: Story, at: int) -> Truth:
    """The batch is doubled in mid-run, and said so: gradients shrink, the noise with them."""
    story.events.append((at, "batch-size-changed", {"from": 32, "to": 64}))
    later = story.since(at) >= 0
    story.grad_gain *= np.where(later, 0.75, 1.0)
    story.excess -= np.where(later, 0.3 * (story.task.loss - story.task.level) / story.task.unit, 0)
    return healthy()


@mechanism("calm/epochs", benign=True, steps=(1000, 300_000))
def epochs(story: Story, at: int) -> Truth:
    """The loss drops at each epoch's start and creeps up within it."""
    count = int(story.random.integers(3, 20))
    story.excess += 0.1 * (np.arange(story.steps) * count / story.steps % 1)
    return healthy()


@mechanism("calm/overfit-in-the-norm", benign=True, steps=(1000, 300_000))
def smaller_gradients(story: Story, at: int) -> Truth:
    """Gradients fade by a hundred as the training set is learnt by heart."""
    story.grad_gain *= 0.01 ** (np.arange(story.steps) / story.steps)
    return healthy()


@mechanism("calm/two-tasks", benign=True, steps=(500, 300_000))
def two_tasks(story: Story, at: int) -> Truth:
    """One batch in some is of another task, with a loss of its own."""
    other = story.random.random(story.steps) < story.random.uniform(0.05, 0.3)
    story.excess += story.random.uniform(0.5, 3) * other
    story.grad_gain *= np.where(other, 1.7, 1.0)
    return healthy(told=("AMP206", "AMP303"))


@mechanism(
    "calm/large-logits-at-rest",
    benign=True,
    precisions=FP16,
    seen=(ATTACHED,),
    steps=(3000, 100_000),
)
def large_logits(story: Story, at: int) -> Truth:
    """Attention scores that are large from the first thousand steps on, and grow no more."""
    grown = 40 * (1 + story.random.uniform(1, 8) * (1 - np.exp(-np.arange(story.steps) / 800)))
    grown = grown * np.exp(0.1 * story.random.standard_normal(story.steps))
    story.layer_columns = {"blocks.1.attend.scores": {"input_amax": grown}}
    return healthy()


@mechanism("calm/memory-at-its-level", benign=True, seen=(ATTACHED, SCALARS), steps=(2000, 100_000))
def memory_level(story: Story, at: int) -> Truth:
    """Memory rises while caches fill and then stays, with evaluations in between."""
    rising = 1 - np.exp(-np.arange(story.steps) / (0.03 * story.steps))
    peaks = 0.03 * (np.arange(story.steps) * 12 / story.steps % 1 > 0.9)
    story.memory_bytes = 80e9 * (0.2 + 0.4 * rising + peaks)
    return healthy()


@mechanism("calm/length-buckets", benign=True, steps=(300, 300_000))
def length_buckets(story: Story, at: int) -> Truth:
    """Batches of one length each, sorted within stretches: loss and gradient swing with it."""
    period = int(story.random.integers(8, max(9, min(400, story.steps // 6))))
    place = np.arange(story.steps) % period / period
    story.excess += story.random.uniform(0.05, 0.3) * place
    story.grad_gain *= 2 ** (story.random.uniform(-1, 1) * place)
    return healthy(told=("AMP206", "AMP303"))


@mechanism("calm/longer-texts", benign=True, steps=(1000, 300_000))
def longer_texts(story: Story, at: int) -> Truth:
    """Sequences grow in stages: at each the loss steps up a little, as the gradient does, or down.

    A mean over more tokens has less noise; nothing else changes.
    """
    stage = (np.arange(story.steps) * int(story.random.integers(2, 6))) // story.steps
    step_up = story.random.uniform(-0.1, 0.06)
    story.excess += step_up * stage
    story.grad_gain *= 2 ** (-0.3 * stage)
    return healthy(told=("AMP303", "AMP306"))


@mechanism("calm/empty-batches", benign=True, precisions=NO_SCALER, steps=(300, 100_000))
def empty_batches(story: Story, at: int) -> Truth:
    """Now and then nothing is left of a batch once it is masked: loss and gradient are zero."""
    empty = story.random.random(story.steps) < 10 ** story.random.uniform(-3.5, -1.5)
    empty[:3] = False
    story.excess -= np.where(empty, story.task.loss / story.task.unit, 0.0)
    story.grad_gain *= np.where(empty, 1e-9, 1.0)
    return healthy()


@mechanism("calm/clipped-explosions", benign=True, precisions=NO_SCALER, steps=(300, 300_000))
def clipped_explosions(story: Story, at: int) -> Truth:
    """A recurrent net: one gradient in some hundreds is ten to thousands of times too long.

    Clipping takes it, and the loss shows nothing.
    """
    burst = story.random.random(story.steps) < 10 ** story.random.uniform(-3.5, -1.7)
    story.grad_gain *= np.where(burst, 10 ** story.random.uniform(1, 3.5, story.steps), 1.0)
    story.clip = float(np.median(story.task.grad_norm))
    return healthy(told=("AMP206",))


@mechanism("calm/early-hump", benign=True, steps=(500, 300_000))
def early_hump(story: Story, at: int) -> Truth:
    """The loss climbs over its first value while the rate warms up, and comes down for good."""
    share = story.random.uniform(0.01, 0.04)
    at = np.arange(story.steps) / (share * story.steps)
    hump = story.random.uniform(0.2, 1.0) * at * np.exp(1 - at)
    story.excess += hump
    story.grad_gain *= 1 + story.random.uniform(0, 2) * hump
    return healthy(told=("AMP303",))


@mechanism("calm/new-task", benign=True, steps=(1000, 300_000))
def new_task(story: Story, at: int) -> Truth:
    """Another stage with other data: the loss leaps, with its gradient, and is learnt away."""
    at = min(at, int(0.5 * story.steps))
    since, height = story.since(at), story.random.uniform(0.3, 1.5)
    leap = np.where(since >= 0, height * np.exp(-since.clip(min=0) / (0.08 * story.steps)), 0.0)
    story.excess += leap
    story.grad_gain *= 1 + leap
    # Who does not know of the other data sees a long spike, at most; no trouble that stands.
    return Truth(
        may=frozenset({"AMP303", "AMP306", "AMP206"}), worst="warning",
        verdicts=("healthy", "warning"), rate=("keep", "raise", "unknown", "not-the-cause"),
    )  # fmt: skip


@mechanism("calm/raised-and-borne", benign=True, steps=(500, 300_000))
def raised_and_borne(story: Story, at: int) -> Truth:
    """Somebody raises the rate in mid-run, and the training bears it."""
    times = story.random.uniform(2, 5)
    story.rate[:at] /= times
    low, high = float(story.rate[at - 1]), float(story.rate[at])
    story.events.append((at, "lr-changed", {"group": 0, "from": low, "to": high}))
    story.excess -= 0.05 * (story.since(at) >= 0)
    return healthy(told=("AMP306",))


@mechanism("calm/sorted-by-length", benign=True, steps=(1000, 300_000))
def sorted_by_length(story: Story, at: int) -> Truth:
    """Every epoch goes from short to long: the loss climbs through it and falls at its end."""
    epochs = int(story.random.integers(2, 9))
    place = np.arange(story.steps) * epochs / story.steps % 1
    story.excess += story.random.uniform(0.1, 0.5) * place
    story.grad_gain *= 2 ** (story.random.uniform(0, 1.2) * place)
    return healthy(told=("AMP303", "AMP306"))
