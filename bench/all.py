"""Measure everything on this machine: the figures and pictures in bench/results/NAME.

    python bench/all.py mpich                          # with 2 and with 4 ranks
    python bench/all.py openmpi --mpirun "mpirun --map-by :oversubscribe"
    python bench/all.py mpich --only allgather --ranks 2 --dry-run

NAME is that of the MPI library.  Each job leaves JOB-RANKS.txt (what it printed), .json (its rows)
and .png (its curves).  Jobs run one after the other; a job that fails leaves no new .txt, the
others go on, and the exit status is 1.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from arguments import at_least, names

HERE = Path(__file__).parent
SIZES = ["-b", "8", "-e", "64M", "-f", "4"]
ALGORITHMS = ("auto,ring,direct,recursive_doubling,halving_doubling,tree,double_binary_tree,"
              "native")
JOBS = {
    "allreduce": ["--in-place", "--baselines", "mpi,gloo,torch"],
    "reduce_scatter": ["--collective", "reduce_scatter", "--baselines", "mpi,gloo"],
    "allgather": ["--collective", "allgather", "--baselines", "mpi,gloo"],
    "broadcast": ["--collective", "broadcast", "--baselines", "mpi,gloo"],
    "reduce": ["--collective", "reduce", "--in-place", "--baselines", "mpi,gloo"],
    "algorithms": ["--in-place", "--algorithms", ALGORITHMS, "--baselines", "mpi"],
    "compression": ["--in-place", "--feedback", "--baselines", "mpi,torch", "--compression", "none",
                    "float16", "int8", "int4", "sign", "topk:0.01"],
}


def commands(args: argparse.Namespace) -> dict[str, list[str]]:
    """File name without its ending: command."""
    out = args.results / args.name
    found = {}
    for ranks in args.ranks:
        for job in args.only:
            base = str(out / f"{job}-{ranks}")
            found[base] = [*shlex.split(args.mpirun), "-n", str(ranks), sys.executable,
                           str(HERE / "allreduce.py"), *SIZES, *JOBS[job],
                           "--json", f"{base}.json", "--plot", f"{base}.png"]
    return found


def run(base: str, command: list[str]) -> bool:
    """True if the job succeeded.  Its table is kept; its errors go to the terminal only."""
    job = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(job.stdout, flush=True)
    if job.returncode == 0:
        Path(f"{base}.txt").write_text(job.stdout, encoding="utf-8")
    return job.returncode == 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("name", help="folder of the results: the MPI library")
    p.add_argument("--ranks", type=lambda text: [at_least(1)(n) for n in names(text)],
                   default="2,4")
    p.add_argument("--only", type=names, default=",".join(JOBS), help=f"some of {','.join(JOBS)}")
    p.add_argument("--mpirun", default="mpirun", help="the launcher, with its options")
    p.add_argument("--results", type=Path, default=HERE / "results")
    p.add_argument("--dry-run", action="store_true", help="print the commands only")
    args = p.parse_args(argv)
    if unknown := set(args.only) - set(JOBS):
        p.error(f"--only {','.join(unknown)}: expected some of {','.join(JOBS)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the jobs; the exit status."""
    args = parse(argv)
    failed = []
    for base, command in commands(args).items():
        print(f"## {shlex.join(command)}", flush=True)
        if not args.dry_run:
            Path(base).parent.mkdir(parents=True, exist_ok=True)
            if not run(base, command):
                failed.append(Path(base).name)
    for job in failed:
        print(f"## FAILED: {job}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
