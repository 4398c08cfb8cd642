"""The two ways to define a kernel."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from torch_tpu.pallas import _trees
from torch_tpu.pallas._op import Backward, Definition, JaxOp, Run, make_function
from torch_tpu.pallas._signature import Parameter, mark_written, parameters_of

Function = Callable[..., Any]


def _outputs_of(function: Function, outputs: Any) -> Any:
    """A tree with a leaf per array. Where nothing is said: by the annotation, else one array."""
    if outputs is None:
        annotation = inspect.signature(function).return_annotation
        text = annotation if isinstance(annotation, str) else str(annotation)
        match = re.fullmatch(r"(?:typing\.)?[tT]uple\[(.*)\]", text)
        inner = match[1] if match else ""
        if inner and "[" not in inner and "..." not in inner:
            return tuple(range(inner.count(",") + 1))
        return 0
    if isinstance(outputs, int) and not isinstance(outputs, bool):
        if outputs < 1:
            raise ValueError(f"outputs must be at least 1, got {outputs}")
        return 0 if outputs == 1 else tuple(range(outputs))
    if not _trees.flatten(outputs):
        raise ValueError(f"outputs must hold a leaf per array, got {outputs!r}")
    return outputs


def _places_of(
    donated: Sequence[str] | Mapping[str, int], num_outputs: int, name: str
) -> dict[str, int]:
    given = donated if isinstance(donated, Mapping) else {n: i for i, n in enumerate(donated)}
    for argument, place in given.items():
        if not 0 <= place < num_outputs:
            raise ValueError(
                f"[{name}] '{argument}' is donated to output {place}, but there are {num_outputs}."
            )
    if len(set(given.values())) != len(given):
        raise ValueError(f"[{name}] two arguments are donated to one output: {dict(given)}")
    return dict(given)


def _flat_run(
    function: Function, name: str, parameters: Sequence[Parameter], outputs: Any, order: list[int]
) -> Run:
    positional = [p.name for p in parameters if not p.keyword_only]
    by_keyword = [p.name for p in parameters if p.keyword_only]
    expected = _trees.shape_of(outputs)

    @functools.wraps(function)
    def run(args: dict[str, Any]) -> Sequence[Any]:
        result = function(*[args[n] for n in positional], **{n: args[n] for n in by_keyword})
        got = _trees.shape_of(result)
        if got != expected:
            count = len(_trees.flatten(result))
            raise TypeError(
                f"the kernel returned {got} where {expected} is declared (* is an array); say so "
                f"with outputs={count if got.startswith('(') and '{' not in got else '<a tree>'}"
            )
        leaves = _trees.flatten(result)
        return [leaves[i] for i in order]

    return run


def _backward_run(backward: Function, parameters: Sequence[Parameter], outputs: Any) -> Backward:
    def run(args: dict[str, Any], outs: Sequence[Any], gradients: Sequence[Any]) -> Sequence[Any]:
        inputs: list[Any] = []
        statics: dict[str, Any] = {}
        for parameter in parameters:
            if parameter.is_tensor or parameter.is_tensor_list:
                inputs.append(args[parameter.name])
            else:
                statics[parameter.name] = args[parameter.name]
        given = _trees.unflatten(outputs, list(outs))
        grads = _trees.unflatten(outputs, list(gradients))
        found = backward(tuple(inputs), given, grads, **statics)
        out: list[Any] = []
        for value, grad in zip(inputs, found, strict=True):
            if isinstance(value, list):
                out.extend(g for v, g in zip(value, grad, strict=True) if v is not None)
            elif value is not None:
                out.append(grad)
        return out

    return run


def _check_mesh(name: str, mesh: Any) -> None:
    if mesh is not None and mesh.size != 1:
        raise NotImplementedError(
            f"[{name}] it is defined over a mesh of {mesh.size} devices, and a kernel runs on one. "
            f"Call torch.distributed's collectives around it, or run it on all devices of a "
            f"process with torch_tpu.spmd.per_device."
        )


def _donated(
    name: str, parameters: Sequence[Parameter], numbers: int | Sequence[int]
) -> tuple[int, ...]:
    given = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    for number in given:
        if not -len(parameters) <= number < len(parameters) or not parameters[number].is_tensor:
            tensors = [str(i) for i, p in enumerate(parameters) if p.is_tensor]
            raise TypeError(
                f"[{name}] argument {number} cannot be donated; its tensors are number "
                f"{', '.join(tensors)}."
            )
    return tuple(number % len(parameters) for number in given)


def jax_op(
    name: str,
    function: Function,
    *,
    outputs: Any = None,
    static_argnames: Sequence[str] = (),
    traced_argnames: Sequence[str] = (),
    donate_argnames: Sequence[str] | Mapping[str, int] = (),
    backward: Function | None = None,
    differentiable: bool = True,
    platforms: Mapping[str, Function] | None = None,
    x64: bool = False,
    donate_argnums: int | Sequence[int] = (),
    mesh: Any = None,
    input_partition_specs: Any = None,
) -> JaxOp:
    """Makes a function of JAX arrays the op `torch.ops.ns.name`, for tensors on this device.

    Arguments of the function that are annotated (or have defaults) as int, float, bool, str or
    lists of those are static: each value gets a program of its own. All others are arrays.

    Args:
        name: "ns::name".
        function: takes and gives JAX arrays; may call `pallas_call`. Traced once per shapes, dtypes
            and static arguments.
        outputs: how many arrays it returns, or a tree (tuples, lists, dicts) with a leaf for each.
            By default what the return annotation says, else one.
        static_argnames: for the reader; a check that these are known to be static.
        traced_argnames: floats that change from call to call: values of the program, not part of
            what it is compiled for.
        donate_argnames: tensors that are overwritten with the first outputs, in their memory where
            nobody else holds it; or which output each gets. Such an op has no gradient.
        backward: `backward(inputs, outputs, grads, **static)` gives a gradient (or None) for each
            tensor among the inputs. By default jax.vjp, which computes the function again.
        differentiable: False for an op without gradient.
        platforms: other functions in place of this one for "cpu", "cuda" or "tpu".
        x64: trace with JAX's 64-bit types.
        donate_argnums: as jax.jit's: each of these arguments takes the first output of its sizes
            and dtype that no other one has taken. The op itself returns all outputs, and has a
            gradient; only calls of the function that is returned overwrite the arguments.
        mesh, input_partition_specs: a mesh of one device, over which every argument is whole. Over
            several devices use `torch_tpu.spmd.per_device`.

    What a functools.partial has bound is no argument of the op. The function that is returned has
    `register_fake` and `register_autograd`, as those of torch.library.custom_op.

        >>> import torch
        >>> from torch_tpu.pallas import jax_op
        >>> scale = jax_op("docs::scale", lambda x, factor=2.0: x * factor)
        >>> scale(torch.ones(2, device="tpu"), 3.0)
        tensor([3., 3.], device='tpu:0')
        >>> torch.ops.docs.scale(torch.ones(2, device="tpu"))
        tensor([2., 2.], device='tpu:0')
    """
    if not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", name):
        raise ValueError(f"an op's name is of the form 'ns::name', got {name!r}")
    if not callable(function):
        raise TypeError(f"[{name}] expected a function of JAX arrays, got {function!r}")
    for platform in platforms or ():
        if platform not in ("cpu", "cuda", "tpu"):
            raise ValueError(f"[{name}] platforms are 'cpu', 'cuda' and 'tpu', got {platform!r}")
    _check_mesh(name, mesh)
    tree = _outputs_of(function, outputs)
    num_outputs = len(_trees.flatten(tree))
    places = _places_of(donate_argnames, num_outputs, name)
    parameters = parameters_of(function, name, traced_argnames, static_argnames)
    parameters = mark_written(parameters, places, name)
    donated = _donated(name, parameters, donate_argnums)
    if not any(p.is_tensor or p.is_tensor_list for p in parameters):
        raise TypeError(f"[{name}] a kernel needs an argument that is an array.")
    written = [places[p.name] for p in parameters if p.written]
    order = [i for i in range(num_outputs) if i not in written] + written

    def flat(function: Function) -> Run:
        return _flat_run(function, name, parameters, tree, order)

    definition = Definition(
        name,
        parameters,
        flat(function),
        num_outputs - len(written),
        runs={platform: flat(other) for platform, other in (platforms or {}).items()},
        backward=None if backward is None else _backward_run(backward, parameters, tree),
        differentiable=differentiable,
        x64=x64,
    )
    if definition.differentiable:
        definition.gradient()  # now: a graph that was saved may name it
    return make_function(definition, tree, written, function, donated)


def helion_op(name: str, kernel: Any, **options: Any) -> JaxOp:
    """Makes a Helion kernel the op `torch.ops.ns.name`, by way of the Pallas code it generates.

    The kernel must have a configuration (`helion.kernel(backend="pallas", config=...)`): there is
    no device to tune it on. Options are those of `jax_op`; a gradient needs a `backward`.
    """
    source = getattr(kernel, "fn", None)
    if source is None or not hasattr(type(kernel), "jax_fn"):
        raise TypeError(
            f"[{name}] expected a kernel made by helion.kernel (of Helion 1.5 or later, which has "
            f"Kernel.jax_fn), got {kernel!r}"
        )

    @functools.wraps(source)
    def function(*args: Any) -> Any:
        return kernel.jax_fn(*args)

    options.setdefault("differentiable", "backward" in options)
    return jax_op(name, function, **options)


@overload
def custom_jax_kernel(function: Function, /) -> JaxOp: ...
@overload
def custom_jax_kernel(
    function: None = None, /, *, name: str | None = None, **options: Any
) -> Callable[[Function], JaxOp]: ...


def custom_jax_kernel(
    function: Function | None = None, /, *, name: str | None = None, **options: Any
) -> JaxOp | Callable[[Function], JaxOp]:
    """`jax_op` as a decorator; the op's name is "jax::" and the function's unless given.

    >>> import torch
    >>> from torch_tpu.pallas import custom_jax_kernel
    >>> @custom_jax_kernel(outputs=2)
    ... def both(x, y):
    ...     return x + y, x - y
    >>> both(torch.ones(1, device="tpu"), torch.ones(1, device="tpu"))
    (tensor([2.], device='tpu:0'), tensor([0.], device='tpu:0'))
    """
    if function is None:
        return lambda given: jax_op(name or f"jax::{given.__name__}", given, **options)
    return jax_op(name or f"jax::{function.__name__}", function, **options)
