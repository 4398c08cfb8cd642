"""Runs a model once on the device "meta" and notes what is called, from which line."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu._user_line import Line, line_of, user_line
from torch_tpu.aot.topologies import AotError

# Typed as a module, but it is made over when it is imported.
_config: Any = importlib.import_module("torch.fx.experimental._config")

# What each gives on a tensor that has no contents, so that the run can go on.
_READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda t: _number(t),
    "tolist": lambda t: torch.zeros(t.shape, dtype=t.dtype).tolist(),
    "numpy": lambda t: torch.zeros(t.shape, dtype=t.dtype).numpy(),
    "__bool__": lambda t: True,
    "__int__": lambda t: int(_number(t)),
    "__float__": lambda t: float(_number(t)),
    "__index__": lambda t: int(_number(t)),
    "__array__": lambda t: torch.zeros(t.shape, dtype=t.dtype).numpy(),
    "cpu": lambda t: t,
}


def _number(tensor: torch.Tensor) -> Any:
    return torch.ones((), dtype=tensor.dtype).item()


@dataclass
class OpCall:
    """One op: what it was given and gave."""

    name: str  # "aten::mm"
    line: Line
    module: str
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    forward: bool


@dataclass
class Attention:
    line: Line
    module: str
    query: tuple[int, ...]
    key: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class HostRead:
    line: Line
    module: str
    how: str


@dataclass
class Run:
    """All that was seen in one call."""

    ops: list[OpCall] = field(default_factory=list)
    attention: list[Attention] = field(default_factory=list)
    reads: list[HostRead] = field(default_factory=list)
    data_shapes: list[HostRead] = field(default_factory=list)
    error: str = ""  # why it ended early: it needs values
    error_line: Line = field(default_factory=Line)


class ModelError(AotError):
    """The model itself raised `error`."""

    def __init__(self, error: Exception, line: Line) -> None:
        self.error = error
        super().__init__(
            f"the model raised {type(error).__name__}{line.told()}\n  {error}\nIt was called with "
            'the arguments given, on tensors without memory (device "meta"). Call it so on the CPU '
            "until it runs, then ask again."
        )


class _Functions(TorchFunctionMode):
    """Sees calls before they are taken apart, and reads of contents."""

    def __init__(self, run: Run, scope: list[str]) -> None:
        super().__init__()
        self._run = run
        self._scope = scope

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _READS and args and isinstance(args[0], torch.Tensor) and _is_ours(args[0]):
            self._note(f".{name.strip('_')}()" if name != "__bool__" else "a branch on its value")
            return _READS[name](args[0])
        if name == "to" and args and isinstance(args[0], torch.Tensor) and _is_ours(args[0]):
            given = [*args[1:], kwargs.get("device")]
            devices = [v for v in given if isinstance(v, (str, torch.device))]
            if devices and torch.device(devices[0]).type == "cpu":
                self._note('.to("cpu")')
                return args[0]
        if func is torch.nn.functional.scaled_dot_product_attention:
            query, key = args[0], args[1]
            self._run.attention.append(
                Attention(
                    user_line(), self._scope[-1], tuple(query.shape), tuple(key.shape), query.dtype
                )
            )
        return func(*args, **kwargs)

    def _note(self, how: str) -> None:
        self._run.reads.append(HostRead(user_line(), self._scope[-1], how))


def _is_ours(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "meta"


# Ops whose result's size depends on data, and their name for users.
_DATA_SHAPES = {
    **{name: name for name in ("nonzero", "masked_select", "argwhere")},
    **dict.fromkeys(("unique", "_unique2", "unique_dim"), "unique"),
    **dict.fromkeys(("unique_consecutive", "unique_dim_consecutive"), "unique_consecutive"),
}


def _all_different(base: str, tensor: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    """What the ops of `torch.unique` give, which have no kernel without memory: as if no element
    came twice."""
    dim = kwargs.get("dim")
    count = tensor.numel() if dim is None else tensor.shape[dim]

    def numbers(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.long, device=tensor.device)

    values = tensor.flatten() if dim is None else tensor.clone()
    inverse = numbers(*(tensor.shape if dim is None else (count,)))
    if base in ("_unique2", "unique_consecutive") and not kwargs.get("return_inverse"):
        inverse = numbers(0)
    return values, inverse, numbers(count if kwargs.get("return_counts") else 0)


def _by_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [a.name for a in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


class _Ops(TorchDispatchMode):
    """Sees every op."""

    def __init__(self, run: Run, scope: list[str]) -> None:
        super().__init__()
        self._run = run
        self._scope = scope

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        base = func._schema.name.partition("::")[2]
        mask = base == "index" and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if base in _DATA_SHAPES or mask:
            how = "a mask as an index" if mask else f"torch.{_DATA_SHAPES[base]}"
            self._run.data_shapes.append(HostRead(user_line(), self._scope[-1], how))
        if "unique" in base and base in _DATA_SHAPES and args[0].device.type == "meta":
            out = _all_different(base, args[0], _by_name(func, args, kwargs))
        else:
            out = func(*args, **kwargs)
        self._run.ops.append(
            OpCall(
                func._schema.name
                + (f".{func._schema.overload_name}" if func._schema.overload_name else ""),
                user_line(),
                self._scope[-1],
                [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)],
                [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)],
                torch._C._current_autograd_node() is None,
            )
        )
        return out


def collect(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Run, int]:
    """Runs it without memory; also the number of parameters. What it touches is put back. Raises
    ModelError where the model does."""
    from torch_tpu.aot.trace import without_memory

    run = Run()
    with without_memory(function) as modules:
        names = {id(c): n for m in modules for n, c in m.named_modules()}
        parameters = sum(p.numel() for m in modules for p in m.parameters())
        call_args, call_kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: torch.empty_like(t, device="meta"), (args, kwargs)
        )
        with (
            # As if every element was hit: the run goes on.
            _config.patch(meta_nonzero_assume_all_nonzero=True),
            _scopes(names) as scope,
            _Functions(run, scope),
            _Ops(run, scope),
        ):
            try:
                function(*call_args, **call_kwargs)
            except Exception as error:
                if not _needs_values(error, run):
                    raise ModelError(error, line_of(error)) from error
                run.error = f"{type(error).__name__}: {error}"
                run.error_line = line_of(error)
    return run, parameters


def _needs_values(error: Exception, run: Run) -> bool:
    """Whether it may come of tensors that have no contents, and go well on a device: values were
    made up before it, or PyTorch says that it is about the device "meta"."""
    return bool(run.reads or run.data_shapes or re.search(r"\bmeta\b", str(error), re.I))


@contextlib.contextmanager
def _scopes(names: dict[int, str]) -> Iterator[list[str]]:
    stack = [""]
    hooks = nn.modules.module
    before = hooks.register_module_forward_pre_hook(
        lambda module, *_: stack.append(names.get(id(module), stack[-1]))
    )

    def leave(*_: Any) -> None:
        stack.pop()

    after = hooks.register_module_forward_hook(leave, always_call=True)
    try:
        yield stack
    finally:
        before.remove()
        after.remove()
