"""Fourier transforms: real and complex, one and several dimensions, normalizations."""

from __future__ import annotations

import torch
from ops.harness import Case, cases

REAL = (torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)


def transform(name, fn, *args, dtypes=COMPLEX, shape=(3, 4, 5), **kwargs):
    return Case(name, fn, lambda make: (make(*shape), *args), dtypes=dtypes, kwargs=kwargs)


@cases(
    transform("fft", torch.fft.fft, dtypes=(*COMPLEX, torch.float32)),
    transform("fft_longer", torch.fft.fft, 8, 1, norm="ortho"),
    transform("ifft", torch.fft.ifft, dim=0),
    transform("ifft_forward", torch.fft.ifft, norm="forward"),
    transform("fft2", torch.fft.fft2, dim=(0, 2)),
    transform("ifftn", torch.fft.ifftn, norm="ortho"),
    transform("fftn_4", torch.fft.fftn, shape=(2, 3, 2, 5)),
    transform("rfft", torch.fft.rfft, dtypes=REAL),
    transform("rfft_first", torch.fft.rfft, dim=0, norm="ortho", dtypes=REAL),
    transform("rfftn", torch.fft.rfftn, dim=(2, 0), dtypes=REAL),
    transform("irfft", torch.fft.irfft),
    transform("irfft_odd", torch.fft.irfft, 7, 1, norm="forward"),
    transform("irfftn", torch.fft.irfftn, dim=(0, 1)),
    transform("hfft", torch.fft.hfft),
    transform("ihfft", torch.fft.ihfft, dtypes=REAL),
)
def test_fft(case, dtype):
    case.check(dtype)
