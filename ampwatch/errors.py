"""The exceptions, each a sentence with its remedy, and the one way to warn and to write to stderr.

AmpwatchError
├── AttachError       attach() was given something it cannot watch
├── GuardError        guard() was given something it cannot act on
├── LearningRateError set_learning_rate() was given something it cannot change
├── Float32Error      run_in_float32() was given a layer that it cannot run so
├── RunError          a run cannot be opened, created or written
│   ├── NotARunError      the path holds no run
│   ├── FutureRunError    the run was written by a newer ampwatch
│   ├── RunInUseError     another process writes or compacts it
│   └── DifferentModelsError  runs to be judged together are of different models
├── LogError          a foreign log cannot be read or holds no training
├── ReportError       a report cannot be drawn as asked
├── CodecError        bytes that are not a batch of ours
├── AlertError        alerts cannot be sent as asked
├── MirrorError       a run cannot be mirrored as asked
├── PlaceError        a place for many runs cannot be used
│   └── NotInPlaceError   it holds no run of that name
├── SearchError       what is searched for cannot be understood
└── FeedError         the endpoint or the keys cannot be used
    ├── EndpointTakenError  another program listens there
    └── FrameError        a message that is not a valid frame
"""

from __future__ import annotations

import contextlib
import sys
import warnings


class AmpwatchError(Exception):
    """The root of every error that ampwatch raises on purpose."""


class AttachError(AmpwatchError, TypeError):
    """`attach` was called with something it cannot watch; the message names the fix."""


class GuardError(AmpwatchError, TypeError):
    """`guard` was called with something it cannot act on; the message names the fix."""


class LearningRateError(AmpwatchError, ValueError):
    """`set_learning_rate` was given something it cannot change; the message names the fix."""


class Float32Error(AmpwatchError, ValueError):
    """`run_in_float32` was given a layer that it cannot run so; the message names the fix."""


class RunError(AmpwatchError):
    """A run cannot be opened, created or written."""

    def __init__(self, message: str, *, path: object = None) -> None:
        super().__init__(message)
        self.path = path


class NotARunError(RunError):
    """The path holds no run."""


class FutureRunError(RunError):
    """The run was written by a newer format than this ampwatch reads."""


class RunInUseError(RunError):
    """Another process holds the run's lock."""


class DifferentModelsError(RunError):
    """Runs that are to be judged together are of different models."""


class LogError(AmpwatchError):
    """A foreign log cannot be read, or holds no training."""

    def __init__(self, message: str, *, path: object = None) -> None:
        super().__init__(message)
        self.path = path


class ReportError(AmpwatchError):
    """A report cannot be drawn as asked; the message says what to install."""


class CodecError(AmpwatchError, ValueError):
    """Bytes that are not a valid batch: damaged, foreign, too large or of another schema."""


class AlertError(AmpwatchError):
    """Alerts cannot be sent as asked; the message never contains an address."""


class MirrorError(AmpwatchError):
    """A run cannot be mirrored as asked; the message says what to install or to call first."""


class PlaceError(AmpwatchError):
    """A place for many runs cannot be read or written; the message never contains a credential."""

    def __init__(self, message: str, *, place: object = None) -> None:
        super().__init__(message)
        self.place = place


class NotInPlaceError(PlaceError):
    """The place holds no run of that name, or several."""


class SearchError(AmpwatchError):
    """What was typed to search for cannot be understood; the message says why."""


class FeedError(AmpwatchError):
    """The feed's endpoint or keys cannot be used."""


class EndpointTakenError(FeedError):
    """Another program listens at the endpoint."""


class FrameError(FeedError, ValueError):
    """A message that is not a valid frame: damaged, foreign or of another version."""

    def __init__(self, message: str, *, other_version: bool = False) -> None:
        super().__init__(message)
        self.other_version = other_version


class AmpwatchWarning(UserWarning):
    """Something of ampwatch's own is lost; the training is not affected."""


def reason_of(problem: OSError) -> str:
    """What the operating system says of a failure, without the path."""
    return problem.strerror or str(problem)


def warn(message: str, category: type[Warning] = AmpwatchWarning, *, stacklevel: int = 3) -> None:
    """Issue a warning of ampwatch's; where filters make errors of warnings, print it instead."""
    try:
        warnings.warn(f"ampwatch: {message}", category, stacklevel=stacklevel)
    except category:
        say_to_stderr(message)


def say_to_stderr(message: str) -> None:
    """Write a line to the program's stderr, if there is one that takes it."""
    # It raises if the program closed it, is None if it began closed, or is an object of its own.
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, LookupError):
        sys.stderr.write(f"ampwatch: {_encodable(message)}\n")
        sys.stderr.flush()  # a forked process would write it again


def _encodable(message: str) -> str:
    """The message in the characters that stderr has; the others as escapes."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    return message.encode(encoding, "backslashreplace").decode(encoding, "replace")
