"""What makes the bench fail beside wrong values, and what it draws and tells.  No MPI job."""

import getpass
import json
import os
import re
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from mpi4py import MPI

sys.path.append(str(Path(__file__).parents[1] / "bench"))  # benches are scripts, not a package

import all as everything
import allreduce
import arguments
import compare
import facts
import plot
import report
from baselines import mpi
from contenders import Contender


def row(time_us, algorithm="auto", nbytes=1024, **changes):
    return {"collective": "allreduce", "nbytes": nbytes, "count": nbytes // 4, "dtype": "float32",
            "op": "sum", "algorithm": algorithm, "compression": "none", "ranks": 2,
            "in_place": True, "time_us": time_us, "time_min_us": time_us / 2,
            "time_max_us": 2 * time_us, "algbw": 1.0, "busbw": 1.0, "wrong": 0} | changes


# Against an earlier run

def test_rows_as_fast_as_before_pass():
    assert compare.slower([row(109), row(1)], [row(100), row(2)], 1.1) == ([], False)


def test_a_slower_row_fails_and_is_listed():
    rows, old = [row(111), row(50, nbytes=8)], [row(100), row(50, nbytes=8)]
    [line], failed = compare.slower(rows, old, 1.1)
    assert failed and line.startswith("SLOWER") and "1024 B" in line and "1.11 x 100.0 us" in line


def test_the_threshold_is_how_much_slower_it_may_be():
    assert not compare.slower([row(190)], [row(100)], 2.0)[1]


def test_a_slower_baseline_is_told_but_says_nothing_about_us():
    rows, old = [row(300, "mpi"), row(100)], [row(100, "mpi"), row(100)]
    [line], failed = compare.slower(rows, old, 1.1)
    assert "but a baseline" in line and not failed


@pytest.mark.parametrize("change", [
    {"collective": "reduce"}, {"nbytes": 8}, {"dtype": "float64"}, {"op": "max"}, {"ranks": 4},
    {"algorithm": "ring"}, {"compression": "int8"}, {"in_place": False}])
def test_rows_that_differ_are_not_compared_but_named(change):
    rows = [row(100, nbytes=8 << 20), row(1) | change]
    lines, failed = compare.slower(rows, [row(100, nbytes=8 << 20), row(1000)], 1.1)
    assert not failed
    assert [line.split(":")[0] for line in lines] == ["only now", "only before"]


@pytest.mark.parametrize("old", [[], [row(100, nbytes=8)], [row(100, "mpi")]])
def test_nothing_to_compare_is_a_failure(old):
    lines, failed = compare.slower([row(1), row(100, "mpi")], old, 1.1)
    assert failed and "NOTHING TO COMPARE" in lines[-1]


def test_rows_of_before_there_were_other_collectives_are_allreduce():
    old = row(100)
    del old["collective"]
    assert compare.slower([row(200)], [old], 1.1)[1]


# Against baselines

def test_the_ratio_is_the_best_baseline_s_time_over_ours():
    [(_, ratio)] = report.ratios([row(30, "mpi"), row(20, "gloo"), row(10)])
    assert ratio == 2.0


def test_a_lossy_baseline_is_a_rival_of_lossy_rows_only():
    rows = [row(30, "mpi"), row(5, "gloo", compression="fp16"), row(10),
            row(10, compression="int8")]
    assert [ratio for _, ratio in report.ratios(rows)] == [3.0, 0.5]


def test_the_geometric_mean_over_sizes_decides_and_the_worst_is_told():
    rows = [row(80, "mpi", 8), row(10, "auto", 8), row(5, "mpi"), row(10)]  # 8 and 1/2
    [line], failed = compare.below(rows, 1.9)
    assert not failed and "2.00 on average, 0.50 at worst" in line
    [line], failed = compare.below(rows, 2.1)
    assert failed and line.startswith("TOO SLOW: auto")


def test_each_of_ours_has_to_be_fast_enough():
    rows = [row(10, "mpi"), row(5), row(20, "ring")]
    assert compare.below(rows, 1.0)[1]


def test_no_baseline_is_a_failure():
    assert compare.below([row(10)], 0.1) == (["NO RATIO: no baseline was measured"], True)


# The exit status of a run, on one rank

def slow(send, recv):
    recv[...] = send
    time.sleep(0.002)


def fast(send, recv):
    recv[...] = send


def run(call, *options):
    comm, said = MPI.COMM_SELF, []
    args = arguments.parse(["-b", "64", "-e", "64", "-n", "3", "--in-place", *options])
    status = allreduce.run(args, comm, [mpi(comm, "sum"), Contender("it", call)], said.append)
    return status, "\n".join(said)


def test_a_run_is_compared_with_the_one_before(tmp_path):
    file = str(tmp_path / "old.json")
    assert run(slow, "--json", file)[0] == 0
    assert run(fast, "--compare", file)[0] == 0
    rows = json.loads(Path(file).read_text())
    report.write_json(file, [r | {"time_us": 100.0} for r in rows])
    status, text = run(slow, "--compare", file, "--threshold", "2")
    assert status == 1 and "# SLOWER: allreduce 64 B float32 sum it" in text


def test_a_run_has_to_reach_the_ratio():
    assert run(fast, "--min-ratio", "0.001")[0] == 0
    status, text = run(slow, "--min-ratio", "1")
    assert status == 1 and "# TOO SLOW: it" in text


def test_a_baseline_that_is_not_installed_is_left_out_with_a_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "torch_gloo", raising=False)
    args = arguments.parse(["--algorithms", "none", "--baselines", "mpi,gloo"])
    said = []
    [able] = allreduce.contenders_of(args, MPI.COMM_SELF, said.append, ExitStack())
    assert able.name == "mpi" and said == ["# without gloo: torch is not installed"]


# Arguments

@pytest.mark.parametrize("options, why", [
    (["--collective", "allgather", "--in-place"], "always out of place"),
    (["--collective", "broadcast", "--out-of-place"], "always in place"),
    (["--collective", "reduce", "--compression", "int8"], "allreduce only"),
    (["--collective", "scatter"], "invalid choice"),
    (["--min-ratio", "1", "--baselines", "none"], "needs --baselines"),
    (["--min-ratio", "0"], "above 0"),
    (["--compare", "no/such/file.json"], "no rows"),
    (["--plot", "picture.txt"], "expected a name"),
])
def test_options_that_do_not_go_together_are_refused(options, why, capsys):
    with pytest.raises(SystemExit):
        arguments.parse(options)
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{}", "[1]", '[{"time_us": 1}]', "no JSON"])
def test_a_file_without_rows_is_refused(text, tmp_path, capsys):
    file = tmp_path / "old.json"
    file.write_text(text)
    with pytest.raises(SystemExit):
        arguments.parse(["--compare", str(file)])
    assert "no rows of this bench" in capsys.readouterr().err


# Pictures

def test_a_picture_shows_every_contender_by_size_on_logarithmic_axes(tmp_path):
    rows = [row(t * n, name, n, in_place=place) for t, name in ((1, "auto"), (2, "mpi"))
            for n in (4096, 8) for place in (False, True)]
    figure = plot.draw(rows)
    assert len(figure.axes) == 4
    for ax in figure.axes:
        assert ax.get_xscale() == ax.get_yscale() == "log"
        lines = {line.get_label(): line for line in ax.lines}
        assert set(lines) == {"auto", "mpi"}
        assert list(lines["auto"].get_xdata()) == [8, 4096]
        assert (lines["auto"].get_linestyle(), lines["mpi"].get_linestyle()) == ("-", "--")
    plot.save(rows, str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


# What is told of the machine

def test_facts_hold_no_name_of_host_or_user_and_no_path():
    told = "\n".join(facts.facts(MPI.COMM_SELF))
    for secret in (socket.gethostname(), getpass.getuser()):
        assert not re.search(rf"\b{re.escape(secret)}\b", told)
    assert os.sep not in told
    assert "numpy" in told and "1 ranks" in told


@pytest.mark.parametrize("text, name", [
    ("MPICH Version:      5.0.2\nMPICH configure: --prefix=/home/me/mpich", "MPICH 5.0.2"),
    ("Open MPI v5.0.11, package: Open MPI me@myhost Distribution, ident: 5", "Open MPI v5.0.11"),
])
def test_of_the_mpi_library_name_and_version_are_told(text, name):
    assert facts.mpi_library(text) == name


def test_more_ranks_than_cores_is_warned_of():
    assert "WARNING" in facts.oversubscription(4, 2)[0]
    assert facts.oversubscription(2, 2) == []


# Everything

def test_one_command_measures_every_collective_on_both_rank_counts(tmp_path):
    args = everything.parse(["mpich", "--results", str(tmp_path), "--mpirun", "srun -x"])
    found = everything.commands(args)
    assert len(found) == 2 * len(everything.JOBS)
    for base, command in found.items():
        assert Path(base).parent == tmp_path / "mpich"
        assert command[:3] == ["srun", "-x", "-n"] and command[3] == base[-1]
        arguments.parse(command[6:])  # the bench understands it
    measured = {arguments.parse(command[6:]).collective for command in found.values()}
    assert measured == set(everything.JOBS) - {"algorithms", "compression"}


def test_a_job_that_fails_is_told_and_leaves_no_table(tmp_path, capsys):
    script = tmp_path / "launch"
    script.write_text("import sys; print('table'); sys.exit(sys.argv[2] == '4')")
    status = everything.main(["mpich", "--results", str(tmp_path), "--only", "reduce",
                              "--mpirun", f"{sys.executable} {script}"])
    assert status == 1 and "## FAILED: reduce-4" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "mpich").iterdir()] == ["reduce-2.txt"]
