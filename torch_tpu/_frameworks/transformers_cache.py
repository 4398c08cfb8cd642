"""transformers' caches that keep the layers at rest in host memory (`cache_implementation=
"offloaded"`): they order their copies by the streams of torch.cuda. Here nothing needs that order:
a copy takes the value that a tensor has when it is called."""

from __future__ import annotations

from typing import Any

from torch_tpu._replace import replace, temporarily


def adapt(module: Any) -> None:
    """Does nothing where the cache has no such streams."""
    cache = module.Cache
    if "cuda" not in cache.update.__code__.co_names:
        return

    def make(original: Any) -> Any:
        def update(
            self: Any, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any
        ) -> Any:
            call = self, key_states, value_states, layer_idx, *args
            if not self.offloading or key_states.device.type != "tpu":
                return original(*call, **kwargs)
            with temporarily(self, "offloading", False):
                result = original(*call, **kwargs)
            # The one at rest goes first: the next may be the same.
            self.offload(layer_idx, self.only_non_sliding)
            self.prefetch(layer_idx + 1, self.only_non_sliding)
            return result

        return update

    replace(cache, "update", make)
