"""The only place that imports JAX: traces a function of arrays and gives its StableHLO.

JAX asks for a device when it lowers, and would start every client it finds for that, a GPU's
included. It gets a small CPU client of ours instead, which it does not keep: the user's own JAX
starts later as if nothing had been.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch_tpu import _C, _replace

# (element type as in StableHLO, dims): how csrc/bindings/foreign.cpp describes a tensor.
TypeText = tuple[str, Sequence[int]]

_JAX_NAMES = {
    "i1": "bool",
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"ui{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}
_HLO_NAMES = {name: text for text, name in _JAX_NAMES.items()}
_WIDE = ("int64", "uint64", "float64", "complex128")


class MissingJaxError(ImportError):
    """JAX is not installed."""


@dataclass(frozen=True)
class Lowered:
    """One function as text, to be put into a module."""

    symbol: str
    text: str
    operands: list[TypeText]
    results: list[TypeText]


@functools.cache
def jax_module() -> Any:
    """JAX, imported now."""
    try:
        import jax
    except ImportError as error:
        raise MissingJaxError(
            "kernels in JAX and Pallas need JAX, which is not installed. "
            "Install it: pip install torchtpu[jax]"
        ) from error
    return jax


_client_lock = threading.Lock()
_client: Any = None


def _lowering_device() -> Any:
    """A CPU device that JAX's own list of clients does not have; None where this JAX has no way."""
    global _client
    with _client_lock:
        if _client is None:
            try:
                from jax._src.lib import xla_client

                _client = xla_client.make_cpu_client()
            except Exception:  # another version's layout: JAX then starts its own clients
                return None
        return _client.local_devices()[0]


def _x64(on: bool) -> Any:
    jax = jax_module()
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(on)
    from jax.experimental import enable_x64

    return enable_x64(on)


_interpreting = threading.local()


@functools.cache
def _interpret_calls_made_before() -> None:
    """JAX's setting is looked at when a `pallas_call` is made. Helion makes them outside of our
    settings: these are interpreted when they are lowered."""
    try:
        from jax._src.pallas import pallas_call
        from jax.interpreters import mlir

        primitive, _ = pallas_call.pallas_call_p, pallas_call._pallas_call_lowering
    except (ImportError, AttributeError):  # another version's layout
        return

    def make(original: Any) -> Any:
        def lowering(*args: Any, **params: Any) -> Any:
            if getattr(_interpreting, "on", False):
                params["interpret"] = params.get("interpret") or True
            return original(*args, **params)

        return lowering

    _replace.replace(pallas_call, "_pallas_call_lowering", make)
    mlir.register_lowering(primitive, pallas_call._pallas_call_lowering)


@contextlib.contextmanager
def _interpreted() -> Iterator[None]:
    """Pallas kernels become plain loops over their grids, whatever `interpret` they ask for."""
    from jax._src import config

    _interpret_calls_made_before()
    setting = config.pallas_tpu_interpret_mode_context_manager
    previous = setting.swap_local(True)
    _interpreting.on = True
    try:
        yield
    finally:
        _interpreting.on = False
        setting.set_local(previous)


# Mosaic's code differs by generation.
_chip: str | None = None
_DEFAULT_CHIP = "TPU v5 lite"
_TWO_CORES = ("TPU v4", "TPU v5", "TPU v5p")


@contextlib.contextmanager
def chip(kind: str) -> Iterator[None]:
    """Kernels for TPUs are made for this kind of chip ("TPU v5 lite", "TPU v6 lite", "TPU7x").
    By default the one that is there, or a v5e."""
    global _chip
    previous, _chip = _chip, kind
    _C._set_foreign_variant(kind)
    try:
        yield
    finally:
        _chip = previous
        _C._set_foreign_variant(previous or "")


def _chip_kind() -> str:
    if _chip is not None:
        return _chip
    found = _C._device_properties(0)
    return found["kind"] if found["platform_kind"] == "tpu" else _DEFAULT_CHIP


def _for_chip(kind: str) -> Any:
    """Makes JAX believe in such a device while it lowers."""
    jax = jax_module()
    from jax._src import mesh

    known = {"device_kind": kind, "num_cores": 2 if kind in _TWO_CORES else 1, "platform": "tpu"}
    names = inspect.signature(mesh.AbstractDevice).parameters
    device = mesh.AbstractDevice(**{name: known[name] for name in names})
    return jax.sharding.use_abstract_mesh(mesh.AbstractMesh((), (), abstract_device=device))


@contextlib.contextmanager
def _settings(x64: bool, precision: str, interpret: bool, platform: str = "cpu") -> Iterator[None]:
    jax = jax_module()
    with contextlib.ExitStack() as stack:
        device = _lowering_device()
        if device is not None:
            stack.enter_context(jax.default_device(device))
        if platform != "cuda":  # a kernel may ask for the chip also where it is interpreted
            stack.enter_context(_for_chip(_chip_kind()))
        stack.enter_context(_x64(x64))
        stack.enter_context(jax.default_matmul_precision(precision))
        if interpret:
            stack.enter_context(_interpreted())
        yield


def readable(kind: TypeText) -> str:
    """float32[8, 16]"""
    return f"{_JAX_NAMES[kind[0]]}[{', '.join(map(str, kind[1]))}]"


def is_wide(kind: TypeText) -> bool:
    """Whether JAX, as it is by default, has no such type."""
    return _JAX_NAMES[kind[0]] in _WIDE


def struct(kind: TypeText, weak: bool = False) -> Any:
    """What stands for an array while a function is traced."""
    jax = jax_module()
    dtype = getattr(jax.numpy, "bool_" if kind[0] == "i1" else _JAX_NAMES[kind[0]])
    return jax.ShapeDtypeStruct(tuple(kind[1]), dtype, weak_type=weak)


def _type_text(aval: Any) -> TypeText:
    return _HLO_NAMES[str(aval.dtype)], tuple(int(d) for d in aval.shape)


Run = Callable[..., Sequence[Any]]  # of arrays, flat


def result_types(run: Run, structs: Sequence[Any], x64: bool) -> list[TypeText]:
    """What the function gives for such arrays."""
    with _settings(x64, "highest", interpret=True):
        return [_type_text(aval) for aval in jax_module().eval_shape(run, *structs)]


def lower(
    run: Run, structs: Sequence[Any], *, name: str, platform: str, precision: str, x64: bool
) -> Lowered:
    """The function for one compiler: "cpu", "cuda" or "tpu"."""
    if platform == "cpu":
        return _lower(run, structs, name, platform, precision, x64, interpret=True)
    try:
        return _lower(run, structs, name, platform, precision, x64, interpret=False)
    except Exception:
        if platform != "cuda":
            raise
        # A kernel for the TPU's memories: correct, if slow, as plain loops.
        try:
            return _lower(run, structs, name, platform, precision, x64, interpret=True)
        except Exception:
            pass
        raise


def _lower(
    run: Run,
    structs: Sequence[Any],
    name: str,
    platform: str,
    precision: str,
    x64: bool,
    interpret: bool,
) -> Lowered:
    jax = jax_module()
    with _settings(x64, precision, interpret, platform):
        # A new function each time: JAX would find the trace it made for another platform.
        traced = jax.jit(lambda *args: tuple(run(*args)), keep_unused=True).trace(*structs)
        results = [_type_text(aval) for aval in traced.out_info]
        text = traced.lower(lowering_platforms=(platform,)).as_text()
    symbol, functions = extract_functions(text, name)
    return Lowered(symbol, functions, [_type_text(s) for s in structs], results)


_FUNCTION = re.compile(r"func\.func\s+(?:public\s+|private\s+)?@([A-Za-z_][\w$.-]*)")
_SYMBOL = re.compile(r'"(?:[^"\\]|\\.)*"|(custom_call\s+)?@([A-Za-z_][\w$.-]*)')


def extract_functions(module: str, name: str) -> tuple[str, str]:
    """The functions of a module, private and with names of their own, and the name of @main."""
    lines = module.strip().splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("module")), -1)
    extra = [line for line in lines[: max(start, 0)] if not line.startswith("#loc")]
    if start < 0 or extra or lines[-1].strip() != "}":
        raise ValueError(f"a module that begins with {lines[0][:80]!r} cannot be taken apart")
    body = "\n".join(lines[start + 1 : -1])
    if re.search(r"^\s*sdy\.mesh", body, re.M):
        raise ValueError("it is sharded over a mesh; a kernel is for one device")
    body = re.sub(r' \{jax\.result_info = "(?:[^"\\]|\\.)*"\}', "", body)
    body = re.sub(r"func\.func public ", "func.func private ", body)
    known = set(_FUNCTION.findall(body))
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    prefix = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{digest}"

    def renamed(match: re.Match[str]) -> str:
        symbol = match[2]
        if symbol is None or match[1] is not None or symbol not in known:
            return match[0]
        return f"@{prefix}" if symbol == "main" else f"@{prefix}_{symbol}"

    return prefix, _SYMBOL.sub(renamed, body)


def what_jax_said(error: BaseException) -> str:
    """The first lines of its message, in one."""
    text = " ".join(str(error).split("\n\n")[0].split()).rstrip(".")
    if len(text) > 400:
        text = text[:400] + " …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
