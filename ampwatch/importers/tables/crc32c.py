"""CRC32C of many records at once.

In plain Python, byte by byte, 50 MB would take three quarters of a minute. A CRC is linear: zero
bytes before a message change nothing if the register starts at zero, and a register that starts
with ones equals a message whose first four bytes are inverted. So among messages of one length only
the bytes that differ from the first message count, each by its effect on the register at its
position. A long message is cut into lanes that pass through the tables in parallel; their registers
are combined by the effect of a lane of zeros on a register.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_ONES = np.uint32(0xFFFFFFFF)
_WORD, _LANE = 4, 1024
_PART_BYTES = 4 << 20


def masked_checksums(data: bytes, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The CRC32C of each slice of `data`, masked as TensorFlow and LevelDB store it."""
    crcs = checksums(data, starts, lengths)
    rotated = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    masked: np.ndarray = rotated + np.uint32(_MASK_DELTA)
    return masked


def checksums(data: bytes, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The CRC32C of each slice of `data`."""
    content = np.frombuffer(data, np.uint8)
    found = np.zeros(len(starts), np.uint32)
    for length in np.unique(lengths[lengths <= _LANE]).tolist():
        mine = np.flatnonzero(lengths == length)
        for part in np.array_split(mine, 1 + len(mine) * length // _PART_BYTES):
            found[part] = _of_length(content, starts[part], length)
    for number in np.flatnonzero(lengths > _LANE).tolist():
        start = int(starts[number])
        found[number] = _long(content[start : start + int(lengths[number])])
    # What a message of less than four bytes leaves of the ones.
    short = np.minimum(lengths, 4).astype(np.uint64) * np.uint64(8)
    crcs: np.ndarray = found ^ _ONES ^ (np.uint64(_ONES) >> short).astype(np.uint32)
    return crcs


def _of_length(content: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """The CRC registers after messages of one length: the first one's, and the differences."""
    if not length or not len(starts):
        return np.zeros(len(starts), np.uint32)
    rows = sliding_window_view(content, length)[starts]
    first = np.zeros((1, -length % _WORD + length), np.uint8)
    first[0, -length:] = rows[0]
    first[0, -length:][:4] ^= 0xFF
    found = np.repeat(_registers(first), len(rows))
    for at in np.flatnonzero((rows != rows[0]).any(axis=0)).tolist():
        found ^= _after_byte()[length - at - 1][rows[:, at] ^ rows[0, at]]
    return found


def _registers(rows: np.ndarray) -> np.ndarray:
    """The CRC register after each row of bytes, started at zero; four bytes at a time."""
    words = np.ascontiguousarray(rows).view("<u4").T
    first, second, third, fourth = _tables()
    found = np.zeros(len(rows), np.uint32)
    for word in words:
        found = found ^ word
        found = (
            fourth[found & 0xFF]
            ^ third[(found >> 8) & 0xFF]
            ^ second[(found >> 16) & 0xFF]
            ^ first[found >> 24]
        )
    return found


def _long(message: np.ndarray) -> int:
    """The CRC register after one long message, cut into lanes."""
    lanes = 1 << int(np.ceil(np.log2(-(-len(message) // _LANE))))
    whole = np.zeros(lanes * _LANE, np.uint8)
    whole[-len(message) :] = message
    whole[-len(message) :][:4] ^= 0xFF
    found = _registers(whole.reshape(lanes, _LANE))
    after = _after_lane()
    while len(found) > 1:
        found = _applied(after, found[0::2]) ^ found[1::2]
        after = _applied(after, after)
    return int(found[0])


@functools.cache
def _tables() -> tuple[np.ndarray, ...]:
    """What a byte does to the CRC register, with none to three zero bytes after it."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    tables = [table]
    for _ in range(3):
        last = tables[-1]
        tables.append((last >> 8) ^ table[last & 0xFF])
    return tuple(tables)


@functools.cache
def _after_byte() -> np.ndarray:
    """What a byte does to the CRC register, by the number of zero bytes after it."""
    after = np.zeros((_LANE, 256), np.uint32)
    after[0] = _tables()[0]
    for zeros in range(1, _LANE):
        after[zeros] = (after[zeros - 1] >> 8) ^ after[0][after[zeros - 1] & 0xFF]
    return after


@functools.cache
def _after_lane() -> np.ndarray:
    """What each bit of a CRC register becomes after a lane of zeros."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    found: np.ndarray = (bits >> 8) ^ _tables()[0][bits & 0xFF]
    for _ in range(_LANE.bit_length() - 1):
        found = _applied(found, found)
    return found


def _applied(images: np.ndarray, registers: np.ndarray) -> np.ndarray:
    """The CRC registers after each bit is replaced by its image."""
    found = np.zeros(len(registers), np.uint32)
    for bit in range(32):
        found ^= np.where(registers >> np.uint32(bit) & 1, images[bit], np.uint32(0))
    return found
