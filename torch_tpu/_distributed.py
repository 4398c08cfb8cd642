"""Makes the c10d backend "tpu" known to torch.distributed, also as "tpu_dist". Registering starts
nothing: a group is made by `init_process_group`, and even that does not start the PJRT client."""

from __future__ import annotations

import atexit
import inspect
import json
import os
import uuid
import warnings
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch

from torch_tpu import _C, _dtensor, _replace

BACKENDS = "cpu:gloo,tpu:tpu"  # what no name means
_stops_at_exit = False


def install() -> None:
    """Registers the backend and closes the gaps of the renamed device; called once."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return
    # The first is the device's default; the other one is Google's torch-tpu's name of its backend,
    # which transformers asks for.
    for name in ("tpu", "tpu_dist"):
        dist.Backend.register_backend(name, _create, extended_api=True, devices=["tpu"])
    _choose_backend_by_itself()
    _fresh_keys_after_a_restart()
    _barriers_by_our_backend()
    _mesh_of_single_devices()
    _replicas_of_single_devices()
    _dtensor.install()


def _create(options: Any, _backend_options: Any) -> Any:
    """A group of the backend: PyTorch's Gloo or XLA moves the data, the rest is ours."""
    import torch.distributed as dist

    global _stops_at_exit
    rank, size = options.group_rank, options.group_size
    timeout: timedelta = options.timeout
    c10d: Any = dist.distributed_c10d
    gloo, xla = _transports(options.store, rank, size, timeout)
    ranks = list(options.global_ranks_in_group) or list(range(size))
    if not options.global_ranks_in_group:
        _C._flight_set_rank(rank, size)
    if not _stops_at_exit:
        _stops_at_exit = True
        atexit.register(_C._distributed_stop)
    return _C._create_process_group(
        c10d.PrefixStore("group", options.store),
        rank,
        size,
        timeout.total_seconds(),
        str(options.group_id),
        ranks,
        gloo,
        xla,
    )


def _transports(store: Any, rank: int, size: int, timeout: timedelta) -> tuple[Any, Any]:
    """What moves the data between ranks: the one place where that is chosen. Gloo on host memory is
    always there. XLA's own collectives are the other one, for a group whose every rank has a device
    of its own of one client: one that spans the processes, or this process's where ranks are
    threads of it. None where they are not."""
    import torch.distributed as dist

    c10d: Any = dist.distributed_c10d
    where = c10d.PrefixStore("where", store)
    if size > 1:
        place = [*_C._whereabouts(), uuid.uuid4().hex if rank == 0 else ""]
        where.set(str(rank), json.dumps(place))
    gloo = c10d.ProcessGroupGloo(c10d.PrefixStore("transport", store), rank, size, timeout=timeout)
    if size == 1:
        return gloo, None
    # Gloo has met all others: they have said where they are.
    said = where.multi_get([str(other) for other in range(size)])
    return gloo, _xla_transport([json.loads(text) for text in said], rank)


def _xla_transport(places: list[list[Any]], rank: int) -> Any:
    """The transport of a group whose ranks have said this of themselves; None if they cannot."""
    processes = [(machine, process) for machine, process, *_ in places]
    here = processes.count(processes[rank])
    devices, ids = [place[2] for place in places], [place[3] for place in places]
    spans = all(i >= 0 for i in ids)
    chosen = ids if spans else devices
    if len(set(chosen)) < len(chosen) or not (spans or here == len(places)):
        return None
    return _C._XlaTransport(places[0][4], rank, devices[rank], chosen, spans, here)


def _choose_backend_by_itself() -> None:
    """`init_process_group()` without a backend serves tpu and CPU tensors. PyTorch would register
    ours alone, under a name it then does not find; nor does it find it in "cpu:gloo,tpu:tpu"."""
    from torch.distributed import ProcessGroup, distributed_c10d as c10d

    def make(original: Any) -> Any:
        place = list(inspect.signature(original).parameters).index("backend")

        def helper(*args: Any, **kwargs: Any) -> Any:
            given = _replace.arguments(original, args, kwargs)
            backend = given.get("backend")
            accelerator = torch._C._get_accelerator().type
            if backend == c10d.Backend.UNDEFINED and accelerator == "tpu":
                backend = c10d.Backend(BACKENDS)
                if len(args) > place:
                    args = (*args[:place], backend, *args[place + 1 :])
                else:
                    kwargs = {**kwargs, "backend": backend}
            group, store = original(*args, **kwargs)
            if not isinstance(group, ProcessGroup) or "tpu" not in str(backend):
                return group, store
            if ":tpu" in str(backend):
                group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
            # A bound device (`device_id=`) tells DeviceMesh that subgroups can be split off, as
            # NCCL's can. Ours are made anew.
            group.bound_device_id = None
            return group, store

        return helper

    _replace.replace(c10d, "_new_process_group_helper", make)


def _fresh_keys_after_a_restart() -> None:
    """torchrun's restarted ranks get the store of those before (`--max-restarts`), whose addresses
    are still in it: ranks that read them wait for dead processes, with Gloo too. So each start has
    keys of its own. Not where several machines are: they count restarts each for itself, and need
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1."""
    from torch.distributed import distributed_c10d as c10d

    rendezvous: Any = import_module("torch.distributed.rendezvous")  # as an attribute: a function

    def make(original: Any) -> Any:
        def create_c10d_store(*args: Any, **kwargs: Any) -> Any:
            store = original(*args, **kwargs)
            start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            alone = os.environ.get("GROUP_WORLD_SIZE") == "1"
            if start == "0" or not alone or not rendezvous._torchelastic_use_agent_store():
                return store
            return c10d.PrefixStore(f"start{start}", store)

        return create_c10d_store

    if hasattr(rendezvous, "_create_c10d_store"):
        _replace.replace(rendezvous, "_create_c10d_store", make)


def _mesh_of_single_devices() -> None:
    """Each process has a device of its own, tpu:0, while DeviceMesh would make tpu:LOCAL_RANK the
    current one unless the device is in use already."""
    import torch.distributed.device_mesh as module

    mesh: Any = module.DeviceMesh
    tpu: Any = torch.get_device_module("tpu")
    if not hasattr(mesh, "_setup_world_group_and_device"):
        return

    def make(original: Any) -> Any:
        def setup(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self._device_type == "tpu" and tpu.device_count() == 1:
                tpu.init()
            return original(self, *args, **kwargs)

        return setup

    _replace.replace(mesh, "_setup_world_group_and_device", make)


def _replicas_of_single_devices() -> None:
    """`DistributedDataParallel(model.to("tpu"), device_ids=[LOCAL_RANK])`, as everybody writes it:
    the model is on the process's device, tpu:0, and that number is the rank's."""
    from torch.nn.parallel import DistributedDataParallel

    home = torch.device("tpu", 0)

    def make(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            call: tuple[Any, ...] = (self, *args)
            given = _replace.arguments(original, call, kwargs)
            ids = given.get("device_ids")
            if ids and ids[0] != 0 and len(ids) == 1:
                devices = {parameter.device for parameter in given["module"].parameters()}
                for name in ("device_ids", "output_device") if devices == {home} else ():
                    call, kwargs = _replace.with_argument(original, call, kwargs, name, None)
            original(*call, **kwargs)

        return init

    _replace.replace(DistributedDataParallel, "__init__", make)


def _has_tpu(group: Any) -> bool:
    """Whether a call may be made for this group with our backend."""
    from torch.distributed import ProcessGroup, distributed_c10d as c10d

    return (
        isinstance(group, ProcessGroup)
        and group in c10d._world.pg_map
        and torch.device("tpu") in group._device_types
    )


def _barriers_by_our_backend() -> None:
    """PyTorch's monitored_barrier asks for Gloo by name; its barrier prefers the CPU's backend
    where there are two, which does not know who is missing."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    def given_to(original: Any, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The group, if it is ours to serve, else None; and the arguments by name."""
        given = _replace.arguments(original, args, kwargs)
        group = given.get("group")
        used = group if group is not None else c10d.GroupMember.WORLD
        return (used if given and _has_tpu(used) else None), given

    def make_plain(original: Any) -> Any:
        def barrier(*args: Any, **kwargs: Any) -> Any:
            group, given = given_to(original, args, kwargs)
            if group is None:
                return original(*args, **kwargs)
            options = c10d.BarrierOptions()
            options.asyncOp = given["async_op"]
            options.device = torch.device("tpu")
            if isinstance(given.get("device_ids"), list):
                options.device_ids = given["device_ids"]
            if given.get("timeout") is not None:  # torch 2.11 has no such parameter
                options.timeout = given["timeout"]
            work = group.barrier(options)
            if options.asyncOp:
                return work
            work.wait()
            return None

        return barrier

    def make_monitored(original: Any) -> Any:
        def monitored_barrier(*args: Any, **kwargs: Any) -> Any:
            group, given = given_to(original, args, kwargs)
            if group is None:
                return original(*args, **kwargs)
            timeout = given["timeout"]
            if timeout is None:
                timeout = c10d.default_pg_timeout
            elif isinstance(timeout, float):
                warnings.warn(
                    "Please specify timeout arg as a timedelta. Converting current value of "
                    f"{timeout} assuming it represents seconds",
                    stacklevel=2,
                )
                timeout = timedelta(seconds=timeout)
            c10d._check_valid_timeout(timeout)
            backend: Any = group._get_backend(torch.device("tpu"))
            return backend.monitored_barrier(timeout, given["wait_all_ranks"])

        return monitored_barrier

    _replace.replace(c10d, "barrier", make_plain, dist)
    _replace.replace(c10d, "monitored_barrier", make_monitored, dist)
