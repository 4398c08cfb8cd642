"""docs/environment.md is what the code says."""

from __future__ import annotations

from pathlib import Path

import torch_tpu
from torch_tpu import _environment

PAGE = Path(torch_tpu.__file__).parents[1] / "docs" / "environment.md"


def test_page_is_up_to_date():
    hint = "run: python -m torch_tpu._environment > docs/environment.md"
    assert PAGE.read_text(encoding="utf-8") == _environment.markdown(), hint


def test_every_variable_is_a_row_of_four_cells():
    rows = [line for line in _environment.markdown().splitlines() if "| `TORCH_TPU_" in line]
    assert len(rows) == len({row.split("|")[1] for row in rows}) > 5
    assert all(row.count("|") == 5 for row in rows)
