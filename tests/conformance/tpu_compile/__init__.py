"""Compiles every entry of the op table with the real TPU compiler, ahead of time, with no chip.

record*.py runs ops on XLA:CPU and keeps the programs they become, compile.py gives them to libtpu
in a child process (torch_tpu.aot.child), table.py makes tests/conformance/tpu_compile.json of the
answers.
"""
