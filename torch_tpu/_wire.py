"""Reads the wire format of protobuf, in which XLA gives its modules. A protobuf library in a
process with torch crashes it, so there is none."""

from __future__ import annotations

from collections.abc import Iterator

Fields = dict[int, list[int | bytes]]


def fields_of(data: bytes) -> Fields:
    """The fields of a message by number. Sub-messages and packed numbers stay bytes."""
    out: Fields = {}
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        value: int | bytes
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            size, at = _varint(data, at)
            value = data[at : at + size]
            if len(value) != size:
                raise ValueError("a serialized module that is cut short")
            at += size
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            value = int.from_bytes(data[at : at + width], "little")
            at += width
        else:
            raise ValueError(f"no protobuf message: wire type {kind}")
        out.setdefault(number, []).append(value)
    return out


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def ints_of(fields: Fields, number: int) -> list[int]:
    """A repeated int64, packed or not."""
    out: list[int] = []
    for value in fields.get(number, ()):
        if isinstance(value, int):
            out.append(_signed(value))
        else:
            at = 0
            while at < len(value):
                item, at = _varint(value, at)
                out.append(_signed(item))
    return out


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def int_of(fields: Fields, number: int, default: int = 0) -> int:
    """A number; the default where there is none."""
    values = ints_of(fields, number)
    return values[-1] if values else default


def text_of(fields: Fields, number: int) -> str:
    """A string; empty where there is none."""
    value = fields.get(number, [b""])[-1]
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def messages_of(fields: Fields, number: int) -> Iterator[Fields]:
    """The sub-messages of that number."""
    for value in fields.get(number, ()):
        if isinstance(value, bytes):
            yield fields_of(value)


def message_of(fields: Fields, number: int) -> Fields:
    """A sub-message; empty where there is none."""
    value = fields.get(number, [b""])[-1]
    return fields_of(value) if isinstance(value, bytes) else {}
