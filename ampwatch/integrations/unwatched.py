"""Why a script's training was not watched, from what was seen of it; and what to do."""

from __future__ import annotations

from dataclasses import dataclass, field

BY_HAND = "call ampwatch.attach(scaler, model, optimizer=...) in the script"
ITS_LOG = "give the log that it prints to `ampwatch report`"


@dataclass(slots=True)
class Seen:
    """What a script did while nothing was attached."""

    optimizers: set[str] = field(default_factory=set)  # their classes' names
    scalers: int = 0
    ran: bool = False  # a module in training mode, though none that an optimizer trains
    evaluated: bool = False  # a module in eval mode, or without gradients
    went_back: bool = False
    watched: bool = False
    refused: bool = False  # and told why


def why_unwatched(seen: Seen) -> str:
    """One sentence."""
    named = " and ".join(sorted(seen.optimizers))
    if not named and not seen.went_back:
        return (
            "this process made no torch.optim.Optimizer and no loss went backward in it; "
            "if it starts others that train, run those under ampwatch."
        )
    if not named:
        return (
            "losses went backward, but no torch.optim.Optimizer was made: what moves the weights "
            f"is of another kind (Keras's own, one by hand), which shows no steps; {ITS_LOG}."
        )
    if seen.ran:
        return (
            f"modules ran in training mode, but none holds a parameter of {named}: it was given "
            f"copies, as DeepSpeed and Apex make them; {ITS_LOG}, or {BY_HAND}."
        )
    if seen.evaluated:
        return (
            f"{named} was made, but after it modules ran only in eval mode or without gradients; "
            "call model.train() before the loop."
        )
    if seen.went_back:
        return (
            f"{named} was made and losses went backward, but no module ran: its parameters are "
            f"used outside of one; {BY_HAND}."
        )
    return (
        f"{named} was made, but no optimizer's model ran in training mode after it, and no loss "
        "went backward."
    )
