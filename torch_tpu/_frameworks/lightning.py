"""Lightning's Fabric on this device, and what the Trainer shares with it (lightning_trainer.py is
the rest). Both take "tpu" to mean torch_xla, and any device that they do not know for the CPU.

The accelerator "tpu" is ours instead. Where Lightning's connectors decide by the accelerator's name
(strategy, precision), they are asked again by the device's type. `accelerator="cpu"` is the CPU as
before."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from torch_tpu._replace import holders, replace, temporarily

KNOWN = "2.6"
_RNG_KEY = "torch.tpu"


def adapt(connector: Any) -> None:
    """Of Fabric; `connector` is its module of this name, in `lightning` or `lightning_fabric`."""
    root = connector.__name__.removesuffix(".connector")
    with_known_names(root, lambda: _adapt(connector, root))


def with_known_names(package: str, adapt: Callable[[], None]) -> None:
    """Lightning's names are private: of another version some may be gone. Then that is said, at its
    import, and not found out by a training that runs elsewhere."""
    try:
        adapt()
    except AttributeError as missing:
        version = import_module(package.partition(".")[0]).__version__
        warnings.warn(
            f"{package} {version} is not the Lightning that torch_tpu knows ({KNOWN}): {missing}. "
            "It may not use the device 'tpu': print `trainer.strategy.root_device`, and install "
            f"Lightning {KNOWN} or a newer torchtpu if that is another one.",
            RuntimeWarning,
            stacklevel=2,
        )


def _adapt(connector: Any, root: str) -> None:
    registry = connector.ACCELERATOR_REGISTRY
    if not register(registry, connector.Accelerator, connector.XLAAccelerator):
        return
    parser = import_module(f"{root}.utilities.device_parser")
    seed = import_module(f"{root}.utilities.seed")
    ddp = import_module(f"{root}.strategies.ddp").DDPStrategy
    fsdp = import_module(f"{root}.strategies.fsdp").FSDPStrategy
    replace_everywhere(parser, "_select_auto_accelerator", _make_choose_auto)
    adapt_connector(connector, connector._Connector, ("_precision_instance", "_precision_input"))
    replace(ddp, "_determine_ddp_device_ids", make_no_device_ids)
    adapt_fsdp(fsdp, "_fsdp_kwargs")
    replace_everywhere(seed, "_collect_rng_states", _make_collect_random_state)
    replace_everywhere(seed, "_set_rng_states", _make_set_random_state)
    throughput = import_module(f"{root}.utilities.throughput")
    replace_everywhere(throughput, "get_available_flops", _make_flops)


def replace_everywhere(module: Any, name: str, make: Callable[[Any], Any]) -> None:
    """In the modules too that have imported the function already."""
    replace(module, name, make, *holders(name, getattr(module, name)))


# The accelerator


def register(registry: Any, base: Any, xla: Any) -> bool:
    """Puts ours under the name "tpu". False where Lightning has one there that is not torch_xla's:
    it then knows the device by itself."""
    if registry["tpu"]["accelerator"] is not xla:
        return False
    registry.register("tpu", _accelerator(base), description="torch_tpu", override=True)
    return True


def _accelerator(base: Any) -> Any:
    class TPUAccelerator(base):
        """The device "tpu" of torch_tpu. One process for each device."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != "tpu":
                raise ValueError(f"Device should be TPU, got {device} instead.")
            torch.get_device_module("tpu").set_device(device)

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            stats: dict[str, Any] = torch.get_device_module("tpu").memory_stats(device)
            return stats

        def teardown(self) -> None:
            pass

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            return parse_devices(devices)

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            # A process that sees one device has it as tpu:0, whichever its rank.
            alone = torch.get_device_module("tpu").device_count() == 1
            return [torch.device("tpu", 0 if alone else index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            # torchrun has made the processes, and each may see one device only.
            launched = os.environ.get("LOCAL_WORLD_SIZE") if _under_torchrun() else None
            return int(launched or torch.get_device_module("tpu").device_count())

        @staticmethod
        def is_available() -> bool:
            return is_the_accelerator()

        @staticmethod
        def name() -> str:
            return "tpu"

        @classmethod
        def register_accelerators(cls, accelerator_registry: Any) -> None:
            accelerator_registry.register(cls.name(), cls, description=cls.__name__)

    return TPUAccelerator


def is_the_accelerator() -> bool:
    """Whether torch's accelerator is this device, and it can be used. Starts nothing."""
    tpu = torch.get_device_module("tpu")
    return torch._C._get_accelerator().type == "tpu" and bool(tpu.is_available())


def _under_torchrun() -> bool:
    return torch.distributed.is_torchelastic_launched()


def parse_devices(devices: Any) -> list[int]:
    """2, "2", -1, "0,1" or [1], as Lightning takes them for GPUs."""
    what = "The devices of accelerator='tpu' are a number, a list of numbers, -1 or 'auto'"
    seen = torch.get_device_module("tpu").device_count()
    if isinstance(devices, str):
        try:
            numbers = [int(part) for part in devices.split(",") if part.strip()]
        except ValueError:
            raise ValueError(f"{what}, but you passed {devices!r}.") from None
        devices = numbers if "," in devices else numbers[0] if numbers else 0
    if isinstance(devices, int) and not isinstance(devices, bool):
        chosen = list(range(seen if devices == -1 else devices))
    elif isinstance(devices, (list, tuple)) and all(type(one) is int for one in devices):
        chosen = list(devices)
    else:
        raise TypeError(f"{what}, but you passed {devices!r}.")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"{what}, each at most once, but you passed {devices!r}.")
    # With one device in sight, each process that is started has its own.
    if max(chosen) >= seen and not (seen == 1 and chosen == list(range(len(chosen)))):
        raise ValueError(
            f"You requested tpu: {chosen}, but this process sees {seen} of them. "
            "Set `devices` to fewer, or TORCH_TPU_CPU_DEVICES to more on XLA:CPU."
        )
    return chosen


# What chooses strategy and precision


def adapt_connector(module: Any, connector: Any, precision_names: tuple[str, str]) -> None:
    """Fabric's or the Trainer's. `precision_names` are its attributes for a plugin that the user
    gave, and for the name of a precision."""
    replace(connector, "_choose_auto_accelerator", _make_choose_auto)

    def make_init_accelerator(original: Any) -> Any:
        def set_parallel_devices_and_init_accelerator(self: Any) -> None:
            original(self)
            if _on_tpu(self._parallel_devices):
                self._accelerator_flag = self.accelerator  # the name would mean torch_xla

        return set_parallel_devices_and_init_accelerator

    def make_choose_strategy(original: Any) -> Any:
        def choose_strategy(self: Any) -> Any:
            devices = self._parallel_devices
            if not _on_tpu(devices) or len(devices) > 1 or self._num_nodes_flag > 1:
                return original(self)
            if _under_torchrun() and int(os.environ["WORLD_SIZE"]) > 1:
                raise ValueError(
                    f"torchrun started {os.environ['WORLD_SIZE']} processes, but `devices=1` would "
                    "train a model of its own in each. Set `devices='auto'` or to the number of "
                    "processes on a machine, `num_nodes` to that of machines; or pass a strategy."
                )
            return module.SingleDeviceStrategy(device=devices[0])

        return choose_strategy

    def make_check_strategy(original: Any) -> Any:
        def check_strategy_and_fallback(self: Any) -> None:
            if not _on_tpu(self._parallel_devices):
                return original(self)
            if self._strategy_flag == "dp":
                raise ValueError(
                    "`strategy='dp'` copies a model to all devices of a process, which only CUDA "
                    "can do. Use `strategy='ddp'`, a process for each device."
                )
            with temporarily(self, "_accelerator_flag", "cuda"):  # FSDP is for no other
                return original(self)

        return check_strategy_and_fallback

    def make_precision(original: Any) -> Any:
        def check_and_init_precision(self: Any) -> Any:
            if not _on_tpu(self._parallel_devices):
                return original(self)
            given, name = (getattr(self, attribute) for attribute in precision_names)
            sharded = issubclass(type(self.strategy), module.FSDPStrategy)
            if name == "16-mixed" and sharded and given is None:
                raise ValueError(
                    "`precision='16-mixed'` with FSDP scales gradients by a class that only CUDA "
                    "has. Use `precision='bf16-mixed'`, which needs no scaling."
                )
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*GradScaler is enabled, but CUDA is not")
                precision = original(self)
            if given is None and type(precision) is module.MixedPrecision:
                return module.MixedPrecision(precision.precision, "tpu")
            if given is None and "mixed" in name and type(precision) is module.FSDPPrecision:
                return _fsdp_precision(module.FSDPPrecision)(precision.precision)
            return precision

        return check_and_init_precision

    replace(connector, "_set_parallel_devices_and_init_accelerator", make_init_accelerator)
    replace(connector, "_choose_strategy", make_choose_strategy)
    replace(connector, "_check_strategy_and_fallback", make_check_strategy)
    replace(connector, "_check_and_init_precision", make_precision)


def _make_choose_auto(original: Any) -> Any:
    def choose_auto_accelerator() -> Any:
        return "tpu" if is_the_accelerator() else original()

    return choose_auto_accelerator


def _on_tpu(devices: Any) -> bool:
    return bool(devices) and getattr(devices[0], "type", "") == "tpu"


def _fsdp_precision(base: Any) -> Any:
    class TPUFSDPPrecision(base):
        """Casts on this device, where Lightning's own does on CUDA."""

        def forward_context(self) -> Any:
            return torch.autocast("tpu", dtype=torch.bfloat16)

    return TPUFSDPPrecision


# Strategies


def make_no_device_ids(original: Any) -> Any:
    """DistributedDataParallel takes the device from the parameters. With ids, Lightning would make
    a stream of CUDA's."""

    def determine_ddp_device_ids(self: Any) -> Any:
        return None if self.root_device.type == "tpu" else original(self)

    return determine_ddp_device_ids


def adapt_fsdp(strategy: Any, arguments: str) -> None:
    """A `device_mesh` that is given by its sizes; `arguments` is the attribute that has it."""

    def make(original: Any) -> Any:
        def setup_environment(self: Any) -> None:
            from torch.distributed.device_mesh import init_device_mesh

            kwargs = getattr(self, arguments)
            sizes = kwargs.get("device_mesh")
            if self.root_device.type != "tpu" or not isinstance(sizes, tuple):
                original(self)
                return
            del kwargs["device_mesh"]
            original(self)
            kwargs["device_mesh"] = init_device_mesh("tpu", sizes)

        return setup_environment

    replace(strategy, "setup_environment", make)


# Random numbers and figures


def _make_collect_random_state(original: Any) -> Any:
    def collect_rng_states(*args: Any, **kwargs: Any) -> dict[str, Any]:
        states: dict[str, Any] = original(*args, **kwargs)
        tpu = torch.get_device_module("tpu")
        if tpu.is_initialized():  # else no random number was drawn, and nothing is to be started
            states[_RNG_KEY] = tpu.get_rng_state_all()
        return states

    return collect_rng_states


def _make_set_random_state(original: Any) -> Any:
    def set_rng_states(rng_state_dict: dict[str, Any]) -> None:
        original(rng_state_dict)
        if _RNG_KEY in rng_state_dict:
            torch.get_device_module("tpu").set_rng_state_all(rng_state_dict[_RNG_KEY])

    return set_rng_states


def _make_flops(original: Any) -> Any:
    def get_available_flops(device: torch.device, *args: Any, **kwargs: Any) -> int | None:
        if device.type != "tpu":
            flops: int | None = original(device, *args, **kwargs)
            return flops
        from torch_tpu.aot.topologies import generation_of

        generation = generation_of(torch.get_device_module("tpu").get_device_name(device))
        return int(generation.flops) if generation else None

    return get_available_flops
