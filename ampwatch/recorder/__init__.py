"""The feed into the store: files what trainers send as copies of their logs.

A copy holds the trainer's own batches under the trainer's own numbers, so after any interruption it
is continued from what it holds. Beside its run.json lies recorder.json, which says which ranks are
copies; a rank that the trainer itself writes here is never touched, the feed then only wakes the
views. What cannot be filed is not acknowledged, and one rank's trouble is not another's.
"""

from ampwatch.recorder.recorder import Recorder
from ampwatch.recorder.records import RankRecord, RecordedRun, RecorderStats

__all__ = [
    "RankRecord",
    "RecordedRun",
    "Recorder",
    "RecorderStats",
]
