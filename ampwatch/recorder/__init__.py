"""The feed into the store: files what trainers send as copies of their logs.

A copy holds the trainer's own batches under the trainer's own numbers, so after any interruption it
is continued from what it holds. Beside its run.json lies recorder.json, which says which ranks are
copies; a rank that the trainer itself writes here is never touched, the feed then only wakes the
views. What cannot be filed is not acknowledged, and one rank's trouble is not another's.

All of it, from the socket to the files, runs in a process of its own, because a stranger can end a
process that holds a ZeroMQ socket: libzmq aborts it at a heartbeat that comes amid a flood
(`feed.keepalive`). Its death costs no row: what it has acknowledged is filed, and trainers send the
rest again. `Recorder` starts it again on the same port, and hears from it only what the views need:
notes, which runs have new rows, how each rank stands. A process for the socket alone would have to
hand every frame over, and acknowledge none before it has heard of its filing.
"""

from ampwatch.recorder.recorder import Recorder
from ampwatch.recorder.records import RankRecord, RecordedRun, RecorderStats

__all__ = [
    "RankRecord",
    "RecordedRun",
    "Recorder",
    "RecorderStats",
]
