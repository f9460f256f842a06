"""What a reader needs to know about machine and software, and nothing else.

Every fact is asked for by name here.  Nothing is printed whole that may hold names of hosts or
users, paths or environment variables.
"""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from buffers import cache_nbytes
from mpi4py import MPI

PACKAGES = ("numpy", "numba", "mpi4py", "torch")


def facts(comm: MPI.Comm) -> list[str]:
    """One line each.  Collective."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    local, cores = host.size, len(set().union(*host.allgather(_affinity())))
    host.Free()
    found = [", ".join([f"python {platform.python_version()}",
                        *(f"{name} {_package(name)}" for name in PACKAGES), mpi_library()]),
             f"{_processor()}, last-level cache {cache_nbytes() >> 20} MiB, {platform.system()}",
             f"{comm.size} ranks, {local} on the host of rank 0, which has {cores} cores for them"]
    return found + oversubscription(local, cores)


def oversubscription(ranks: int, cores: int) -> list[str]:
    """A warning if a host has more ranks than cores."""
    if ranks <= cores:
        return []
    return ["WARNING: more ranks than cores: the times include waiting for a core"]


def mpi_library(text: str | None = None) -> str:
    """Name and version only: the full text holds build paths and host names."""
    first = (text or MPI.Get_library_version()).splitlines()[0].split(",")[0]
    return " ".join(first.replace("Version:", "").strip("\0 ").split())


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _processor() -> str:
    """The processor's name, where the system tells, or its family."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) \
        if info.exists() else None
    return found[1].strip() if found else platform.machine()
