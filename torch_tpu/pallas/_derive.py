"""The gradient and the batched form of a kernel, by jax.vjp and jax.vmap: operators again, so that
both can be differentiated and batched themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_tpu.pallas import _jax
from torch_tpu.pallas._op import Definition, Run
from torch_tpu.pallas._signature import Parameter


def _positional(definition: Definition) -> list[Parameter]:
    """Derived ops take everything by position, and have no defaults."""
    return [Parameter(p.name, p.type, p.optional, traced=p.traced) for p in definition.parameters]


def _arrays(definition: Definition, args: dict[str, Any]) -> list[Any]:
    """The tensors among the arguments, as PyTorch sees them: numbers that are traced are none."""
    out: list[Any] = []
    for parameter in definition.parameters:
        value = args[parameter.name]
        if parameter.is_tensor and value is not None:
            out.append(value)
        elif parameter.is_tensor_list:
            out.extend(v for v in value if v is not None)
    return out


def _with_arrays(
    definition: Definition, args: dict[str, Any], arrays: Sequence[Any]
) -> dict[str, Any]:
    left = iter(arrays)
    out = dict(args)
    for parameter in definition.parameters:
        value = args[parameter.name]
        if parameter.is_tensor and value is not None:
            out[parameter.name] = next(left)
        elif parameter.is_tensor_list:
            out[parameter.name] = [None if v is None else next(left) for v in value]
    return out


def _own(definition: Definition, args: dict[str, Any]) -> dict[str, Any]:
    return {p.name: args[p.name] for p in definition.parameters}


def _added(definition: Definition, *names: str) -> list[str]:
    """Names for further parameters: a gradient's gradient has those of the first already."""
    taken = {p.name for p in definition.parameters}
    end = "_"
    while any(name + end in taken for name in names):
        end += "_"
    return [name + end for name in names]


def _by_vjp(
    definition: Definition, run: Run, own: dict[str, Any], grads: Sequence[Any], wanted: list[int]
) -> Sequence[Any]:
    jax = _jax.jax_module()
    jnp = jax.numpy
    arrays = _arrays(definition, own)

    def differentiable(*chosen: Any) -> list[Any]:
        all_arrays = list(arrays)
        for at, array in zip(wanted, chosen, strict=True):
            all_arrays[at] = array
        results = run(_with_arrays(definition, own, all_arrays))
        return [r for r, g in zip(results, grads, strict=True) if g is not None]

    outputs, pull = jax.vjp(differentiable, *[arrays[at] for at in wanted])
    given = [g for g in grads if g is not None]
    # JAX's gradient of a complex number is the conjugate of PyTorch's; of a real one, the same.
    cotangents = [jnp.conj(jnp.asarray(g, o.dtype)) for g, o in zip(given, outputs, strict=True)]
    return [jnp.conj(found) for found in pull(cotangents)]


def _by_hand(
    definition: Definition,
    own: dict[str, Any],
    outputs: Sequence[Any],
    grads: Sequence[Any],
    wanted: list[int],
) -> Sequence[Any]:
    jnp = _jax.jax_module().numpy
    arrays = _arrays(definition, own)
    given = [
        jnp.zeros_like(o) if g is None else jnp.asarray(g, o.dtype)
        for g, o in zip(grads, outputs, strict=True)
    ]
    assert definition.backward is not None
    found = list(definition.backward(own, outputs, given))
    if len(found) != len(arrays):
        raise TypeError(
            f"its backward returned {len(found)} gradients for {len(arrays)} tensors "
            f"(None stands for one that has none)"
        )
    out = []
    for at in wanted:
        grad = jnp.zeros_like(arrays[at]) if found[at] is None else found[at]
        if grad.shape != arrays[at].shape:
            raise TypeError(
                f"its backward returned a gradient of shape {grad.shape} for tensor {at}, which is "
                f"of shape {arrays[at].shape}"
            )
        out.append(grad.astype(arrays[at].dtype))
    return out


def gradient_of(definition: Definition, name: str) -> Definition:
    """See Definition.gradient."""
    outputs, grads, wanted = _added(definition, "outputs", "grads", "wanted")
    parameters = [
        *_positional(definition),
        Parameter(outputs, "Tensor[]"),
        Parameter(grads, "Tensor?[]"),
        Parameter(wanted, "int[]"),
    ]

    def by_vjp(run: Run) -> Run:
        return lambda args: _by_vjp(
            definition, run, _own(definition, args), args[grads], args[wanted]
        )

    def by_hand(args: dict[str, Any]) -> Sequence[Any]:
        own = _own(definition, args)
        return _by_hand(definition, own, args[outputs], args[grads], args[wanted])

    run = by_vjp(definition.run) if definition.backward is None else by_hand
    runs = {platform: by_vjp(other) for platform, other in definition.runs.items()}
    return Definition(name, parameters, run, None, runs=runs, x64=definition.x64)


def batched_of(definition: Definition, name: str) -> Definition:
    """The op over one more dimension: the first of those tensors that `batched` has a 1 for."""
    (flags,) = _added(definition, "batched")
    parameters = [*_positional(definition), Parameter(flags, "int[]")]

    def batched(run: Run) -> Run:
        def over_batch(args: dict[str, Any]) -> Sequence[Any]:
            own = _own(definition, args)
            arrays = _arrays(definition, own)
            axes = tuple(0 if flag else None for flag in args[flags])

            def one(*each: Any) -> list[Any]:
                return list(run(_with_arrays(definition, own, each)))

            return list(_jax.jax_module().vmap(one, in_axes=axes)(*arrays))

        return over_batch

    runs = {platform: batched(other) for platform, other in definition.runs.items()}
    return Definition(
        name,
        parameters,
        batched(definition.run),
        definition.num_results,
        runs=runs,
        x64=definition.x64,
    )
