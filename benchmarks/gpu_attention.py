"""Attention on XLA:CUDA: is it right, and how long does it take?

Checks forward and gradients of scaled_dot_product_attention in each form it has (cuDNN's kernel,
a loop over blocks, all scores at once) against the CPU's math in float32, then times them against
torch's own CUDA kernels at 8x12x1024x64. A program that the compiler refuses is reported with all
the compiler says.

    python benchmarks/gpu_attention.py
    python benchmarks/gpu_attention.py --tiny        # the same code on the CPU, in small
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 5e-3, torch.float32: 2e-4}
BF16 = torch.bfloat16


@dataclass
class Case:
    """One call: shapes as (batch, heads, query length, key length, width)."""

    name: str
    shape: tuple[int, int, int, int, int] = (2, 4, 256, 256, 64)
    dtype: torch.dtype = BF16
    kv_heads: int = 0
    mask: Callable[[Any], Tensor] | None = None
    mask_grad: bool = False
    length_first: bool = False  # made as [B, L, H, E]
    cudnn: bool = True  # whether it is one for cuDNN's kernel
    options: dict[str, Any] = field(default_factory=dict)


def hidden_rows(make: Any) -> Tensor:
    """A mask with rows that see nothing."""
    mask = make(2, 1, 256, 256) > 0
    mask[0, :, 3] = False
    mask[1, :, 200:] = False
    return mask


CASES = [
    Case("plain"),
    Case("causal", options={"is_causal": True}),
    Case("causal f16", dtype=torch.float16, options={"is_causal": True}),
    Case("causal, length first", length_first=True, options={"is_causal": True}),
    Case("length first, grouped", kv_heads=2, length_first=True, options={"enable_gqa": True}),
    Case("grouped", kv_heads=2, options={"enable_gqa": True, "is_causal": True}),
    Case("one head for all", kv_heads=1, options={"enable_gqa": True}),
    Case("width 128", (2, 4, 256, 256, 128), options={"is_causal": True}),
    Case("width 40", (2, 4, 256, 256, 40)),
    Case("odd lengths", (2, 4, 253, 131, 64)),
    Case("odd lengths, causal", (2, 4, 253, 131, 64), options={"is_causal": True}),
    Case("longer key, causal", (2, 4, 128, 512, 64), options={"is_causal": True}),
    Case("lengths 64", (2, 4, 64, 64, 64)),
    Case("scale 1", options={"scale": 1.0}),
    Case("scale 0.07", options={"scale": 0.07}),
    Case("bool mask", mask=lambda make: make(2, 1, 256, 256) > 0),
    Case("bool mask, empty rows", mask=hidden_rows),
    Case("bool mask, padding", mask=lambda make: make(2, 1, 1, 256) > 0),
    Case("bool mask, 2-d", mask=lambda make: make(256, 256) > 0),
    Case("bool mask, length first", length_first=True, mask=lambda make: make(256, 256) > 0),
    Case("float mask", mask=lambda make: make(2, 4, 256, 256)),
    Case("bias per head, gradient", mask=lambda make: make(1, 4, 256, 256), mask_grad=True),
    Case(
        "bias per batch, gradient",
        mask=lambda make: make(2, 1, 256, 256),
        mask_grad=True,
        cudnn=False,
    ),
    Case("width 20", (2, 4, 256, 256, 20), cudnn=False, options={"is_causal": True}),
    Case("f32", dtype=torch.float32, cudnn=False),
    Case("f32 causal", dtype=torch.float32, cudnn=False, options={"is_causal": True}),
]


def synchronize(device: str) -> None:
    """Waits for the device."""
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "tpu":
        import torch_tpu

        torch_tpu.tpu.synchronize()


def inputs_of(case: Case) -> tuple[list[Tensor], Tensor | None, Tensor]:
    """Query, key and value, the mask, and the gradient of the output, all on the CPU."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(case.dtype)

    batch, heads, rows, columns, width = case.shape
    qkv = []
    for count, length in ((heads, rows), *[(case.kv_heads or heads, columns)] * 2):
        shape = (
            (batch, length, count, width) if case.length_first else (batch, count, length, width)
        )
        x = make(*shape)
        qkv.append(x.transpose(1, 2) if case.length_first else x)
    mask = case.mask(make) if case.mask else None
    return qkv, mask, make(batch, heads, rows, width)


def attend(case: Case, device: str, wide: bool = False) -> list[Tensor]:
    """Output and gradients."""
    qkv, mask, weight = inputs_of(case)
    dtype = torch.float32 if wide else case.dtype
    given = [x.to(device, dtype).detach().requires_grad_() for x in qkv]
    leaves = list(given)
    if mask is not None:
        mask = mask.to(device) if mask.dtype == torch.bool else mask.to(device, dtype)
        if case.mask_grad:
            leaves.append(mask.requires_grad_())
    out = F.scaled_dot_product_attention(*given, attn_mask=mask, **case.options)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight.to(device, dtype))]


class Programs:
    """What was compiled since one last looked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        os.environ["TORCH_TPU_DUMP"] = str(folder)
        self.seen: set[Path] = set()

    def new(self) -> set[str]:
        """The forms among the new programs of attention."""
        files = set(self.folder.glob("*attention*.mlir"))
        texts = [f.read_text() for f in files - self.seen]
        self.seen |= files
        return {
            "cudnn" if "__cudnn$" in t else "blocks" if "stablehlo.while" in t else "at once"
            for t in texts
        }


def check(case: Case, form: str, programs: Programs, want: list[Tensor]) -> bool:
    """One line about one form of one case; whether all is well."""
    import torch_tpu

    torch_tpu._C._set_attention_form(form, 64 if form == "blocks" else 0)
    label = f"  {case.name:<26} {form:<7}"
    programs.new()
    try:
        got = attend(case, "tpu")
        errors = []
        for g, w in zip(got, want, strict=True):
            scale = max(1.0, w.abs().max().item())
            errors.append((g.cpu().float() - w).abs().max().item() / scale)
    except Exception as error:
        print(f"{label} FAILED: {type(error).__name__}: {error}\n", flush=True)
        return False
    made = programs.new()
    # max() would lose a NaN.
    good = all(e <= TOLERANCE[case.dtype] for e in errors)
    expected = {"auto": "cudnn" if case.cudnn else None, "blocks": "blocks"}.get(form)
    if expected and made and made != {expected}:
        label += " (NOT " + expected + ")"
        good = False
    text = " ".join(f"{e:.1e}" for e in errors)
    print(f"{label} {'ok   ' if good else 'WRONG'} {text} {sorted(made)}", flush=True)
    return good


def check_dropout(form: str, tiny: bool) -> bool:
    """With one-hot values the output is the dropped attention matrix itself."""
    import torch_tpu

    torch_tpu._C._set_attention_form(form, 64 if form == "blocks" else 0)
    n, p = 128, 0.25
    qkv, _, weight = inputs_of(Case("", (2, 4, n, n, n)))
    q, k = (x.to("tpu").requires_grad_() for x in qkv[:2])
    eye = torch.eye(n, dtype=BF16).expand(2, 4, n, n).to("tpu").requires_grad_()
    try:
        torch.manual_seed(5)
        plain = F.scaled_dot_product_attention(q, k, eye)
        out = F.scaled_dot_product_attention(q, k, eye, dropout_p=p)
        other = F.scaled_dot_product_attention(q, k, eye, dropout_p=p)
        torch.manual_seed(5)
        F.scaled_dot_product_attention(q, k, eye)
        again = F.scaled_dot_product_attention(q, k, eye, dropout_p=p)
        grad = weight[..., :n].to("tpu")
        got = torch.autograd.grad(out, (q, k, eye), grad)
        kept = (out != 0).detach()
        want = torch.autograd.grad(torch.where(kept, plain / (1 - p), 0), (q, k), grad)
        share = kept.float().mean().item()
        value = (out.float().mT @ grad.float() - got[2].float()).abs().max().item()
        errors = [
            value,
            *((g - w).float().abs().max().item() for g, w in zip(got[:2], want, strict=True)),
        ]
        new = ((other != 0) != kept).float().mean().item()
        same = torch.equal(again.cpu(), out.cpu())
    except Exception as error:
        print(f"  dropout {form} FAILED: {type(error).__name__}: {error}\n", flush=True)
        return False
    good = abs(share - (1 - p)) < 0.02 and same and new > 0.1 and max(errors) < 0.1
    text = " ".join(f"{e:.1e}" for e in errors)
    print(
        f"  dropout {form:<7} {'ok   ' if good else 'WRONG'} kept {share:.3f}, repeats {same}, "
        f"another mask in {new:.2f}, dv dq dk {text}",
        flush=True,
    )
    return good


def times(device: str, form: str, shape: tuple[int, int, int, int], **options: Any) -> str:
    """Medians of the forward alone, and of forward and backward."""
    qkv = [torch.randn(shape).to(BF16).to(device).requires_grad_() for _ in range(3)]
    weight = torch.randn(shape).to(BF16).to(device)

    def forward() -> None:
        with torch.no_grad():
            F.scaled_dot_product_attention(*qkv, **options)

    def both() -> None:
        out = F.scaled_dot_product_attention(*qkv, **options)
        torch.autograd.grad(out, qkv, weight)

    def median(work: Callable[[], None]) -> float:
        calls = 10  # queued one after the other, as in a model
        taken = []
        for i in range(8):
            synchronize(device)
            begin = time.perf_counter()
            for _ in range(calls):
                work()
            synchronize(device)
            if i > 1:
                taken.append((time.perf_counter() - begin) / calls)
        return statistics.median(taken) * 1e3

    return f"forward {median(forward):.3f} ms, with backward {median(both):.3f} ms"


def time_all(device: str, forms: list[str], tiny: bool) -> bool:
    """Each form at the sizes of interest."""
    good = True
    for shape in [(2, 2, 64, 16)] if tiny else [(8, 12, 1024, 64), (1, 12, 8192, 64)]:
        for options in ({"is_causal": True}, {}, {"is_causal": True, "dropout_p": 0.1}):
            for form in forms:
                name = f"  {'x'.join(map(str, shape))} {options} {form}"
                try:
                    if device == "tpu":
                        import torch_tpu

                        torch_tpu._C._set_attention_form(form)
                    print(f"{name}: {times(device, form, shape, **options)}", flush=True)
                except Exception as error:
                    good = False
                    print(f"{name} FAILED: {type(error).__name__}: {error}\n", flush=True)
    return good


def run_ours(tiny: bool) -> bool:
    """All checks, then the times."""
    import torch_tpu

    torch_tpu.set_mode("strict")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(Path(folder))
        for case in CASES:
            with sdpa_kernel(SDPBackend.MATH):
                want = attend(case, "cpu", wide=True)
            for form in ["blocks", "plain"] if tiny else ["auto", "blocks"]:
                good &= check(case, form, programs, want)
        for form in ["blocks", "plain"] if tiny else ["auto", "blocks", "plain"]:
            good &= check_dropout(form, tiny)
        os.environ.pop("TORCH_TPU_DUMP")
    good &= time_all("tpu", ["blocks", "plain"] if tiny else ["auto", "blocks", "plain"], tiny)
    print("all is well" if good else "SOMETHING IS WRONG", flush=True)
    return good


def main() -> int:
    """torch's times in a process of their own: its backward on CUDA needs one without ours."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="on the CPU, without cuDNN")
    parser.add_argument("--part", choices=["ours", "torch"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        device = "cpu" if args.tiny else "cuda"
        ours = args.part == "ours"
        good = run_ours(args.tiny) if ours else time_all(device, [device], args.tiny)
        sys.stdout.flush()
        os._exit(0 if good else 1)
    env = {
        "TORCH_TPU_PLUGIN": "cpu" if args.tiny else "cuda",
        "TORCH_TPU_FALLBACK": "error",
        **os.environ,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    failed = False
    for part in ("torch", "ours"):
        print(f"{part}:", flush=True)
        command = [sys.executable, __file__, "--part", part, *["--tiny"] * args.tiny]
        failed |= subprocess.run(command, env=env, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
