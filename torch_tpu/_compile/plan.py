"""Splits a graph by where its nodes run: on the CPU before, on the device, on the CPU after.

Most graphs lie on the device entirely. Compiled optimizers count steps on the CPU, models may create
or return CPU tensors: those nodes run as they are, outside the program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torch_tpu._compile.interpreter import attribute

DEVICE = "tpu"


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
            (plan.after if late else plan.before).append(node)
        else:
            if "after" in sources:
                raise CannotPlanError(f"{node.target} on the device needs a result from the CPU")
            where[node] = "device"
            plan.device.append(node)
            for source in node.all_input_nodes:
                if where[source] == "before" and source not in plan.uploads:
                    plan.uploads.append(source)
    _find_results(plan, where)
    return plan


def _find_results(plan: Plan, where: dict[fx.Node, str]) -> None:
    assert plan.output is not None
    for user in [*plan.after, plan.output]:
        for source in user.all_input_nodes:
            if where[source] == "device" and source not in plan.results:
                plan.results.append(source)
