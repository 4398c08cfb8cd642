"""`python -m torch_tpu`: the command line."""

import sys

from torch_tpu.cli import main

sys.exit(main())
