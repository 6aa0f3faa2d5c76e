"""What to do about an outcome where no rule has found why."""

from __future__ import annotations

from ampwatch.diagnosis.findings import State

REMEDIES = {
    State.WORSE: "Lower the learning rate. If that does not help, look at the batches around the "
    "step at which the loss rose. Record the gradient norm: it tells the two apart.",
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
    State.STANDS_STILL: "Check that the optimizer has this model's parameters, that the loss "
    "compares shapes that fit, and the labels. Then try a learning rate ten times lower, and ten "
    "times higher.",
    State.HARDLY_FALLS: "Check the labels, and that inputs and labels belong together. Then try a "
    "learning rate ten times higher, and ten times lower. If this continues a trained model, it "
    "may be all there is to learn.",
    State.RATE_LEAPT: "Set the learning rate back to what it was before that step. If it came with "
    "a resume, load the scheduler's state, and the optimizer's, from the checkpoint as well.",
    State.OVERFITS: "Stop at the lowest validation loss and keep that checkpoint. More data, "
    "augmentation, dropout or weight decay move it further down.",
    State.GOAL_STILL: "Check the evaluation: that its labels and classes are those of training, "
    "that it runs the model that is trained, and that its data are prepared in the same way. Check "
    "that the training data are shuffled.",
    State.GOAL_FALLS: "Keep the checkpoint of the best value. If it does not come back, go on from "
    "there with a lower learning rate.",
    State.GOAL_LOST: "Go back to the checkpoint of the best value. Go on with a lower learning "
    "rate, or with smaller changes of the policy in each update.",
    State.ADVERSARY_WON: "Go back to before that step. Give the discriminator a lower learning "
    "rate, fewer steps or noisy labels: a generator learns nothing from one that is always right.",
    State.NOTHING_LEARNS: "Check that the loss depends on the parameters that the optimizer has.",
}
