"""accelerate on this device. It picks a device from a list of its own, in which "TPU" means
torch_xla; on one that it does not know it would train on the CPU, under torchrun each rank alone.

What is replaced is what chooses: the device, the process group and its type, the memory that a
`device_map` may use; and checkpoints keep the state of the device's random numbers. As the type of
several processes it has MULTI_GPU, by which accelerate means "one process for each accelerator".
`cpu=True` and ACCELERATE_USE_CPU go to the CPU as before."""

from __future__ import annotations

import os
from typing import Any

import torch

from torch_tpu._distributed import BACKENDS
from torch_tpu._frameworks import rng
from torch_tpu._replace import arguments, holders, replace

_KNOWN = "1.15"


def adapt(package: Any) -> None:
    """Does nothing where accelerate knows the device by itself."""
    types = package.utils.DistributedType
    if "MULTI_TPU" in types.__members__:
        return
    _choose_device(package.state.PartialState, types)
    _name_device(package.utils.environment)
    _measure_memory(package.utils.modeling)
    _keep_random_state(package.checkpointing)
    _no_lonely_process(package.utils.launch)


def _is_accelerator() -> bool:
    return (
        torch._C._get_accelerator().type == "tpu" and torch.get_device_module("tpu").is_available()
    )


def _under_launcher() -> bool:
    return int(os.environ.get("LOCAL_RANK", -1)) != -1


def _choose_device(state: Any, types: Any) -> None:
    """The class that everything in accelerate asks for device, ranks and type of the processes."""

    def make_init(original: Any) -> Any:
        def init(self: Any, cpu: bool = False, **kwargs: Any) -> None:
            fresh = not state._shared_state
            # The default of InitProcessGroupKwargs, which is also how a timeout is given.
            if fresh and not cpu and kwargs.get("backend") == "nccl" and _is_accelerator():
                kwargs["backend"] = None
            original(self, cpu, **kwargs)
            asked = cpu or os.environ.get("ACCELERATE_TORCH_DEVICE")
            if fresh and not asked and self.device.type == "cpu" and _is_accelerator():
                raise RuntimeError(
                    "[accelerate] would train on the CPU, while the accelerator is 'tpu' and "
                    "nobody asked for the CPU: this version of accelerate is not known. Install "
                    f"accelerate {_KNOWN}, or pass `cpu=True` if the CPU is meant."
                )

        return init

    def make_default_device(original: Any) -> Any:
        def default_device(self: Any) -> Any:
            return torch.device("tpu") if _is_accelerator() else original(self)

        return default_device

    def make_prepare_backend(original: Any) -> Any:
        def prepare_backend(self: Any, cpu: bool = False, *args: Any, **kwargs: Any) -> Any:
            backend, distributed = original(self, cpu, *args, **kwargs)
            if distributed == types.NO and not cpu and _under_launcher() and _is_accelerator():
                return backend or BACKENDS, types.MULTI_GPU
            return backend, distributed

        return prepare_backend

    def make_set_device(original: Any) -> Any:
        def set_device(self: Any) -> None:
            ours = self.distributed_type == types.MULTI_GPU and _is_accelerator()
            if self.device is not None or not ours:
                original(self)
                return
            tpu = torch.get_device_module("tpu")
            self.device = torch.device("tpu", self.local_process_index % tpu.device_count())
            tpu.set_device(self.device)

        return set_device

    replace(state, "__init__", make_init)
    replace(state, "default_device", make_default_device)
    replace(state, "_prepare_backend", make_prepare_backend)
    replace(state, "set_device", make_set_device)


def _name_device(environment: Any) -> None:
    """What notebook_launcher says it launches on."""

    def make(original: Any) -> Any:
        def get_current_device_type() -> Any:
            return ("tpu", "MULTI_GPU") if _is_accelerator() else original()

        return get_current_device_type

    name = "get_current_device_type"
    replace(environment, name, make, *holders(name, getattr(environment, name)))


def _measure_memory(modeling: Any) -> None:
    """For `device_map="auto"`: devices are numbers there, and those of this one were none."""

    def make(original: Any) -> Any:
        def get_max_memory(max_memory: Any = None) -> Any:
            if not _is_accelerator():
                return original(max_memory)
            tpu = torch.get_device_module("tpu")
            if max_memory is None:
                devices = {i: tpu.mem_get_info(i)[0] for i in range(tpu.device_count())}
                return {**devices, **original(None)}
            numbers = sorted(key for key in max_memory if isinstance(key, int))
            missing = [number for number in numbers if not 0 <= number < tpu.device_count()]
            if missing:
                raise ValueError(
                    f"[max_memory] there is no device tpu:{missing[0]}, only "
                    f"{tpu.device_count()} of them. Leave it out of max_memory."
                )
            for key, size in max_memory.items():  # in place, on which transformers relies
                if isinstance(size, str):
                    max_memory[key] = modeling.convert_file_size_to_int(size)
            others = {key: size for key, size in max_memory.items() if key not in numbers}
            return {**{number: max_memory[number] for number in numbers}, **original(others)}

        return get_max_memory

    name = "get_max_memory"
    replace(modeling, name, make, *holders(name, getattr(modeling, name)))


def _keep_random_state(checkpointing: Any) -> None:
    """Dropout after `load_state` draws what it would have drawn."""

    def file(original: Any, args: Any, kwargs: Any, folder: str) -> str:
        given = arguments(original, args, kwargs)
        name = f"{checkpointing.RNG_STATE_NAME}_{given['process_index']}.pkl"
        return os.path.join(given[folder], name)

    def make_save(original: Any) -> Any:
        def save_accelerator_state(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if checkpointing.PartialState().device.type == "tpu":
                rng.save_beside(file(original, args, kwargs, "output_dir"))
            return result

        return save_accelerator_state

    def make_load(original: Any) -> Any:
        def load_accelerator_state(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if checkpointing.PartialState().device.type == "tpu":
                rng.load_beside(file(original, args, kwargs, "input_dir"))
            return result

        return load_accelerator_state

    for name, make in (
        ("save_accelerator_state", make_save),
        ("load_accelerator_state", make_load),
    ):
        replace(checkpointing, name, make, *holders(name, getattr(checkpointing, name)))


def _no_lonely_process(launch: Any) -> None:
    """`python -m accelerate.commands.launch` runs that module under another name, so that it is not
    adapted (accelerate_launch.py): told to start several processes, it would start one."""

    def make(original: Any) -> Any:
        def prepare_simple_launcher_cmd_env(args: Any) -> Any:
            several = (getattr(args, "num_processes", None) or 1) > 1
            cpu = args.cpu or args.use_cpu or args.mpirun_hostfile is not None
            if several and not cpu and _is_accelerator():
                raise ValueError(
                    f"[accelerate launch] would start one process, not {args.num_processes}: start "
                    "it as `accelerate launch`, or add --multi_gpu, which means any accelerator."
                )
            return original(args)

        return prepare_simple_launcher_cmd_env

    name = "prepare_simple_launcher_cmd_env"
    replace(launch, name, make, *holders(name, getattr(launch, name)))
