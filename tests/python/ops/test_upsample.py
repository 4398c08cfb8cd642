"""Interpolation in all modes, and grid sampling."""

import pytest
import torch
import torch.nn.functional as F
from ops.harness import FLOATS, Case, cases

SHAPES = {1: (2, 3, 5), 2: (2, 3, 5, 4), 3: (1, 2, 3, 4, 5)}
MODES = [
    ("nearest", 1), ("nearest", 2), ("nearest", 3),
    ("nearest-exact", 1), ("nearest-exact", 2), ("nearest-exact", 3),
    ("linear", 1), ("bilinear", 2), ("trilinear", 3), ("bicubic", 2),
]  # fmt: skip
SIZES = {"up": (9, 8, 10), "down": (3, 2, 2), "double": (10, 8, 6), "same": (5, 4, 5)}


def sized(n, **kwargs):
    return lambda make: (make(*SHAPES[n]), kwargs)


def mode_cases():
    for mode, n in MODES:
        dtypes = FLOATS if n == 2 else FLOATS[:1]
        for name, size in SIZES.items():
            yield Case(
                f"{mode}{n}d-{name}",
                F.interpolate,
                sized(n, size=size[:n], mode=mode),
                dtypes=dtypes if name == "up" else FLOATS[:1],
            )
        yield Case(
            f"{mode}{n}d-factor",
            F.interpolate,
            sized(n, scale_factor=(1.7, 0.6, 2.0)[:n], mode=mode),
        )
        if "linear" in mode or mode == "bicubic":
            yield Case(
                f"{mode}{n}d-corners",
                F.interpolate,
                sized(n, size=SIZES["up"][:n], mode=mode, align_corners=True),
            )


@cases(
    *mode_cases(),
    Case(
        "bilinear-antialias", F.interpolate, sized(2, size=(3, 2), mode="bilinear", antialias=True)
    ),
    Case("bicubic-antialias", F.interpolate, sized(2, size=(2, 9), mode="bicubic", antialias=True)),
    Case("area", F.interpolate, sized(2, size=(3, 3), mode="area")),
)
def test_interpolate(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_bytes(mode):
    x = torch.randint(0, 256, (1, 3, 6, 5), dtype=torch.uint8)
    want = F.interpolate(x, size=(9, 11), mode=mode)
    got = F.interpolate(x.to("tpu"), size=(9, 11), mode=mode)
    assert (got.cpu().int() - want.int()).abs().max() <= (1 if mode == "bicubic" else 0)


def sampled(shape, grid, **kwargs):
    return lambda make: (make(*shape), make(*grid, low=-1.6, high=1.6), kwargs)


def sampler_cases():
    for padding in ("zeros", "border", "reflection"):
        for mode in ("bilinear", "nearest", "bicubic"):
            options = {"mode": mode, "padding_mode": padding}
            for corners in (False, True):
                yield Case(
                    f"2d-{mode}-{padding}-{'corners' if corners else 'centres'}",
                    F.grid_sample,
                    sampled((2, 3, 5, 6), (2, 4, 3, 2), align_corners=corners, **options),
                    rtol=1e-4,
                    atol=1e-4,
                )
            if mode != "bicubic":
                yield Case(
                    f"3d-{mode}-{padding}",
                    F.grid_sample,
                    sampled((1, 2, 4, 5, 6), (1, 2, 3, 4, 3), align_corners=False, **options),
                    rtol=1e-4,
                    atol=1e-4,
                )


@cases(*sampler_cases())
def test_grid_sample(case, dtype):
    case.check(dtype)
