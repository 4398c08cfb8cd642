"""Put on the path by tests/pytorch_tests/share.py: Python runs it at its start, in the processes
that a test starts too. PyTorch's test helpers hear of the device once they have been imported."""

from pytorch_tests.helpers import install

install()
