"""The title of each finding: what is wrong, in the words that people search for, without a number.

`{layer}` and `{rank}` are filled in where the finding names them; the second title is for findings
that do not.
"""

from __future__ import annotations

from ampwatch.diagnosis.findings import Finding, Severity

TITLES = {
    "AMP101": "At the start the scaler looked for its loss scale: steps skipped there are normal",
    "AMP102": "The loss scale doubles and falls back now and then, as it should",
    "AMP103": "The loss scale collapsed",
    "AMP104": "The loss scale is at its floor: no step can succeed",
    "AMP105": "Many steps are skipped, more than the growth of the loss scale explains",
    "AMP106": "The loss scale grows without limit: the gradients are zero or absent",
    "AMP107": "The loss scale never grew",
    "AMP108": "The loss scale jumped back to its initial value",
    "AMP109": "The loss scale is low, and that is fine here",
    "AMP201": "Small gradients become zero in fp16",
    "AMP202": "Gradients overflow fp16, first in layer {layer}",
    "AMP203": "The output of layer {layer} is inf or NaN in the forward pass",
    "AMP204": "The loss is inf or NaN",
    "AMP205": "The activations of layer {layer} are close to the largest number of fp16",
    "AMP206": "A batch has extreme values",
    "AMP207": "The weights are inf or NaN: nothing can recover",
    "AMP208": "No loss scale suits all layers",
    "AMP209": "The input of the model is inf or NaN",
    "AMP210": "The attention scores of {layer} keep growing towards the limit of fp16",
    "AMP211": "Gradients are inf or NaN, and nothing skips those steps",
    "AMP212": "The training loop itself leaves steps out",
    "AMP301": "Learning rate too high",
    "AMP302": "Learning rate too high",
    "AMP303": "The loss spiked and recovered",
    "AMP304": "The gradient norm keeps growing",
    "AMP305": "The learning rate could be higher",
    "AMP306": "The trouble began with a change",
    "AMP307": "The loss rose and has not come back",
    "AMP308": "The learning rate is next to zero, so nothing is learnt",
    "AMP309": "The loss does not fall",
    "AMP310": "Overfitting: the validation loss rises while the training loss falls",
    "AMP311": "A reward or score has fallen far and is not back",
    "AMP312": "The discriminator has won: the generator learns nothing any more",
    "AMP313": "The score does not move while the training loss falls",
    "AMP401": "Gradients are clipped or changed before they are unscaled",
    "AMP402": "scaler.update() is missing",
    "AMP403": "scaler.update() is called inside a gradient accumulation",
    "AMP404": "optimizer.step() is called directly, so gradients are still scaled",
    "AMP405": "Autocast is not active: no layer runs in half precision",
    "AMP406": "The weights themselves are fp16, so their gradients cannot be unscaled",
    "AMP407": "The GradScaler is not needed with bf16",
    "AMP408": "fp16 without a GradScaler: small gradients become zero",
    "AMP409": "backward() runs under autocast",
    "AMP410": "No gradients reach the weights",
    "AMP411": "The learning-rate scheduler also advanced on skipped steps",
    "AMP412": "Gradients are not cleared between steps: zero_grad() is missing",
    "AMP413": "One loss's overflow lowers the loss scale of all",
    "AMP414": "The optimizer's eps is zero in fp16",
    "AMP415": "Training ended by a mix of number formats",
    "AMP416": "A new GradScaler is made again and again",
    "AMP417": "The weights of layer {layer} never change: no optimizer has them",
    "AMP418": "Updates are rounded away: the weights are in half precision",
    "AMP501": "Layer sizes do not suit tensor cores",
    "AMP502": "Mixed precision does not help: most work runs in float32",
    "AMP503": "Memory keeps growing",
    "AMP504": "Memory is nearly full",
    "AMP505": "The GPU waits most of the time",
    "AMP506": "Out of memory",
    "AMP507": "This GPU cannot run half precision faster",
    "AMP508": "The CPU cannot feed the GPU fast enough",
    "AMP601": "Ranks disagree on the loss scale or on skipped steps",
    "AMP602": "Rank {rank} alone overflows",
    "AMP603": "Rank {rank} fell silent",
    "AMP604": "The sum of the ranks' gradients overflows",
    "AMP605": "All ranks train on the same data",
    "AMP606": "One GPU does all the work",
    "AMP701": "fp8 cuts off large values of layer {layer}",
    "AMP702": "fp8 turns small values of layer {layer} into zero",
    "AMP703": "The scale of an fp8 tensor is out of date",
    "AMP704": "Layer {layer} is usually kept in bf16, and runs in fp8",
    "AMP705": "fp8 was asked for, and no layer runs in it",
    "AMP706": "The scale of an fp8 tensor no longer changes",
    "AMP901": "Some things could not be judged",
    "AMP902": "The run did not end by itself",
    "AMP903": "Rows of the record are missing",
    "AMP904": "The guard acted",
}
# For findings that name no layer, or no rank.
_WITHOUT = {
    "AMP202": "Gradients overflow fp16",
    "AMP203": "Activations are inf or NaN in the forward pass",
    "AMP205": "Activations are close to the largest number of fp16",
    "AMP210": "Attention scores keep growing towards the limit of fp16",
    "AMP417": "optimizer.step() runs, but the weights do not change",
    "AMP602": "One rank alone overflows",
    "AMP603": "A rank fell silent",
    "AMP701": "fp8 cuts off large values",
    "AMP702": "fp8 turns small values into zero",
    "AMP704": "Layers that are usually kept in bf16 run in fp8",
}


# Of findings that are a warning at most.
_MILDER = {"AMP103": "The loss scale fell far below its usual level"}


def title_of(finding: Finding, every_rank: tuple[int, ...] = ()) -> str:
    """The finding's title, with its layer and rank where it names them."""
    title = TITLES.get(finding.code, finding.name.replace("-", " ").capitalize())
    if finding.severity is not Severity.ERROR:
        title = _MILDER.get(finding.code, title)
    rank = finding.ranks[0] if len(finding.ranks) == 1 < len(every_rank) else None
    lacks = ("{layer}" in title and not finding.layer) or ("{rank}" in title and rank is None)
    if lacks:
        return _WITHOUT[finding.code]
    return title.format(layer=finding.layer, rank=rank)
