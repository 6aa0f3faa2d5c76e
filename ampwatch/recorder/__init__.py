"""The recorder: files what trainers send as copies of their logs.

A copy holds the trainer's own batches under the trainer's own numbers, so after any interruption it
is continued from what it holds. Beside its run.json is recorder.json, which says which ranks are
copies. A rank that the trainer itself writes here is never touched: the feed then only tells the
views that rows have come. What cannot be filed is not acknowledged, and one rank's trouble does not
affect others.

All of it, from the socket to the files, runs in a process of its own, because a stranger can end a
process that holds a ZeroMQ socket: libzmq aborts it if a heartbeat comes during a flood
(`feed.sockets`). That costs no row: what was acknowledged is filed, and trainers send the rest
again. `Recorder` restarts the process on the same port, and gets from it only what the views need:
notes, which runs have new rows, the state of each rank. A process for the socket alone would have
to hand over every frame, and could acknowledge none before it had been told of its filing.
"""

from ampwatch.recorder.recorder import Recorder

__all__ = ["Recorder"]
