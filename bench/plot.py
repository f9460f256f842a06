"""Draw the rows of a bench: time and bus bandwidth over size, both axes logarithmic.

    python bench/plot.py rows.json picture.png

A line is a contender's medians, the whiskers reach to its fastest and slowest samples; ours are
solid, baselines dashed.  A row of pictures is one place of the result.
"""

import sys

from report import THEIRS, label, place, read_json

PANELS = (("time_us", "time [us]", "time_min_us", "time_max_us"),
          ("busbw", "bus bandwidth [GB/s]", None, None))


def curves(rows: list[dict], in_place: bool) -> dict[str, list[dict]]:
    """The rows of each contender, by size."""
    found: dict[str, list[dict]] = {}
    for row in sorted(rows, key=lambda row: row["nbytes"]):
        if row["in_place"] == in_place:
            found.setdefault(label(row), []).append(row)
    return found


def draw(rows: list[dict]):
    """A matplotlib figure."""
    from matplotlib.figure import Figure
    places = sorted({row["in_place"] for row in rows})
    figure = Figure(figsize=(13, 4.8 * len(places)), layout="constrained")
    axes = figure.subplots(len(places), len(PANELS), squeeze=False)
    for in_place, row_of_axes in zip(places, axes, strict=True):
        for ax, panel in zip(row_of_axes, PANELS, strict=True):
            _panel(ax, curves(rows, in_place), *panel)
    figure.suptitle(title(rows[0]))
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


def title(row: dict) -> str:
    """What all rows have in common."""
    op = "" if row["op"] == "none" else f" {row['op']}"
    return f"{row.get('collective', 'allreduce')}, {row['dtype']}{op}, {row['ranks']} ranks"


def _panel(ax, found: dict[str, list[dict]], quantity: str, name: str, low, high) -> None:
    for k, (contender, rows) in enumerate(found.items()):
        x = [row["nbytes"] for row in rows]
        y = [row[quantity] for row in rows]
        style = "--" if rows[0]["algorithm"] in THEIRS else "-"
        ax.plot(x, y, style, marker=".", color=f"C{k % 10}", label=contender)
        if low:
            ax.vlines(x, [r[low] for r in rows], [r[high] for r in rows], color=f"C{k % 10}",
                      alpha=0.4, linewidth=0.8)
    where = place(next(iter(found.values()))[0])
    ax.set(xscale="log", yscale="log", xlabel="size [B]", ylabel=name)
    ax.set_title("in place" if where == "in" else "out of place", fontsize="medium")
    ax.set_xscale("log", base=2)
    ax.grid(alpha=0.3)


def save(rows: list[dict], path: str) -> None:
    """Draw the rows into a file; its ending says which kind."""
    draw(rows).savefig(path, dpi=110)


if __name__ == "__main__":
    save(read_json(sys.argv[1]), sys.argv[2])
