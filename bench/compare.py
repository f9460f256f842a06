"""What makes a run fail beside wrong values: slower than an earlier run, or than a baseline."""

from collections.abc import Iterable

from report import THEIRS, label, summary

KEY = ("collective", "nbytes", "dtype", "op", "algorithm", "compression", "ranks", "in_place")


def key(row: dict) -> tuple:
    """What two rows have in common that measure the same thing."""
    return tuple(row.get(name, "allreduce" if name == "collective" else None) for name in KEY)


def describe(row: dict) -> str:
    """The row's key, to be read."""
    where = "in place" if row["in_place"] else "out of place"
    return (f"{row.get('collective', 'allreduce')} {row['nbytes']} B {row['dtype']} {row['op']} "
            f"{label(row)} {row['ranks']} ranks {where}")


def slower(rows: Iterable[dict], old: Iterable[dict], threshold: float,
           theirs=THEIRS) -> tuple[list[str], bool]:
    """Rows slower than `threshold` times the old ones, and what has no counterpart.

    Returns
    -------
    lines to print, and whether the comparison failed: one of ours is slower, or none has a
    counterpart.  A baseline that is slower too says that the machine is.
    """
    now, before = {key(row): row for row in rows}, {key(row): row for row in old}
    lines, failed = [], False
    for k in now.keys() & before.keys():
        factor = now[k]["time_us"] / before[k]["time_us"]
        if factor > threshold:
            baseline = now[k]["algorithm"] in theirs
            failed |= not baseline
            lines.append(f"{'slower, but a baseline' if baseline else 'SLOWER'}: "
                         f"{describe(now[k])}: {factor:.2f} x {before[k]['time_us']:.1f} us")
    lines.sort()
    lines += [f"only now: {describe(now[k])}" for k in now if k not in before]
    lines += [f"only before: {describe(before[k])}" for k in before if k not in now]
    if not any(row["algorithm"] not in theirs for k, row in now.items() if k in before):
        return [*lines, "NOTHING TO COMPARE: no row of ours is in both"], True
    return lines, failed


def below(rows: Iterable[dict], least: float, theirs=THEIRS) -> tuple[list[str], bool]:
    """Whether a contender of ours has a geometric mean of ratios below `least`, and all of them."""
    found = summary(rows, theirs)
    if not found:
        return ["NO RATIO: no baseline was measured"], True
    return ([f"{'TOO SLOW' if mean < least else 'fast enough'}: {name}: best baseline / ours "
             f"{mean:.2f} on average, {worst:.2f} at worst, at least {least:g} is asked for"
             for name, (mean, worst) in found.items()],
            any(mean < least for mean, _ in found.values()))
