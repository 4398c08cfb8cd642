"""Compiled graphs that PyTorch's AOTAutograd cache keeps: a later process finds forward and
backward there and traces neither of them. The cache is PyTorch's, with its switches and its folder
(`torch.compiler.config`, `TORCHINDUCTOR_CACHE_DIR`); XLA's code is in our own."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch import config
from torch._functorch._aot_autograd import autograd_cache
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._inductor.output_code import OutputCode

import torch_tpu
from torch_tpu import _C
from torch_tpu._compile import graph_bytes, key
from torch_tpu._compile.graph import CompiledGraph
from torch_tpu._compile.options import Options
from torch_tpu._dlpack import in_host_memory


class StoredGraph(OutputCode):
    """A CompiledGraph that can be written down. One that was read makes its CompiledGraph when it
    is first called: many backward graphs never are."""

    def __init__(
        self, gm: fx.GraphModule, kind: str, options: Options, visible: int | None
    ) -> None:
        super().__init__()
        self._boxed_call = True  # as AOTAutograd calls it: with a list, which is emptied
        self._how = (kind, options, visible)
        self._version = version()
        self._data = b""
        self._gm: fx.GraphModule | None = gm
        self._run: Callable[[list[Any]], Any] = CompiledGraph(gm, kind, options, visible).function()

    def __call__(self, inputs: Any) -> Any:
        return self._run(inputs)

    def prepare_for_serialization(self) -> None:
        """Of a copy, which is written then."""
        if not self._data:
            assert self._gm is not None
            try:
                self._data = graph_bytes.dumps(self._gm)
            except Exception as error:
                raise BypassAOTAutogradCache(f"a graph that cannot be stored: {error}") from error
        self._gm = None
        del self._run

    def post_compile(
        self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any
    ) -> None:
        """After reading. The key says the same; an entry from elsewhere is not trusted for it."""
        if self._version != version():
            raise RuntimeError("a graph that another version of torch_tpu has stored")
        self._run = self._read_and_run

    def _read_and_run(self, inputs: list[Any]) -> Any:
        kind, options, visible = self._how
        gm = graph_bytes.loads(self._data)
        graph = CompiledGraph(gm, kind, options, visible, prepared=True)
        self._run = graph.function()
        return self._run(inputs)


@functools.cache
def version() -> str:
    """Of all that decides how a graph is traced and split, in this package."""
    hasher = hashlib.sha256()
    fingerprint = _C._fingerprint()
    for field in ("torch_tpu", "torch", "torch_library", "platform"):
        hasher.update(f"{field}={fingerprint[field]};".encode())
    hasher.update(f"{torch_tpu.__version__};{in_host_memory()}".encode())
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        hasher.update(path.name.encode() + path.read_bytes())
    return hasher.hexdigest()


def storable(gm: Any) -> bool:
    """Whether the cache may be asked for this graph of Dynamo's. Its key knows of a constant tensor
    only the sizes; parameters and buffers are arguments."""
    module = getattr(gm, "gm", gm)  # a GmWrapper has it inside
    if not isinstance(module, fx.GraphModule):
        return False
    if not (
        autograd_cache.should_use_local_autograd_cache()
        or autograd_cache.should_use_remote_autograd_cache()
    ):
        return False
    constants = (value for part in module.modules() for value in vars(part).values())
    return not any(isinstance(value, torch.Tensor) for value in constants)


@contextlib.contextmanager
def asking_cache(gm: Any, options: Options) -> Iterator[None]:
    """While AOTAutograd computes the key, looks, and stores what it has made."""
    module = getattr(gm, "gm", gm)
    # What hangs on the module is part of the key.
    module._torch_tpu_key = (version(), options, _autocast())
    try:
        # Forward and backward in one entry, which needs both of them now.
        with (
            key.without_inductor(),
            config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True),
        ):
            yield
    finally:
        del module._torch_tpu_key


def _autocast() -> tuple[tuple[str, bool, torch.dtype], ...]:
    return tuple(
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("tpu", "cpu")
    )
