"""JAX and Pallas functions as ops: what is refused and how, and that JAX comes only when needed."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

jnp = pytest.importorskip("jax").numpy

import torch_tpu  # noqa: E402, F401
from torch_tpu.pallas import _jax, jax_op  # noqa: E402


def tanh_product(x, y, factor: float = 2.0):
    return jnp.tanh(x @ y) * factor


def test_wrong_shapes_say_what_was_given():
    op = jax_op("test_pallas_errors::tanh", tanh_product)
    x, y = torch.ones(4, 5, device="tpu"), torch.ones(4, 3, device="tpu")
    for call in (op, torch.compile(lambda *args: op(*args), fullgraph=True)):
        with pytest.raises(
            RuntimeError,
            match=r"tanh\] JAX cannot trace the kernel for \(x: float32\[4, 5\], y: "
            r"float32\[4, 3\], factor=2.0\)\. TypeError: dot_general requires .*jax.eval_shape",
        ):
            call(x, y)
    with pytest.raises(RuntimeError, match="same device"):
        op(x, torch.ones(5, 3))
    with pytest.raises(RuntimeError, match="missing value for argument 'y'"):
        op.op(x)


def test_wrong_definitions():
    with pytest.raises(ValueError, match="'ns::name', got 'name'"):
        jax_op("name", lambda x: x)
    with pytest.raises(TypeError, match="'n' is not known"):
        jax_op("test_pallas_errors::bad", lambda x, n: x, static_argnames=("n",))
    with pytest.raises(TypeError, match=r"'\*xs' has no place"):
        jax_op("test_pallas_errors::bad", lambda *xs: xs[0])
    with pytest.raises(TypeError, match="only a float can be traced"):
        jax_op("test_pallas_errors::bad", lambda x, n=1: x, traced_argnames=("n",))
    with pytest.raises(TypeError, match="has no argument 'm'; it has x, n"):
        jax_op("test_pallas_errors::bad", lambda x, n=1: x, static_argnames=("m",))
    with pytest.raises(TypeError, match="'n' cannot be donated; its tensors are x"):
        jax_op("test_pallas_errors::bad", lambda x, n=1: x, donate_argnames=("n",))
    with pytest.raises(ValueError, match="donated to output 1, but there are 1"):
        jax_op("test_pallas_errors::bad", lambda x: x, donate_argnames={"x": 1})
    with pytest.raises(TypeError, match="needs an argument that is an array"):
        jax_op("test_pallas_errors::bad", lambda n=1: n)
    two = jax_op("test_pallas_errors::two", lambda x: (x, x))
    with pytest.raises(RuntimeError, match=r"returned \(\*, \*\) where \* is declared.*outputs=2"):
        two(torch.ones(1, device="tpu"))


def test_names_in_text():
    module = textwrap.dedent("""\
        module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
          func.func public @main(%arg0: tensor<2xf32>) -> (tensor<2xf32> {jax.result_info = "a"}) {
            %0 = call @main_0(%arg0) : (tensor<2xf32>) -> tensor<2xf32>
            %1 = stablehlo.custom_call @main_0(%0) {backend_config = "@main"} : ...
            return %1 : tensor<2xf32>
          }
          func.func private @main_0(%arg0: tensor<2xf32>) -> tensor<2xf32> {
          }
        }
        """)
    symbol, text = _jax.extract_functions(module, "ns.f")
    assert symbol.startswith("ns_f_")
    assert f"func.func private @{symbol}(" in text
    assert f"call @{symbol}_main_0(%arg0)" in text
    assert 'custom_call @main_0(%0) {backend_config = "@main"}' in text
    assert "result_info" not in text
    with pytest.raises(ValueError, match="cannot be taken apart"):
        _jax.extract_functions("#map = affine_map<>\nmodule {\n}", "f")


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_of_jax_starts_before_it_is_needed():
    out = run_python("""
        import sys, torch, torch_tpu
        from torch_tpu import kernels
        op = torch_tpu.jax_op("test::f", lambda x: x + 1)
        assert "jax" not in sys.modules
        print(op(torch.zeros(1, device="tpu")).item())
        from jax._src import xla_bridge
        assert not xla_bridge._backends, "JAX started a client"
        import jax
        print(jax.numpy.ones(2).sum())  # the user's own goes on as always
    """)
    assert out.split() == ["1.0", "2.0"]


def test_without_jax():
    out = run_python("""
        import sys, torch, torch_tpu
        sys.modules["jax"] = None
        from torch_tpu import kernels
        x = torch.ones(2, device="tpu")
        for call in (lambda: kernels.rms_norm(x, x), lambda: torch_tpu.jax_op("t::f", abs)):
            try:
                call()
            except Exception as error:
                print(type(error).__name__, error)
    """)
    assert "need JAX, which is not installed. Install it: pip install torchtpu[jax]" in out
