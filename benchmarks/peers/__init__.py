"""Other implementations that are measured beside this one. Each runs in its own interpreter."""
