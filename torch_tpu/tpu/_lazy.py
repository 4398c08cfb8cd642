"""When the client starts: with the first tensor (torch then calls `_lazy_init`), or `init()`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch_tpu import _C

_queued: list[Callable[[], Any]] = []
_lock = threading.RLock()


def init() -> None:
    """Starts the client now instead of with the first tensor.

    Raises RuntimeError with what to do when the plugin is missing or does not start.

    >>> import torch
    >>> torch.tpu.init()
    >>> torch.tpu.is_initialized()
    True
    """
    _lazy_init()


def is_initialized() -> bool:
    """Whether the client is running in this process.

    >>> import torch
    >>> x = torch.ones(2, device="tpu")
    >>> torch.tpu.is_initialized()
    True
    """
    return _C._is_initialized()


def _is_in_bad_fork() -> bool:
    """Whether this process was forked after the client started, and so cannot use the device."""
    return _C._is_in_bad_fork()


def _lazy_init() -> None:
    if not _queued and _C._is_initialized():
        return
    _C._init()  # first: in a forked child it raises, and the lock may be held for ever
    with _lock:
        while _queued:
            _queued.pop(0)()


def _lazy_call(callable: Callable[[], Any], **kwargs: Any) -> Any:
    """Calls it now if the client runs, else when it has started. Keywords are torch.cuda's hints
    about seeds, which need no client here."""
    with _lock:
        if not _C._is_initialized():
            _queued.append(callable)
            return None
    return callable()
