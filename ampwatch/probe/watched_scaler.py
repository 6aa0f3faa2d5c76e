"""The scaler's class is swapped for a subclass made from its own class, and swapped back.

Nothing is stored in the scaler: what the subclass knows hangs on the subclass, which is made for
one scaler. Pickles and copies are of the original class, and unwatched. Every override calls the
original exactly as the user did, and what it raises leaves untouched.
"""

from __future__ import annotations

from typing import Any

from ampwatch.probe.hooks import FailureShield
from ampwatch.probe.loop import Loop
from ampwatch.probe.optimizer_turns import WATCHED


def swap(scaler: Any, loop: Loop, shield: FailureShield) -> type:
    """Watch this scaler; returns the class to hand to `restore`."""
    watched = _watched_class(type(scaler), loop, shield)
    scaler.__class__ = watched
    return watched


def restore(scaler: Any, watched: type) -> bool:
    """Give the scaler its own class back, if nobody else has changed it since."""
    if type(scaler) is not watched:
        return False
    scaler.__class__ = watched.__bases__[0]
    return True


def _watched_class(original: Any, loop: Loop, shield: FailureShield) -> type:
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        WATCHED: True,
        # Pickle refuses to make an object of another class than the object says to be of.
        "__class__": property(lambda self: _shown_class(type(self), original), _set_class),
        **_calls(original, loop, shield),
        **_states(original, loop, shield),
    }
    watched = type(original.__name__, (original,), namespace)

    def reduce_as_original(self: Any, protocol: Any) -> Any:
        return _as_original(original.__reduce_ex__(self, protocol), watched, original)

    watched.__reduce_ex__ = reduce_as_original  # type: ignore[assignment,method-assign]
    return watched


def _shown_class(actual: type, original: type) -> type:
    """The user's class in place of ours; somebody may have put a class of his own on top."""
    return original if WATCHED in vars(actual) else actual


def _set_class(scaler: Any, new: type) -> None:
    object.__dict__["__class__"].__set__(scaler, new)


def _as_original(reduced: Any, watched: type, original: type) -> Any:
    """What pickle and copy are told, with the original class in place of ours."""
    if not isinstance(reduced, tuple):
        return reduced
    function, arguments, *rest = reduced
    plain = tuple(original if argument is watched else argument for argument in arguments)
    return (original if function is watched else function, plain, *rest)


def _calls(original: Any, loop: Loop, shield: FailureShield) -> dict[str, Any]:
    """The calls of a training loop; of a disabled scaler only those that show us something."""
    run, losses, current = shield.run, loop.losses, loop.current

    def scale(self: Any, outputs: Any) -> Any:
        if current.scaler() is not self:
            current.set_scaler(self)
        if not current.used:
            run(current.scaler_is_used)
        results = original.scale(self, outputs)
        run(losses.take, outputs, results)
        return results

    def step_disabled(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        run(loop.turns.view, optimizer)
        return original.step(self, optimizer, *args, **kwargs)

    if not current.enabled:
        return {"scale": scale, "step": step_disabled}
    return {"scale": scale, **_enabled_calls(original, loop, shield)}


def _enabled_calls(original: Any, loop: Loop, shield: FailureShield) -> dict[str, Any]:
    """What goes on between the backward pass and the next step."""
    run, turns, current = shield.run, loop.turns, loop.current

    def unscale_(self: Any, optimizer: Any) -> None:
        if turns.stepping is None:  # else `step` calls us, and all has been seen to
            run(turns.before_unscale, optimizer)
        try:
            original.unscale_(self, optimizer)
        except BaseException as error:
            run(loop.failed, "unscale_", error, optimizer)
            raise
        if turns.detailed:
            run(turns.after_unscale)

    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        run(turns.before_step, optimizer)
        try:
            result = original.step(self, optimizer, *args, **kwargs)
        except BaseException as error:
            run(loop.failed, "step", error, optimizer)
            raise
        run(turns.after_step, self, optimizer)
        return result

    def update(self: Any, new_scale: Any = None) -> None:
        record = current.record
        if record is None or record.scale_at is None:  # else it has been read with found_inf
            run(loop.before_update)
        try:
            original.update(self, new_scale)
        except BaseException as error:
            run(loop.failed, "update", error)
            raise
        run(loop.after_update, self, new_scale)

    return {"unscale_": unscale_, "step": step, "update": update}


def _states(original: Any, loop: Loop, shield: FailureShield) -> dict[str, Any]:
    """Saving and loading, which the diagnosis reads as checkpoints and resumes."""

    def state_dict(self: Any) -> Any:
        state = original.state_dict(self)
        shield.run(loop.state_saved)
        return state

    def load_state_dict(self: Any, state: Any) -> None:
        original.load_state_dict(self, state)
        shield.run(loop.state_loaded, state)

    return {"state_dict": state_dict, "load_state_dict": load_state_dict}
