"""Which tests are collected, which start MPI jobs, and where they import their helpers from."""

import inspect
import sys
from pathlib import Path

HERE = Path(__file__).parent
LAUNCHERS = ("tests.mpirun", "tests.programs")

# For `tests.mpirun` and the like.  Last, so that it is the installed package that is tested.
sys.path.append(str(HERE.parent))


def pytest_ignore_collect(collection_path, config):
    """Tests for several ranks are collected under mpirun only; test_mpi_suite.py sees to that."""
    if collection_path == HERE / "mpi" and not config.getoption("--with-mpi"):
        return True
    return None


def pytest_collection_modifyitems(items):
    """Mark what depends on the MPI library, for `pytest -m launches_mpi` under another one."""
    for item in items:
        names = vars(item.module).values()
        if any(inspect.isfunction(f) and f.__module__ in LAUNCHERS for f in names):
            item.add_marker("launches_mpi")
