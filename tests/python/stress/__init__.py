"""Threads, modes, devices, views, compiled functions and errors mixed at random in one process,
every value compared with the CPU's; see `python -m stress --help`.

`worker.py`: a thread and its two sets of names, on the device and on the CPU. `own.py`,
`shared.py`, `faults.py`: what a worker does. `compiled.py`: the compiled functions. `rounds.py`:
draws a round, runs it, compares. `watch.py`: hangs and growth. `history.py`: what happened.

All numbers are integers small enough to be exact in any order, so results are equal or wrong.
"""

from __future__ import annotations
