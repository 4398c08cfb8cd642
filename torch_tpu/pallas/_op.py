"""A JAX function as an operator: its schema, its fake rule, gradient and vmap, and its kernel."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torch_tpu import _C
from torch_tpu.pallas import _jax, _trees
from torch_tpu.pallas._signature import Parameter, schema_text

# Takes the arguments by name, arrays in place of tensors, and gives the arrays it returns.
Run = Callable[[dict[str, Any]], Sequence[Any]]
# The same, then the outputs and their gradients: gives a gradient (or None) per tensor.
Backward = Callable[[dict[str, Any], Sequence[Any], Sequence[Any]], Sequence[Any]]
# An argument of a call: a tensor's type, a list of those, or ("static", a Python value).
Described = tuple[str, Any]

_TORCH_DTYPES = {
    name: getattr(torch, name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32", "float64"),
        *("complex64", "complex128"),
    )
}
_HLO_OF_TORCH = {dtype: _jax._HLO_NAMES[name] for name, dtype in _TORCH_DTYPES.items()}
_TORCH_OF_HLO = {text: dtype for dtype, text in _HLO_OF_TORCH.items()}

# Definitions of schemas, which live as long as the libraries do.
_libraries: dict[str, torch.library.Library] = {}
_lock = threading.RLock()


def tensors_of(values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among the arguments, those in lists included."""
    out: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            out.append(value)
        elif isinstance(value, (list, tuple)):
            out.extend(v for v in value if isinstance(v, torch.Tensor))
    return out


class Definition:
    """One operator. Those derived from it (its gradient, its vmap) are of this class, too."""

    def __init__(
        self,
        name: str,
        parameters: Sequence[Parameter],
        run: Run,
        num_results: int | None,
        *,
        runs: dict[str, Run] | None = None,
        backward: Backward | None = None,
        differentiable: bool = True,
        x64: bool = False,
    ) -> None:
        self.name = name
        self.parameters = list(parameters)
        self.run = run
        self.runs = runs or {}
        self.num_results = num_results  # None: a list
        self.backward = backward
        self.x64 = x64
        self.written = [p.name for p in self.parameters if p.written]
        self.differentiable = differentiable and not self.written
        self._types: dict[Any, list[_jax.TypeText]] = {}
        self._derived: dict[str, Definition] = {}
        self.overload = self._register()

    # --- registration ---

    def _register(self) -> Any:
        namespace, short = self.name.split("::")
        schema = schema_text(short, self.parameters, self.num_results)
        with _lock:
            if self.name in _libraries:
                _C._forget_foreign(self.name)
                _libraries.pop(self.name)._destroy()
            library = torch.library.Library(namespace, "FRAGMENT")
            library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
            _libraries[self.name] = library
        overload = getattr(getattr(torch.ops, namespace), short).default
        torch.library.register_fake(self.name, self._fake, lib=library, allow_override=True)
        if not self.written:
            torch.library.register_vmap(self.name, self._vmap, lib=library)
        traced = [p.name for p in self.parameters if p.traced]
        gradient = (lambda: self.gradient().name) if self.differentiable else None
        keeps_outputs = self.backward is not None
        _C._register_foreign(self.name, traced, self._lower, gradient, keeps_outputs)
        return overload

    def derived(self, kind: str, make: Callable[[str], Definition]) -> Definition:
        """`ns::name_kind`, made when it is first needed."""
        with _lock:
            if kind not in self._derived:
                self._derived[kind] = make(f"{self.name}_{kind}")
            return self._derived[kind]

    # --- tracing ---

    def _readable(self, described: Sequence[Described]) -> str:
        def one(parameter: Parameter, item: Described) -> str:
            kind, value = item
            if kind == "tensor" and value is not None:
                return f"{parameter.name}: {_jax.readable(value)}"
            if kind == "tensors":
                inner = ", ".join("None" if v is None else _jax.readable(v) for v in value)
                return f"{parameter.name}: [{inner}]"
            return f"{parameter.name}={'a float' if kind == 'traced' else repr(value)}"

        pairs = zip(self.parameters, described, strict=True)
        return "(" + ", ".join(one(*pair) for pair in pairs) + ")"

    def _flat(self, described: Sequence[Described], run: Run) -> tuple[_jax.Run, list[Any]]:
        """`run` over the arrays of the call in order, and what stands for each."""
        types: list[tuple[_jax.TypeText, bool]] = []
        plan: list[tuple[str, Any]] = []
        for kind, value in described:
            if kind == "traced":
                types.append((("f32", ()), True))
                plan.append(("one", None))
            elif kind == "tensors":
                plan.append(("many", [v is not None for v in value]))
                types.extend((v, False) for v in value if v is not None)
            elif kind == "tensor" and value is not None:
                types.append((value, False))
                plan.append(("one", None))
            else:
                plan.append(("value", None if kind == "tensor" else value))
        names = [p.name for p in self.parameters]

        def flat(*arrays: Any) -> Sequence[Any]:
            left = iter(arrays)
            args: dict[str, Any] = {}
            for name, (kind, value) in zip(names, plan, strict=True):
                if kind == "one":
                    args[name] = next(left)
                elif kind == "many":
                    args[name] = [next(left) if there else None for there in value]
                else:
                    args[name] = value
            return run(args)

        return flat, [_jax.struct(kind, weak) for kind, weak in types]

    def _check_width(self, described: Sequence[Described]) -> None:
        if self.x64:
            return
        for parameter, (kind, value) in zip(self.parameters, described, strict=True):
            for given in value if kind == "tensors" else [value] if kind == "tensor" else []:
                if given is not None and _jax.is_wide(given):
                    raise TypeError(
                        f"[{self.name}] '{parameter.name}' is {_jax.readable(given)}, and JAX has "
                        f"no 64-bit types by default. Convert it (.int(), .float()), or define the "
                        f"kernel with x64=True."
                    )

    def _check_results(
        self, described: Sequence[Described], results: Sequence[_jax.TypeText]
    ) -> None:
        expected = None if self.num_results is None else self.num_results + len(self.written)
        if expected is not None and len(results) != expected:
            raise RuntimeError(
                f"[{self.name}] the kernel returned {len(results)} arrays where {expected} are "
                f"declared. Define it with outputs={len(results)}."
            )
        by_name = {p.name: d for p, d in zip(self.parameters, described, strict=True)}
        for name, result in zip(self.written, results[self.num_results :], strict=False):
            _, given = by_name[name]
            if (given[0], tuple(given[1])) != (result[0], tuple(result[1])):
                raise RuntimeError(
                    f"[{self.name}] the donated argument '{name}' is {_jax.readable(given)}, but "
                    f"the result that takes its memory is {_jax.readable(result)}."
                )

    def _failure(self, described: Sequence[Described], error: Exception) -> Exception:
        if isinstance(error, (_jax.MissingJaxError, KeyboardInterrupt)):
            return error
        return RuntimeError(
            f"[{self.name}] JAX cannot trace the kernel for {self._readable(described)}. "
            f"{_jax.what_jax_said(error)}. Check the shapes and dtypes given, or try the function "
            f"by itself: jax.eval_shape(fn, ...)."
        )

    def _lower(self, described: list[Described], platform: str, precision: str) -> Any:
        """Called by csrc/bindings/foreign.cpp for a call that has no program yet."""
        self._check_width(described)
        try:
            flat, structs = self._flat(described, self.runs.get(platform, self.run))
            out = _jax.lower(
                flat,
                structs,
                name=self.name.replace("::", "_"),
                platform=platform,
                precision=precision,
                x64=self.x64,
            )
        except Exception as error:
            raise self._failure(described, error) from error
        self._check_results(described, out.results)
        return out.symbol, out.text, out.operands, out.results

    def result_types(self, described: Sequence[Described]) -> list[_jax.TypeText]:
        key = repr(described)
        if key not in self._types:
            self._check_width(described)
            try:
                flat, structs = self._flat(described, self.run)
                with unset_fake_temporarily():  # Helion's kernels use torch while they are traced
                    results = _jax.result_types(flat, structs, self.x64)
            except Exception as error:
                raise self._failure(described, error) from error
            self._check_results(described, results)
            self._types[key] = results
        return self._types[key]

    # --- what PyTorch asks for ---

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The arguments in order, defaults filled in."""
        out = list(args)
        for parameter in self.parameters[len(args) :]:
            out.append(kwargs.get(parameter.name, parameter.default))
        return out

    def _describe(self, args: Sequence[Any]) -> list[Described]:
        def one(tensor: torch.Tensor | None) -> _jax.TypeText | None:
            # A size that varies is taken for what it is now: a kernel is traced per shape.
            if tensor is None:
                return None
            return _HLO_OF_TORCH[tensor.dtype], tuple(int(d) for d in tensor.shape)

        out: list[Described] = []
        for parameter, value in zip(self.parameters, args, strict=True):
            if parameter.is_tensor:
                out.append(("tensor", one(value)))
            elif parameter.is_tensor_list:
                out.append(("tensors", [one(v) for v in value]))
            elif parameter.traced and value is not None:
                out.append(("traced", None))
            else:
                out.append(("static", value))
        return out

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        values = self.bind(args, kwargs)
        results = self.result_types(self._describe(values))[: self.num_results]
        where = next(t.device for t in tensors_of(values))
        made = [torch.empty(d, dtype=_TORCH_OF_HLO[t], device=where) for t, d in results]
        return self._given(made)

    def _given(self, results: list[torch.Tensor]) -> Any:
        if self.num_results is None:
            return results
        return results[0] if self.num_results == 1 else tuple(results) if results else None

    def register_fake(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """See JaxOp."""
        library = _libraries[self.name]
        torch.library.register_fake(self.name, function, lib=library, allow_override=True)
        return function

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """See JaxOp. In the place of our own kernel for the device, which asks JAX."""
        from torch._library import autograd

        if self.written:
            raise TypeError(
                f"[{self.name}] it writes {', '.join(self.written)}, and such an op has no "
                f"gradient."
            )
        info = autograd.Info(backward, setup_context)
        kernel = autograd.make_autograd_impl(self.overload, info)
        short = self.name.split("::")[1]
        with warnings.catch_warnings():  # of a kernel that is replaced
            warnings.simplefilter("ignore")
            _libraries[self.name].impl(
                short, kernel, "AutogradPrivateUse1", with_keyset=True, allow_override=True
            )

    def gradient(self) -> Definition:
        """The op of its gradient: arguments, outputs (for a backward that was given), gradients
        of the outputs or None, and which of the tensors want one."""
        from torch_tpu.pallas._derive import gradient_of

        return self.derived("backward", lambda name: gradient_of(self, name))

    def _vmap(self, info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        from torch_tpu.pallas._derive import batched_of

        values = self.bind(args, kwargs)
        dims = [*in_dims, *[None] * (len(values) - len(in_dims))]
        flags: list[int] = []

        def front(tensor: Any, dim: Any) -> Any:
            if not isinstance(tensor, torch.Tensor):
                return tensor
            flags.append(int(dim is not None))
            return tensor if dim is None else tensor.movedim(dim, 0)

        moved: list[Any] = []
        for parameter, value, dim in zip(self.parameters, values, dims, strict=True):
            if parameter.is_tensor_list:
                each = dim if isinstance(dim, (list, tuple)) else [dim] * len(value)
                moved.append([front(v, d) for v, d in zip(value, each, strict=True)])
            else:
                moved.append(front(value, dim))
        op = self.derived("vmap", lambda name: batched_of(self, name))
        out = op.overload(*moved, flags)
        if isinstance(out, (tuple, list)):
            return out, type(out)([0] * len(out))
        return out, 0


class JaxOp(Protocol):
    """What `jax_op` and `custom_jax_kernel` return: a function of tensors on the device."""

    name: str  # "ns::name"
    op: Any  # torch.ops.ns.name.default

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def register_fake(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """What the results look like, instead of asking JAX; as torch.library.register_fake."""
        ...

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """A gradient in PyTorch's ops instead of JAX's; as torch.library.register_autograd."""
        ...


def make_function(
    definition: Definition,
    outputs: Any,
    places: Sequence[int],
    like: Callable[..., Any],
    donated: Sequence[int] = (),
) -> JaxOp:
    """The function of an op. `places`: per argument that the op writes the output that it takes;
    `donated`: arguments that take one by their sizes."""
    named = _short_function(definition)
    if places or isinstance(outputs, (list, dict)) or _trees.shape_of(outputs).count("(") > 1:
        named = _with_tree(definition, named, outputs, places)
    if donated:
        named = _with_donation(definition, named, donated)
    named.__doc__ = like.__doc__
    named.name = definition.name
    named.op = definition.overload
    named.register_fake = definition.register_fake
    named.register_autograd = definition.register_autograd
    return cast(JaxOp, named)


def _short_function(definition: Definition) -> Any:
    """A Python function with the kernel's own parameters. It costs a tenth of a microsecond;
    (*args, **kwargs) would cost twice that, and Dynamo could not look into a C function."""
    short = definition.name.split("::")[1]
    params, defaults = [], {}
    starred = False
    for i, parameter in enumerate(definition.parameters):
        if parameter.keyword_only and not starred:
            params.append("*")
            starred = True
        text = parameter.name
        if parameter.has_default:
            defaults[f"_default{i}"] = parameter.default
            text += f"=_default{i}"
        params.append(text)
    given = [f"{p.name}={p.name}" if p.keyword_only else p.name for p in definition.parameters]
    scope: dict[str, Any] = {
        **defaults,
        "_compiling": torch.compiler.is_dynamo_compiling,  # other tracers give no plain tensors
        "_op": definition.overload,
        "_fast": _C._foreign_call(definition.name, definition.overload),
    }
    code = (
        f"def {short}({', '.join(params)}):\n"
        f"    if _compiling():\n"
        f"        return _op({', '.join(given)})\n"
        f"    return _fast({', '.join(given)})\n"
    )
    exec(compile(code, __file__, "exec"), scope)  # a frame of ours: the user's line is its caller's
    return scope[short]


def _with_tree(definition: Definition, function: Any, outputs: Any, places: Sequence[int]) -> Any:
    names = [p.name for p in definition.parameters]
    written = [names.index(name) for name in definition.written]
    order = sorted(zip(places, written, strict=True))

    def call(*args: Any, **kwargs: Any) -> Any:
        results = function(*args, **kwargs)
        leaves = list(results) if isinstance(results, (tuple, list)) else [results]
        if results is None:
            leaves = []
        if order:
            values = definition.bind(args, kwargs)
            for place, at in order:
                leaves.insert(place, values[at])
        return _trees.unflatten(outputs, leaves)

    call.__name__ = function.__name__
    return call


def _with_donation(definition: Definition, function: Any, donated: Sequence[int]) -> Any:
    """Gives what an argument held to the first result of its kind: a copy that moves nothing."""

    def call(*args: Any, **kwargs: Any) -> Any:
        results = function(*args, **kwargs)
        free = _trees.flatten(results)
        values = definition.bind(args, kwargs)
        with torch.no_grad():
            for at in donated:
                given = values[at]
                if given is None or given.requires_grad:
                    continue
                for i, result in enumerate(free):
                    if result.shape == given.shape and result.dtype == given.dtype:
                        given.copy_(free.pop(i).detach())
                        break
        return results

    call.__name__ = function.__name__
    return call
