"""What the TPU compiler does not take, and why that stands: entry -> dtypes -> reason."""

from __future__ import annotations

_FFT = "the TPU has no FFT of float64; its own is float32"

KNOWN: dict[str, dict[str, str]] = {
    "_fft_c2c": {"complex<f64>": _FFT},
    "_fft_c2r": {"complex<f64>,f64": _FFT},
    "_fft_r2c": {"complex<f64>,f64": _FFT},
}
