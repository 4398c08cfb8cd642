"""All checks, each on its own: one that fails is a finding, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch_tpu._doctor import child, machine, packages
from torch_tpu._doctor.finding import Finding, Places

Check = Callable[[Places], Iterator[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", packages.python),
    ("torch", packages.torch),
    ("namesake", packages.namesake),
    ("native", packages.native),
    ("plugins", packages.plugins),
    ("cuda driver", packages.cuda),
    ("chips", machine.chips),
    ("cache", machine.cache),
    ("temporary files", machine.temporary),
    ("environment", child.environment),
    ("self test", child.self_test),
)


def diagnose(places: Places | None = None, self_test: bool = True) -> Iterator[Finding]:
    """The findings, in the order in which one would put things right."""
    where = places or Places()
    for name, check in CHECKS:
        if name == "self test" and not self_test:
            continue
        try:
            yield from check(where)
        except Exception as error:  # a machine stranger than we thought
            message = f"this check failed: {type(error).__name__}: {error}"
            yield Finding(name, "problem", message, "report this as a bug of torch-tpu doctor")
