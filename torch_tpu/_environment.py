"""The table of environment variables in the documentation, from the one the code reads:
python -m torch_tpu._environment > docs/environment.md"""

from __future__ import annotations

from torch_tpu import _C

_HEADER = """\
# Environment variables

Read when they are first needed, so they can also be set from Python before that. A value that is
not allowed is an error that names the variable. An empty value counts as unset.

<!-- Written by `python -m torch_tpu._environment > docs/environment.md`; do not edit. -->

| variable | default | allowed | meaning |
|---|---|---|---|
"""


def markdown() -> str:
    """The page `docs/environment.md`."""
    rows = [
        f"| `{row['name']}` | {_code(row['default'])} | {row['allowed']} | {row['doc']} |\n"
        for row in _C._env_table()
    ]
    return _HEADER + "".join(rows)


def _code(value: str) -> str:
    return f"`{value}`" if value else "none"


if __name__ == "__main__":
    print(markdown(), end="")
