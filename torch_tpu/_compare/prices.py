"""The table of prices, a TOML file that the user edits."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

TEMPLATE = """\
# What an hour of each device costs you, for `torch-tpu compare`. A key is the kind of the device
# (cpu, cuda, tpu) or a part of its name ("H200", "v5e"); the longest that fits is taken.
currency = "USD"

[per_hour]
# cpu = 0.10
# H200 = 3.00
# v5e = 1.20
"""


class PriceError(Exception):
    """The table is wrong; the text says where."""


@dataclass(frozen=True)
class Prices:
    """Prices per hour, by kind or part of a name."""

    currency: str
    per_hour: dict[str, float]

    def of(self, kind: str, name: str) -> float | None:
        """The price of a device of this kind ("cuda") and name ("NVIDIA H200")."""
        fits = [
            key
            for key in self.per_hour
            if key.lower() == kind.lower() or key.lower() in name.lower()
        ]
        named = [key for key in fits if key.lower() != kind.lower()]
        best = max(named or fits, key=len, default=None)
        return None if best is None else self.per_hour[best]


def default_path() -> Path:
    """Where the user's own table lies."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "torch_tpu" / "prices.toml"


def read(path: Path) -> Prices:
    """Raises PriceError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PriceError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PriceError(f"{path}: {error}") from error
    table = data.get("per_hour", {})
    currency = data.get("currency", "USD")
    if not isinstance(table, dict) or not isinstance(currency, str):
        raise PriceError(f'{path}: expected currency = "..." and a table [per_hour]')
    for key, price in table.items():
        if isinstance(price, bool) or not isinstance(price, (int, float)) or price < 0:
            raise PriceError(f"{path}: per_hour.{key}: expected a price, got {price!r}")
    return Prices(currency, {key: float(price) for key, price in table.items()})
