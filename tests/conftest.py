"""Which tests are collected, and where they import their helpers from."""

import sys
from pathlib import Path

HERE = Path(__file__).parent

# For `tests.mpirun` and the like.  Last, so that it is the installed package that is tested.
sys.path.append(str(HERE.parent))


def pytest_ignore_collect(collection_path, config):
    """Tests for several ranks are collected under mpirun only; test_mpi_suite.py sees to that."""
    if collection_path == HERE / "mpi" and not config.getoption("--with-mpi"):
        return True
    return None
