"""What to do about an outcome where no rule has found why; in other words than a page's."""

from __future__ import annotations

from ampwatch.diagnosis.findings import State

# Where rollout and training grew apart: why, and what to do about it.
APART = (
    "Rollout and training had grown apart: what samples was no longer what is trained.",
    (
        "Go back to the checkpoint of the best value. Give rollout and training the same weights, "
        "number format and kernels, or weigh each token by the ratio of its two probabilities."
    ),
)
# What to do about an outcome where no rule has found why; of the others it is the page's.
REMEDIES = {
    State.WORSE: "Lower the learning rate. If that does not help, look at the batches around the "
    "step at which the loss rose. Record the gradient norm: it tells bad batches from a learning "
    "rate that is too high.",
    State.NOT_BACK: "Wait: the loss may come back. If it does not, lower the learning rate, or "
    "look at the batches around the step at which it rose.",
    State.ANOTHER_LEVEL: "Check whether the data or the task changed at that step.",
    State.WITHOUT_END: "Bound what is made large: normalise it, or put a log-sigmoid, a margin or "
    "a penalty on it. A lower learning rate only puts it off.",
    State.WIDER: "Lower the learning rate, of the critic or adversary first, or damp it: weight "
    "decay, a gradient penalty, clipping.",
    State.NOT_FINITE: "Attach ampwatch to the training: it names the first layer whose numbers are "
    "inf or NaN. Until then, try bf16 or a lower learning rate.",
    State.NO_STEPS: "Stop: nothing is learnt. Attach ampwatch to the training: it names the layer "
    "whose gradients overflow.",
    State.HARDLY_FALLS: "Check the labels, and that inputs and labels belong together. Then try a "
    "learning rate ten times higher, and ten times lower. If this continues a trained model, it "
    "may be all there is to learn.",
    State.RATE_LEAPT: "Set the learning rate back to what it was before that step. If it came with "
    "a resume, load the scheduler's state, and the optimizer's, from the checkpoint as well.",
    State.GOAL_FALLS: "Keep the checkpoint of the best value. If it does not come back, go on from "
    "there with a lower learning rate.",
    State.NOTHING_LEARNS: "Check that the loss depends on the parameters that the optimizer has.",
}
