"""What test_mpi_suite.py starts on each rank: pytest, with the rank's output in its own file.

    mpirun -n 4 python each_rank.py LOGS [pytest arguments]      writes LOGS/rank0.log, ...
"""

import os
import sys
from pathlib import Path

import pytest
from mpi4py import MPI


def main(logs: str, *arguments: str) -> int:
    path = Path(logs) / f"rank{MPI.COMM_WORLD.rank}.log"
    with path.open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    return pytest.main(["--with-mpi", "-n", "0", "-p", "no:cacheprovider", *arguments])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
