"""The workloads of torch_work.py in JAX: jitted as a whole, and the small chains also op by op.

Parameters carry PyTorch's names and layouts, so that both start from the same weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from spec import (
    CHAIN_OPS,
    CONVNET,
    GPT,
    LENGTHS,
    LOOPS,
    MLP,
    SHORT_GPT,
    SMALL_MLP,
    Gpt,
    Mlp,
    learning_rate,
)
from weights import integers, normal, parameter

Work = Callable[[], float]
Params = dict[str, Any]
Update = Callable[[Params, Params, Any, Any], tuple[Params, Any]]


def make_params(shapes: dict[str, tuple[int, ...]]) -> Params:
    """The weights every contestant starts from, on JAX's device."""
    return {name: jnp.asarray(parameter(name, shape)) for name, shape in shapes.items()}


def linear(params: Params, name: str, x: Any) -> Any:
    """nn.Linear."""
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def cross_entropy(logits: Any, targets: Any) -> Any:
    """F.cross_entropy with class indices."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=-1)
    return -picked.mean()


def layer_norm(params: Params, name: str, x: Any) -> Any:
    """nn.LayerNorm over the last dimension."""
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * params[f"{name}.weight"] + params[f"{name}.bias"]


def gpt_params(spec: Gpt) -> Params:
    """Parameters under the names of torch_work.GptModel."""
    wide = spec.width
    shapes: dict[str, tuple[int, ...]] = {
        "tokens.weight": (spec.vocab, wide),
        "positions": (spec.length, wide),
        "norm.weight": (wide,),
        "norm.bias": (wide,),
        "head.weight": (spec.vocab, wide),
    }
    outputs = {"qkv": 3 * wide, "proj": wide, "up": 4 * wide, "down": wide}
    for i in range(spec.layers):
        for norm in ("norm1", "norm2"):
            shapes[f"blocks.{i}.{norm}.weight"] = (wide,)
            shapes[f"blocks.{i}.{norm}.bias"] = (wide,)
        for name, out in outputs.items():
            fan_in = 4 * wide if name == "down" else wide
            shapes[f"blocks.{i}.{name}.weight"] = (out, fan_in)
            shapes[f"blocks.{i}.{name}.bias"] = (out,)
    return make_params(shapes)


def gpt_logits(params: Params, tokens: Any, spec: Gpt, attention: str = "") -> Any:
    """torch_work.GptModel.forward. `attention` names an implementation of jax.nn's, as "cudnn"."""
    batch, length = tokens.shape
    per_head = spec.width // spec.heads
    hidden = jnp.triu(jnp.ones((length, length), bool), 1)
    x = params["tokens.weight"][tokens] + params["positions"][:length]
    for i in range(spec.layers):
        at = f"blocks.{i}"
        qkv = linear(params, f"{at}.qkv", layer_norm(params, f"{at}.norm1", x))
        q, k, v = (
            part.reshape(batch, length, spec.heads, per_head).transpose(0, 2, 1, 3)
            for part in jnp.split(qkv, 3, axis=-1)
        )
        if attention:
            q, k, v = (part.transpose(0, 2, 1, 3) for part in (q, k, v))
            mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=attention)
        else:
            scores = (q @ k.transpose(0, 1, 3, 2)) * per_head**-0.5
            mixed = jax.nn.softmax(jnp.where(hidden, -jnp.inf, scores)) @ v
            mixed = mixed.transpose(0, 2, 1, 3)
        mixed = mixed.reshape(batch, length, spec.width)
        x = x + linear(params, f"{at}.proj", mixed)
        up = linear(params, f"{at}.up", layer_norm(params, f"{at}.norm2", x))
        x = x + linear(params, f"{at}.down", jax.nn.gelu(up, approximate=False))
    return layer_norm(params, "norm", x) @ params["head.weight"].T


def convnet_params() -> Params:
    """Parameters under the names of torch_work.convnet_model's nn.Sequential."""
    shapes: dict[str, tuple[int, ...]] = {}
    previous = 3
    for i, channels in enumerate(CONVNET.channels):
        shapes[f"{3 * i}.weight"] = (channels, previous, 3, 3)
        shapes[f"{3 * i + 1}.weight"] = (channels,)
        shapes[f"{3 * i + 1}.bias"] = (channels,)
        previous = channels
    last = 3 * len(CONVNET.channels) + 2
    shapes[f"{last}.weight"] = (CONVNET.classes, previous)
    shapes[f"{last}.bias"] = (CONVNET.classes,)
    return make_params(shapes)


def convnet_logits(params: Params, running: Params, x: Any) -> tuple[Any, Params]:
    """Logits, and the running statistics batch norm keeps in training."""
    kept: Params = {}
    for i, stride in enumerate(CONVNET.strides):
        x = jax.lax.conv_general_dilated(
            x, params[f"{3 * i}.weight"], (stride, stride), [(1, 1), (1, 1)]
        )
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        count = x.size // x.shape[1]
        kept[f"{i}.mean"] = 0.9 * running[f"{i}.mean"] + 0.1 * mean
        kept[f"{i}.var"] = 0.9 * running[f"{i}.var"] + 0.1 * variance * count / (count - 1)
        scale = params[f"{3 * i + 1}.weight"] * jax.lax.rsqrt(variance + 1e-5)
        shift = params[f"{3 * i + 1}.bias"] - mean * scale
        x = jax.nn.relu(x * scale[:, None, None] + shift[:, None, None])
    return linear(params, f"{3 * len(CONVNET.strides) + 2}", x.mean((2, 3))), kept


def sgd(params: Params, grads: Params, state: Any, rate: Any) -> tuple[Params, Any]:
    """torch.optim.SGD."""
    return jax.tree.map(lambda p, g: p - rate * g, params, grads), state


def momentum(params: Params, grads: Params, state: Any, rate: Any) -> tuple[Params, Any]:
    """torch.optim.SGD(momentum=0.9)."""
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, grads)
    return jax.tree.map(lambda p, m: p - rate * m, params, state), state


def adamw(params: Params, grads: Params, state: Any, rate: Any) -> tuple[Params, Any]:
    """torch.optim.AdamW(weight_decay=0.01)."""
    step = state["step"] + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["second"], grads)
    moved_by, root = rate / (1 - 0.9**step), jnp.sqrt(1 - 0.999**step)

    def moved(p: Any, m: Any, v: Any) -> Any:
        new = p * (1 - rate * 0.01) - moved_by * m / (jnp.sqrt(v) / root + 1e-8)
        return new.astype(p.dtype)  # of half types, too

    params = jax.tree.map(moved, params, first, second)
    return params, {"step": step, "first": first, "second": second}


def training(
    loss_of: Callable[[Params, Params, Any], tuple[Any, Params]],
    params: Params,
    data: Any,
    update: Update,
    rate: float,
    state: Any,
    kept: Params | None = None,
) -> Work:
    """One jitted step. `kept` is what the model keeps besides weights; all state is donated.

    The data is an argument: closed over, it would be a constant, and folded into the program.
    """

    def step(params: Params, state: Any, kept: Params, data: Any, rate: Any) -> tuple[Any, ...]:
        (loss, kept), grads = jax.value_and_grad(loss_of, has_aux=True)(params, kept, data)
        return *update(params, grads, state, rate), kept, loss

    jitted = jax.jit(step, donate_argnums=(0, 1, 2))
    carried: list[Any] = [params, state, kept or {}]
    steps = itertools.count()

    def work() -> float:
        *carried[:], loss = jitted(*carried, data, learning_rate(next(steps), rate))
        jax.block_until_ready(carried)
        return float(loss)

    return work


def zeros_like(params: Params) -> Params:
    """A zero for every parameter, each in a buffer of its own (they are donated)."""
    return jax.tree.map(jnp.zeros_like, params)


def chain(size: int, op: Callable[[Any, Any, int], Any], jitted: bool) -> Work:
    """The same three ops over and over, each on the result of the one before."""
    x = jnp.asarray(normal("x", (size, size)))

    def run(x: Any) -> Any:
        y = x
        for i in range(CHAIN_OPS):
            y = op(y, x, i % 3)
        return y

    called = jax.jit(run) if jitted else run
    return lambda: float(jax.device_get(called(x)).sum())


def tiny_op(y: Any, x: Any, which: int) -> Any:
    """x*0.5, +x, relu."""
    if which == 0:
        return y * 0.5
    return y + x if which == 1 else jax.nn.relu(y)


def chain_op(y: Any, x: Any, which: int) -> Any:
    """sin, *0.5, +x."""
    if which == 0:
        return jnp.sin(y)
    return y * 0.5 if which == 1 else y + x


def mlp_params(spec: Mlp) -> Params:
    """Parameters under the names of torch_work.mlp_model's nn.Sequential."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(spec.layers):
        shapes[f"{2 * i}.weight"] = (spec.width, spec.width)
        shapes[f"{2 * i}.bias"] = (spec.width,)
    return make_params(shapes)


def mlp_loss(params: Params, data: Any, spec: Mlp) -> Any:
    """torch_work.mlp_model and the mean squared error."""
    h, y = data
    for i in range(spec.layers):
        h = linear(params, f"{2 * i}", h)
        h = jax.nn.relu(h) if i + 1 < spec.layers else h
    return ((h - y) ** 2).mean()


def mlp() -> Work:
    """MLP, mean squared error, SGD."""
    data = tuple(jnp.asarray(normal(n, (MLP.batch, MLP.width))) for n in "xy")

    def loss_of(params: Params, kept: Params, data: Any) -> tuple[Any, Params]:
        return mlp_loss(params, data, MLP), kept

    return training(loss_of, mlp_params(MLP), data, sgd, 0.01, ())


def loops20() -> Work:
    """Training loops of 20 lengths, one jitted step; the loss is read after each loop."""
    shape = (SMALL_MLP.batch, SMALL_MLP.width)
    data = tuple(jnp.asarray(normal(n, shape)) for n in "xy")

    def step(params: Params, data: Any) -> tuple[Params, Any]:
        loss, grads = jax.value_and_grad(mlp_loss)(params, data, SMALL_MLP)
        return sgd(params, grads, (), 1e-3)[0], loss

    jitted = jax.jit(step, donate_argnums=0)
    params = mlp_params(SMALL_MLP)

    def work() -> float:
        nonlocal params
        total = 0.0
        for length in LOOPS:
            loss = jnp.zeros(())
            for _ in range(length):
                params, loss = jitted(params, data)
            total += float(loss)
        return total

    return work


def gpt(spec: Gpt = GPT, dtype: Any = jnp.float32, attention: str = "", rate: float = 1e-3) -> Work:
    """GPT, cross entropy, AdamW."""
    shape = (spec.batch, spec.length)
    data = tuple(jnp.asarray(integers(n, spec.vocab, shape)) for n in ("tokens", "targets"))

    def loss_of(params: Params, kept: Params, data: Any) -> tuple[Any, Params]:
        tokens, targets = data
        logits = gpt_logits(params, tokens, spec, attention).reshape(-1, spec.vocab)
        return cross_entropy(logits.astype(jnp.float32), targets.reshape(-1)), kept

    params = jax.tree.map(lambda p: p.astype(dtype), gpt_params(spec))
    state = {"step": jnp.zeros(()), "first": zeros_like(params), "second": zeros_like(params)}
    return training(loss_of, params, data, adamw, rate, state)


def gpt_forward() -> Work:
    """GPT logits."""
    params = gpt_params(GPT)
    tokens = jnp.asarray(integers("tokens", GPT.vocab, (GPT.batch, GPT.length)))
    forward = jax.jit(lambda params, tokens: gpt_logits(params, tokens, GPT))
    return lambda: float(jax.device_get(forward(params, tokens))[0, :, 0].sum())


def convnet() -> Work:
    """ConvNet, cross entropy, SGD with momentum."""
    data = (
        jnp.asarray(normal("x", (CONVNET.batch, 3, CONVNET.side, CONVNET.side))),
        jnp.asarray(integers("y", CONVNET.classes, (CONVNET.batch,))),
    )
    running: Params = {}
    for i, channels in enumerate(CONVNET.channels):
        running[f"{i}.mean"], running[f"{i}.var"] = jnp.zeros(channels), jnp.ones(channels)

    def loss_of(params: Params, kept: Params, data: Any) -> tuple[Any, Params]:
        logits, kept = convnet_logits(params, kept, data[0])
        return cross_entropy(logits, data[1]), kept

    params = convnet_params()
    return training(loss_of, params, data, momentum, 0.01, zeros_like(params), running)


def lengths16() -> Work:
    """Every length is another shape; the last position's argmax is read each time."""
    params = gpt_params(SHORT_GPT)
    tokens = jnp.asarray(integers("tokens", SHORT_GPT.vocab, (1, SHORT_GPT.length)))
    best = jax.jit(lambda params, tokens: gpt_logits(params, tokens, SHORT_GPT)[:, -1].argmax(-1))
    return lambda: float(sum(int(best(params, tokens[:, :n])[0]) for n in LENGTHS))


JITTED: dict[str, Callable[[], Work]] = {
    "tiny300": lambda: chain(8, tiny_op, jitted=True),
    "chain300": lambda: chain(64, chain_op, jitted=True),
    "mlp": mlp,
    "gpt": gpt,
    "gpt_forward": gpt_forward,
    "convnet": convnet,
    "lengths16": lengths16,
    "loops20": loops20,
}

OP_BY_OP: dict[str, Callable[[], Work]] = {
    "tiny300": lambda: chain(8, tiny_op, jitted=False),
    "chain300": lambda: chain(64, chain_op, jitted=False),
}
