"""Writes an export: traces the model, lowers it for every size wanted, and puts the folder in its
place once it is complete."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, SymIntArgument, TensorArgument
from torch.utils import _pytree as pytree

from torch_tpu import _C, safetensors
from torch_tpu._export import trees
from torch_tpu._export.lower import Lowered, Weights, lower, prepare
from torch_tpu._export.manifest import MANIFEST, TARGETS, WEIGHTS, Manifest

Call = tuple[tuple[Any, ...], dict[str, Any]]


def write(
    model: Any,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    path: str | os.PathLike[str],
    dynamic_shapes: Any,
    more_args: Sequence[tuple[Any, ...]],
    target: str,
) -> None:
    """See torch_tpu.export."""
    if target not in TARGETS:
        raise ValueError(f"[export] expected target {', '.join(TARGETS)}, got {target!r}.")
    folder = Path(path)
    _check_place(folder)
    ep, calls = _trace(model, args, kwargs, dynamic_shapes)
    calls += [(_as_tuple(more), dict(calls[0][1])) for more in more_args]
    name = "model" if isinstance(model, ExportedProgram) else type(model).__name__
    device = torch.device("tpu", _C._current_device())
    ep = _functional(ep)
    flat_calls = [_flat_inputs(ep, call) for call in calls]
    weights = Weights(ep)
    prepare(ep, device)
    lowered: list[Lowered] = []
    for number, inputs in enumerate(flat_calls):
        file = "module.mlir" if number == 0 else f"module{number}.mlir"
        lowered.append(lower(ep, weights, inputs, file, f"exported_{name}", device, target))
    manifest = _describe(ep, calls[0], flat_calls[0], lowered, name, target)
    manifest.names = _positional_names(model, calls[0], manifest)
    _write_folder(folder, manifest, lowered, weights)


def _trace(
    model: Any, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> tuple[ExportedProgram, list[Call]]:
    if isinstance(model, ExportedProgram):
        if dynamic_shapes is not None:
            raise ValueError("[export] dynamic_shapes belong to torch.export.export here.")
        if args is None and kwargs is None:
            if model.example_inputs is None:
                raise ValueError("[export] this ExportedProgram has no example inputs: give args.")
            args, kwargs = model.example_inputs
        return model, [(_as_tuple(args), dict(kwargs or {}))]
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"[export] expected a torch.nn.Module or torch.export.ExportedProgram, got "
            f"{type(model).__name__}. Put a function into a module's forward."
        )
    for kind in (model.named_parameters, model.named_buffers):
        for name, tensor in kind():
            if tensor.device.type == "meta":
                raise RuntimeError(f"[export] '{name}' is on the device 'meta': load it first.")
    call = (_as_tuple(args), dict(kwargs or {}))
    ep = torch.export.export(model, *call, dynamic_shapes=dynamic_shapes)
    return ep, [call]


def _functional(ep: ExportedProgram) -> ExportedProgram:
    """The graph without writes and without autograd; ops stay whole."""
    try:
        with warnings.catch_warnings():  # torch warns about itself
            warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)")
            return ep.run_decompositions({})
    except AssertionError:  # torch's way to refuse what it has no words for
        by_storage: dict[int, list[str]] = {}
        for name, tensor in {**ep.state_dict, **ep.constants}.items():
            if isinstance(tensor, torch.Tensor):
                by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(name)
        sharing = [names for names in by_storage.values() if len(names) > 1]
        if not sharing:
            raise
        raise RuntimeError(
            f"[export] the model writes to a buffer that shares memory with others, of these: "
            f"{sharing}. Give each its own: `model.x = model.x.clone()`."
        ) from None


def _as_tuple(args: Any) -> tuple[Any, ...]:
    if args is None:
        return ()
    if isinstance(args, (tuple, list)):
        return tuple(args)
    raise TypeError(
        f"[export] expected a tuple of arguments, got {type(args).__name__}: write (x,)."
    )


def _flat_inputs(ep: ExportedProgram, call: Call) -> list[Any]:
    """One per user input; checked against the sizes that torch.export allows."""
    flat, _ = ep._get_flat_args_with_check(*call)
    for spec in ep.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, SymIntArgument):
            raise RuntimeError(
                f"[export] the input '{spec.arg.name}' is a number that varies. Make it a tensor, "
                "or leave it out of dynamic_shapes to export with the number it has."
            )
    return list(flat)


def _describe(
    ep: ExportedProgram,
    call: Call,
    inputs: list[Any],
    lowered: list[Lowered],
    name: str,
    target: str,
) -> Manifest:
    signature = ep.graph_signature
    specs = [spec for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    leaves: list[trees.Tree] = []
    named: list[tuple[str, torch.dtype]] = []
    for spec, value in zip(specs, inputs, strict=True):
        if isinstance(value, torch.Tensor):
            leaves.append(trees.tensor_leaf(len(named)))
            named.append((spec.arg.name, value.dtype))
        else:
            leaves.append(trees.constant_leaf(value, f"the input '{spec.arg.name}'"))
    tree = trees.encode(ep.call_spec.in_spec, leaves)
    args, kwargs = tree["tuple"]
    outputs = [s for s in signature.output_specs if s.kind == OutputKind.USER_OUTPUT]
    returned: list[trees.Tree] = []
    count = 0
    for number, spec in enumerate(outputs):
        if isinstance(spec.arg, TensorArgument):
            returned.append(trees.tensor_leaf(count))
            count += 1
            continue
        values = {repr(item.numbers[number]) for item in lowered}
        if len(values) > 1:
            raise RuntimeError(
                f"[export] output {number} is a number that differs between the sizes: {values}. "
                "Return a tensor instead."
            )
        returned.append(trees.constant_leaf(lowered[0].numbers[number], f"output {number}"))
    names = _output_names(ep.call_spec.out_spec, returned)
    for item in lowered:
        for result in item.program.results:
            if result.kind == "output":
                result.name = names[result.index]
    return Manifest(
        name=name,
        target=target,
        inputs=named,
        outputs=names,
        args=args["tuple"],
        names=[None] * len(args["tuple"]),
        kwargs=dict(kwargs["dict"]),
        returns=trees.encode(ep.call_spec.out_spec, list(returned)),
        programs=[item.program for item in lowered],
    )


def _output_names(spec: pytree.TreeSpec, leaves: list[trees.Tree]) -> list[str]:
    """ "output", or "output.logits" and "output.0" within a structure."""
    places = pytree.tree_unflatten(list(range(len(leaves))), spec)
    names = [""] * len(leaves)
    for path, place in pytree.tree_flatten_with_path(places)[0]:
        keys = [getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path]
        names[place] = ".".join(["output", *map(str, keys)])
    return [name for name, leaf in zip(names, leaves, strict=True) if "tensor" in leaf]


def _positional_names(model: Any, call: Call, manifest: Manifest) -> list[str | None]:
    """So that they can also be given by keyword, as the model takes them."""
    if not isinstance(model, ExportedProgram):
        try:
            parameters = list(inspect.signature(model.forward).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [p.name for p in parameters if p.kind in plain]
        return [names[i] if i < len(names) else None for i in range(len(call[0]))]
    return [
        manifest.inputs[tree["tensor"]][0] if "tensor" in tree else None for tree in manifest.args
    ]


def _check_place(folder: Path) -> None:
    if folder.is_dir():
        if any(folder.iterdir()) and not (folder / MANIFEST).is_file():
            raise FileExistsError(
                f"[export] {folder} exists and is no export. Choose another path, or remove it."
            )
    elif folder.exists():
        raise FileExistsError(f"[export] {folder} is a file. Choose another path, or remove it.")
    elif not folder.absolute().parent.is_dir():
        raise FileNotFoundError(f"[export] there is no folder {folder.absolute().parent}.")


def _write_folder(
    folder: Path, manifest: Manifest, lowered: list[Lowered], weights: Weights
) -> None:
    used = {v.name for item in lowered for v in item.program.arguments}
    tensors = {name: tensor for name, tensor in weights.tensors.items() if name in used}
    for item in lowered:
        tensors.update(item.constants)
    folder = folder.absolute()
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for item in lowered:
            (partial / item.program.module).write_text(item.text, encoding="utf-8")
        safetensors.save_file(tensors, partial / WEIGHTS)
        text = json.dumps(manifest.to_json(), indent=1)
        (partial / MANIFEST).write_text(text + "\n", encoding="utf-8")
        umask = os.umask(0)
        os.umask(umask)
        partial.chmod(0o777 & ~umask)
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            os.rename(folder, old / "old")
            os.rename(partial, folder)
            shutil.rmtree(old)
        else:
            os.rename(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
