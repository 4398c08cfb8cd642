"""PyTorch's own test programs (the files of its `test` folder), run as they are against the device."""
