"""Splits a graph by where its nodes run: on the CPU before, on the device, on the CPU after.

Most graphs lie on the device entirely. Models may create or return CPU tensors, and compiled
optimizers count steps on the CPU. Such nodes run as they are, outside the program and while it
runs, but for arithmetic on 0-d tensors that the device needs: the program does that again by
itself, so that only the numbers it starts from are uploaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torch_tpu._compile.interpreter import attribute

DEVICE = "tpu"
_FEW = 4096


class CannotPlanError(RuntimeError):
    """The graph goes to the CPU and back."""


@dataclass
class Plan:
    """What runs where, and what passes between the parts."""

    placeholders: list[fx.Node] = field(default_factory=list)
    constants: dict[fx.Node, Any] = field(default_factory=dict)  # attributes of the module
    numbers: list[fx.Node] = field(default_factory=list)  # no tensors: wherever they are needed
    before: list[fx.Node] = field(default_factory=list)
    device: list[fx.Node] = field(default_factory=list)
    after: list[fx.Node] = field(default_factory=list)
    uploads: list[fx.Node] = field(default_factory=list)  # CPU values the device part reads
    results: list[fx.Node] = field(default_factory=list)  # device values that leave it
    output: fx.Node | None = None

    @property
    def on_device_only(self) -> bool:
        """No CPU tensor comes in, is made, or goes out."""
        return not (self.before or self.after or self.uploads)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a node's `val`, however nested."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)


def _value(node: fx.Node) -> Any:
    return node.meta.get("val", node.meta.get("example_value"))


def _is_host(node: fx.Node) -> bool | None:
    """None for a node without tensors."""
    devices = {tensor.device.type for tensor in tensors_of(_value(node))}
    if not devices:
        return None
    return DEVICE not in devices


def _is_arithmetic(node: fx.Node) -> bool:
    """From a few numbers on the CPU to others."""
    return (
        _is_small(_value(node))
        and not _writes(node)
        and "device" not in node.kwargs
        and bool(node.all_input_nodes)
        and all(_is_small(_value(source)) for source in node.all_input_nodes)
    )


def _is_small(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.dim() > 1:
        return False
    count = value.numel()
    return isinstance(count, int) and count <= _FEW


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def make_plan(gm: fx.GraphModule) -> Plan:
    """Raises CannotPlanError for a graph whose device part needs what the CPU makes of its
    results."""
    plan = Plan()
    where: dict[fx.Node, str] = {}  # before, device, after, number
    for node in gm.graph.nodes:
        if node.op == "output":
            plan.output = node
            continue
        host = _is_host(node)
        if node.op == "placeholder":
            plan.placeholders.append(node)
            where[node] = "number" if host is None else "before" if host else "device"
            continue
        if node.op == "get_attr":
            value = attribute(gm, str(node.target))
            plan.constants[node] = value
            on_cpu = isinstance(value, torch.Tensor) and value.device.type != DEVICE
            tensor = isinstance(value, torch.Tensor)
            where[node] = "before" if on_cpu else "device" if tensor else "number"
            continue
        sources = {where[source] for source in node.all_input_nodes}
        if host is None and not sources & {"device", "after", "before"}:
            where[node] = "number"
            plan.numbers.append(node)
        elif host or (host is None and "device" not in sources):
            # What writes to a CPU tensor waits until the device part has read it.
            late = _writes(node) or sources & {"device", "after"}
            where[node] = "after" if late else "before"
        else:
            if "after" in sources:
                raise CannotPlanError(f"{node.target} on the device needs a result from the CPU")
            where[node] = "device"
    _sort_out(plan, gm, where)
    _find_results(plan, where)
    return plan


def _sort_out(plan: Plan, gm: fx.GraphModule, where: dict[fx.Node, str]) -> None:
    """Fills the three parts: CPU nodes come before the program only where it needs them."""
    repeated: set[fx.Node] = set()
    needed: set[fx.Node] = set()

    def need(node: fx.Node) -> None:
        if where[node] != "before" or node in repeated or node in needed:
            return
        if node.op == "call_function" and _is_arithmetic(node):
            repeated.add(node)
        else:
            needed.add(node)
            if node.op == "call_function":
                require(node)
            plan.uploads.append(node)
            return
        for source in node.all_input_nodes:
            need(source)

    def require(node: fx.Node) -> None:
        """All that a node on the CPU needs, on the CPU."""
        for source in node.all_input_nodes:
            if where[source] == "before" and source not in before:
                before.add(source)
                require(source)

    before: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if where.get(node) == "device" and node.op == "call_function":
            for source in node.all_input_nodes:
                need(source)
    before |= needed
    seen_after = _wanted_after(gm, where)
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        if where[node] == "device" or node in repeated:
            plan.device.append(node)
        if node in before:
            plan.before.append(node)
        elif node in seen_after:
            plan.after.append(node)


def _wanted_after(gm: fx.GraphModule, where: dict[fx.Node, str]) -> set[fx.Node]:
    """CPU nodes that somebody sees who is not on the device."""
    wanted: set[fx.Node] = set()

    def want(node: fx.Node) -> None:
        if where.get(node) not in ("before", "after") or node in wanted:
            return
        wanted.add(node)
        for source in node.all_input_nodes:
            want(source)

    for node in gm.graph.nodes:
        if node.op == "output":
            for source in node.all_input_nodes:
                want(source)
        elif where[node] == "after" and (_writes(node) or not node.users):
            want(node)
    return wanted


def _find_results(plan: Plan, where: dict[fx.Node, str]) -> None:
    assert plan.output is not None
    for user in [*plan.after, plan.output]:
        for source in user.all_input_nodes:
            if where[source] == "device" and source not in plan.results:
                plan.results.append(source)
