"""The simulator is no installed package: it lies beside the tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "sim"))
