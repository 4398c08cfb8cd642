"""What `torch.compile(..., mode=, options=)` may say."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

# PyTorch's own names. XLA has one way of compiling, so they all mean the same.
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Options:
    """Of one compiled function."""

    # What happens to a graph that cannot be one program: run op by op after a warning, or raise.
    fallback: str = "warn"
    # Programs of one graph for different layouts and numbers before it runs op by op.
    max_variants: int = 64
    # Programs that serve every size up to a bound, where sizes vary.
    bounded: bool = True

    @staticmethod
    def parse(mode: str | None, options: dict[str, Any] | None) -> Options:
        """Raises as Inductor does for what it does not know."""
        if mode is not None and mode not in _MODES:
            raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {', '.join(_MODES)}")
        known = {field.name: field for field in fields(Options)}
        values: dict[str, Any] = {}
        for key, value in (options or {}).items():
            name = key.replace("-", "_")
            if name not in known:
                raise RuntimeError(
                    f"Unexpected optimization option {key}, known options are {list(known)}"
                )
            expected = type(known[name].default)
            if not isinstance(value, expected):
                raise RuntimeError(
                    f"Unexpected type of attr {key}, got {type(value).__name__} "
                    f"should be {expected.__name__}"
                )
            values[name] = value
        parsed = Options(**values)
        if parsed.fallback not in ("warn", "error"):
            raise RuntimeError(f"fallback must be 'warn' or 'error', got {parsed.fallback!r}")
        return parsed
