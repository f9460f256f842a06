"""What the small programs that tests start under mpirun have in common."""

from tests.mpirun import run_script

PRELUDE = """
import gc, logging, os, sys, threading, time
import numpy as np
import collectives as coll
rank, size = coll.rank(), coll.size()
total = size * (size + 1) // 2

def mine(count=1000, dtype=np.float32):
    "This rank's contribution: sums to total * (1, 2, ...)."
    return (np.arange(1, count + 1) * (rank + 1)).astype(dtype)

def summed(count=1000, dtype=np.float32):
    return (np.arange(1, count + 1) * total).astype(dtype)

def raised(kind, act):
    "The text of the error that act() must raise."
    try:
        act()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind}")
"""


def run_program(n, source, tmp_path, timeout=60, status=0, **env):
    """Run PRELUDE and `source` on n ranks; what it printed.

    status : that of the job; a number, "failure" or "any"
    env : environment variables
    """
    job = run_script(n, PRELUDE + source, tmp_path, timeout=timeout, env=env)
    ended_well = {"failure": job.returncode != 0, "any": True}.get(status, job.returncode == status)
    assert ended_well, f"status {job.returncode}\n{job.stdout}"
    return job.stdout
