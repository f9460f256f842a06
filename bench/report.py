"""Table, comparison of contenders and JSON of a bench, in nccl-tests' columns."""

import json
from collections.abc import Iterable, Iterator
from math import exp, fsum, log

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
THEIRS = frozenset({"mpi", "gloo"})  # `algorithm` of baselines
# What a row must have to be compared or drawn.  `collective` was not written before there were
# others than allreduce.
NEEDED = {"nbytes", "dtype", "op", "algorithm", "compression", "ranks", "in_place", "time_us"}


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


def ratios(rows: Iterable[dict], theirs=THEIRS) -> Iterator[tuple[dict, float]]:
    """Each row of ours, with the time of the best baseline over its time.

    A baseline that is not exact is no rival of a row of ours that is.
    """
    rows = list(rows)
    for row in rows:
        rivals = [r["time_us"] for r in rows if r["algorithm"] in theirs
                  and (r["nbytes"], r["in_place"]) == (row["nbytes"], row["in_place"])
                  and (r["compression"] == "none" or row["compression"] != "none")]
        if rivals and row["algorithm"] not in theirs:
            yield row, min(rivals) / row["time_us"]


def comparison(rows: Iterable[dict], theirs=THEIRS) -> list[str]:
    """The ratios, a line per size and place, and their geometric means."""
    lines: dict[tuple, list[str]] = {}
    for row, ratio in ratios(rows, theirs):
        lines.setdefault((row["nbytes"], place(row)), []).append(f"{label(row)} {ratio:.2f}")
    if not lines:
        return []
    means = "  ".join(f"{name} {mean:.2f}" for name, (mean, _) in summary(rows, theirs).items())
    return ["# best baseline's time / our time; above 1, ours is faster",
            *(f"#{nbytes:>11} {where:>4}  {'  '.join(found)}"
              for (nbytes, where), found in lines.items()),
            f"#{'all':>11} {'':>4}  {means}  (geometric mean)"]


def summary(rows: Iterable[dict], theirs=THEIRS) -> dict[str, tuple[float, float]]:
    """Of each of ours: the geometric mean of its ratios over sizes and places, and the least."""
    found: dict[str, list[float]] = {}
    for row, ratio in ratios(rows, theirs):
        found.setdefault(label(row), []).append(ratio)
    return {name: (exp(fsum(map(log, values)) / len(values)), min(values))
            for name, values in found.items()}


def write_json(path: str, rows: list[dict]) -> None:
    """The rows, as a JSON list."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1)
        file.write("\n")


def read_json(path: str) -> list[dict]:
    """What `write_json` wrote; raises ValueError if it is something else."""
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    if not isinstance(rows, list) or not all(
            isinstance(row, dict) and row.keys() >= NEEDED for row in rows):
        raise ValueError(f"expected a list of rows, each with {', '.join(sorted(NEEDED))}")
    return rows
