"""Rows to bytes and back: one batch is one encapsulated Arrow IPC record-batch message.

The same bytes go to the log and over the wire. The schema message is not repeated: `rows.SCHEMAS`
fixes it for a format. Bytes from outside are checked before anything reads a value from them.
"""
