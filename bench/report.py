"""Header, table, comparison and JSON of a bench, in nccl-tests' columns."""

import json
import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from mpi4py import MPI

COLUMNS = (  # heading, width, how a row fills it
    ("size(B)", 11, lambda r: r["nbytes"]),
    ("count", 11, lambda r: r["count"]),
    ("type", 10, lambda r: r["dtype"]),
    ("redop", 6, lambda r: r["op"]),
    ("place", 6, lambda r: place(r)),
    ("algorithm", 19, lambda r: r["algorithm"]),
    ("compression", 14, lambda r: r["compression"]),
    ("wire(B)", 11, lambda r: "-" if r["wire_nbytes"] is None else round(r["wire_nbytes"])),
    ("time(us)", 11, lambda r: f"{r['time_us']:.1f}"),
    ("min", 11, lambda r: f"{r['time_min_us']:.1f}"),
    ("max", 11, lambda r: f"{r['time_max_us']:.1f}"),
    ("algbw", 8, lambda r: f"{r['algbw']:.3f}"),
    ("busbw", 8, lambda r: f"{r['busbw']:.3f}" if r["ranks"] > 1 else "-"),
    ("#wrong", 8, lambda r: r["wrong"]),
)


def place(row: dict) -> str:
    """Where the result of the row's calls went."""
    return "in" if row["in_place"] else "out"


def label(row: dict) -> str:
    """The row's algorithm, and its codec if it has one."""
    codec = row["compression"]
    return row["algorithm"] + ("" if codec == "none" else f"/{codec}")


def heading() -> str:
    """The line above the table.  time is the median; bandwidths are in GB/s = 1e9 B/s."""
    return "#" + " ".join(f"{name:>{width}}" for name, width, _ in COLUMNS)


def line(row: dict) -> str:
    """One row of the table."""
    return " " + " ".join(f"{fill(row)!s:>{width}}" for _, width, fill in COLUMNS)


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _mpi_library() -> str:
    """Name and version only: the full text holds build paths and host names."""
    first = MPI.Get_library_version().splitlines()[0].split(",")[0]
    return " ".join(first.replace("Version:", "").strip("\0 ").split())


def facts(comm: MPI.Comm) -> list[str]:
    """What a reader needs to know about machine and software.  Collective."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    local = host.size
    host.Free()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = [f"python {platform.python_version()}, numpy {_package('numpy')}, "
             f"numba {_package('numba')}, {_mpi_library()}",
             f"{comm.size} ranks, {local} on the host of rank 0, which has {cores} cores for them"]
    if local > cores:
        found.append("WARNING: more ranks than cores: the times include waiting for a core")
    return found


def comparison(rows: Iterable[dict], baselines: set[str]) -> list[str]:
    """Time of the best baseline over each of our times, a line per size and place."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["nbytes"], place(row)), []).append(row)
    lines = []
    for (nbytes, where), group in groups.items():
        theirs = [r["time_us"] for r in group if r["algorithm"] in baselines]
        ratios = [f"{label(r)} {min(theirs) / r['time_us']:.2f}"
                  for r in group if theirs and r["algorithm"] not in baselines]
        if ratios:
            lines.append(f"#{nbytes:>11} {where:>4}  " + "  ".join(ratios))
    if lines:
        lines.insert(0, "# best baseline's time / our time; above 1, ours is faster")
    return lines


def write_json(path: str, rows: list[dict]) -> None:
    """The rows, as a JSON list."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1)
        file.write("\n")
