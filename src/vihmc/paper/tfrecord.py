"""TFRecord files of float features, read without TensorFlow.

A file is a sequence of records: length (8 bytes), checksum of the length (4), payload, checksum of the payload (4).
The payload is a ``tf.train.Example``, a protocol buffer that maps names to lists of numbers. Every checksum is checked.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_HEADER, _CHECKSUM = struct.Struct("<QI"), struct.Struct("<I")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT_LIST = 2


class DamagedRecordError(ValueError):
    """A record that is truncated, or whose checksum or content is wrong."""


def read_examples(path: Path) -> list[dict[str, np.ndarray]]:
    """Read every record of a file as arrays of float32 by name.

    Raises:
        DamagedRecordError: If a record is damaged.
        OSError: If the file cannot be read.
    """
    return [parse_example(payload, number) for number, payload in enumerate(split_records(path.read_bytes()))]


def split_records(data: bytes) -> Iterator[bytes]:
    """Split a file into payloads, checking lengths and checksums."""
    position, number = 0, 0
    while position < len(data):
        if len(data) - position < _HEADER.size:
            raise DamagedRecordError(f"it ends within record {number}")
        length, checksum = _HEADER.unpack_from(data, position)
        if masked_crc32c(data[position : position + 8]) != checksum:
            raise DamagedRecordError(f"the length of record {number} fails its checksum")
        start = position + _HEADER.size
        end = start + length
        if len(data) < end + _CHECKSUM.size:
            raise DamagedRecordError(f"it ends within record {number}")
        payload = data[start:end]
        if masked_crc32c(payload) != _CHECKSUM.unpack_from(data, end)[0]:
            raise DamagedRecordError(f"record {number} fails its checksum")
        yield payload
        position, number = end + _CHECKSUM.size, number + 1


def parse_example(payload: bytes, number: int = 0) -> dict[str, np.ndarray]:
    """Read the float features of a ``tf.train.Example``."""
    features: dict[str, np.ndarray] = {}
    try:
        for _, all_features in _fields(payload):
            for _, entry in _fields(all_features):
                parts = dict(_fields(entry))
                for kind, values in _fields(parts[2]):
                    if kind == _FLOAT_LIST:
                        # One packed field or one field per value: the bytes are the same.
                        joined = b"".join(value for _, value in _fields(values))
                        features[parts[1].decode()] = np.frombuffer(joined, "<f4")
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise DamagedRecordError(f"record {number} is not a tf.train.Example of floats") from error
    return features


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Numbers and contents of the fields of a protocol buffer; integers have empty content."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            _, position = _varint(message, position)
            yield key >> 3, b""
            continue
        if kind == _BYTES:
            size, position = _varint(message, position)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"unknown wire type {kind}")
        if position + size > len(message):
            raise ValueError("a field is longer than its message")
        yield key >> 3, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc32c_table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The checksum as TFRecord stores it, rotated and shifted."""
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF
