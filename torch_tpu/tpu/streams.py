"""Streams and events. PJRT orders work by what it reads and writes, so streams change nothing about
order; they exist for programs written for them. Events tell when work is done, and time it."""

from __future__ import annotations

from types import TracebackType

import torch

from torch_tpu import _C
from torch_tpu.tpu._utils import DeviceLike, _get_device_index

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "is_current_stream_capturing",
    "set_stream",
    "stream",
]

Stream = torch.Stream
Event = torch.Event


def _unpack(packed: tuple[int, int, int]) -> torch.Stream:
    stream_id, device_index, device_type = packed
    return torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """The calling thread's stream on a device.

    >>> import torch
    >>> torch.tpu.current_stream() == torch.tpu.default_stream()
    True
    """
    return _unpack(_C._current_stream(_get_device_index(device, optional=True)))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """The stream a device starts with.

    >>> import torch
    >>> torch.tpu.default_stream().stream_id
    0
    """
    return _unpack(_C._default_stream(_get_device_index(device, optional=True)))


def set_stream(stream: torch.Stream | None) -> None:
    """Sets the calling thread's stream, and its device to the stream's; None changes nothing.

    >>> import torch
    >>> torch.tpu.set_stream(torch.tpu.default_stream())
    """
    if stream is not None:
        _C._set_device(stream.device_index)
        _C._set_stream(stream.stream_id, stream.device_index)


class StreamContext:
    """Runs a block on a stream and its device, then goes back to the previous ones.

    >>> import torch
    >>> with torch.tpu.StreamContext(torch.tpu.Stream()):
    ...     x = torch.ones(2, device="tpu")
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[tuple[int, int]] = []

    def __enter__(self) -> None:
        if self.stream is None:
            return
        device = _C._exchange_device(self.stream.device_index)
        previous = _C._set_stream(self.stream.stream_id, self.stream.device_index)
        self._previous.append((device, previous[0]))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.stream is None:
            return
        device, stream_id = self._previous.pop()
        _C._set_stream(stream_id, self.stream.device_index)
        _C._set_device(device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Runs a block on a stream; None changes nothing.

    >>> import torch
    >>> with torch.tpu.stream(torch.tpu.Stream()):
    ...     x = torch.ones(2, device="tpu")
    """
    return StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """Whether a graph is being captured: never, torch.compile is the way to that.

    >>> import torch
    >>> torch.tpu.is_current_stream_capturing()
    False
    """
    return False
