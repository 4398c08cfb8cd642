"""PyTorch's own test programs (its folder `test`), run as they are against the device."""
