"""Thrift's compact protocol, in which Parquet's metadata is written: a tree that can be damaged and written back.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
INTEGERS = (4, 5, 6)


@dataclass
class Struct:
    """Fields as [number, type, value], in the order of the file."""

    fields: list[list[Any]] = field(default_factory=list)

    def get(self, number: int) -> Any:
        return next((value for known, _, value in self.fields if known == number), None)

    def set(self, number: int, value: Any) -> None:
        for each in self.fields:
            if each[0] == number:
                each[2] = value


@dataclass
class List:
    """Values of one type."""

    type: int
    values: list[Any]


def read_struct(content: bytes, at: int) -> tuple[Struct, int]:
    """Read the struct at `at`. Returns it with the position of its end."""
    found, number = Struct(), 0
    while content[at]:
        delta, kind = content[at] >> 4, content[at] & 15
        at += 1
        if delta:
            number += delta
        else:
            number, at = _zigzag(content, at)
        value, at = (kind == TRUE, at) if kind in {TRUE, FALSE} else _read_value(content, at, kind)
        found.fields.append([number, kind, value])
    return found, at + 1


def _read_value(content: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in INTEGERS:
        return _zigzag(content, at)
    if kind in {TRUE, FALSE, BYTE}:
        return content[at], at + 1
    if kind == DOUBLE:
        return content[at : at + 8], at + 8
    if kind == BINARY:
        size, at = _varint(content, at)
        return content[at : at + size], at + size
    if kind in {LIST, SET}:
        return _read_list(content, at)
    assert kind == STRUCT, kind
    return read_struct(content, at)


def _read_list(content: bytes, at: int) -> tuple[List, int]:
    size, kind = content[at] >> 4, content[at] & 15
    at += 1
    if size == 15:
        size, at = _varint(content, at)
    found = List(kind, [])
    for _ in range(size):
        value, at = _read_value(content, at, kind)
        found.values.append(value)
    return found, at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (content[at] & 127) << shift
        shift += 7
        at += 1
        if content[at - 1] < 128:
            return value, at


def _zigzag(content: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(content, at)
    return (value >> 1) ^ -(value & 1), at


def write(value: Any, kind: int = STRUCT) -> bytes:
    """The bytes of `value`."""
    if kind in INTEGERS:
        return _write_varint((value << 1) ^ (value >> 63))
    if kind in {TRUE, FALSE, BYTE}:
        return bytes([int(value) & 255])
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return _write_varint(len(value)) + value
    if kind in {LIST, SET}:
        size = len(value.values)
        head = bytes([size << 4 | value.type]) if size < 15 else bytes([0xF0 | value.type]) + _write_varint(size)
        return head + b"".join(write(each, value.type) for each in value.values)
    return _write_struct(value)


def _write_struct(struct: Struct) -> bytes:
    parts, last = [], 0
    for number, kind, value in struct.fields:
        written = (TRUE if value else FALSE) if kind in {TRUE, FALSE} else kind
        delta = number - last
        head = bytes([delta << 4 | written]) if 0 < delta < 16 else bytes([written]) + write(number, INTEGERS[0])
        parts.append(head + (b"" if kind in {TRUE, FALSE} else write(value, kind)))
        last = number
    return b"".join(parts) + b"\0"


def _write_varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
