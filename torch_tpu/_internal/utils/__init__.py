"""See torch_tpu/_internal."""
