"""PyTorch's own test data (OpInfo, ModuleInfo, OptimizerInfo) run on the device against the CPU."""
