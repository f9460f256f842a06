"""Random calls, every result checked, for a given time:

    mpirun -n 4 python tests/stress.py --seconds 200 [--seed 1]

Verbs, sizes (mostly small), dtypes, ops, roots, algorithms, compression and communicators change
from call to call; some ranks are late; some calls are nonblocking.  Inputs are small integers, so
results are exact.  All ranks draw the same calls from the same seed.  At the end rank 0 prints how
many calls there were and how much memory the process has gained in the second half; the exit
status is 1 if a result was wrong.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives as coll
from collectives import schedules

DTYPES = ("float32", "float64", "int8", "int32", "int64", "float16", "complex64")
EVERY = 64  # calls between two looks at the clock, on which all ranks agree


def parse(argv=None):
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=float, default=60.0)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args(argv)


def communicators(world):
    """All ranks, all in reverse order, and those of the same parity; with each one's mpi4py."""
    groups = [world, world.Split(0, -world.rank), world.Split(world.rank % 2, world.rank)]
    return [(coll.Communicator(group), group) for group in groups]


def draw(random):
    """One call, the same on all ranks."""
    verb = str(random.choice(schedules.VERBS))
    count = int(2 ** random.uniform(0, 20 if random.random() < 0.05 else 12))
    algorithms = ["auto"] * 6 + ["native", "shared", *schedules.algorithms(verb)]
    return {"verb": verb, "count": count, "dtype": str(random.choice(DTYPES)),
            "op": str(random.choice(["sum", "max", "min"])), "root": random.random(),
            "algorithm": str(random.choice(algorithms)), "late": random.random(),
            "out": bool(random.random() < 0.3), "wait": bool(random.random() < 0.1)}


def inputs(call, size):
    """Every rank's tensor: integers that all the dtypes and their sums hold."""
    i = np.arange(call["count"])
    return [((i * (r + 1) + r) % 7).astype(call["dtype"]) for r in range(size)]


def expected(call, every, rank, root):
    if call["verb"] == "allgather":
        return np.stack(every)
    if call["verb"] == "broadcast":
        return every[root]
    total = {"sum": sum, "max": np.maximum.reduce, "min": np.minimum.reduce}[call["op"]](every)
    if call["verb"] == "reduce_scatter":
        return np.array_split(total, len(every))[rank]
    return total if call["verb"] == "allreduce" or rank == root else every[rank]


def run(call, comm):
    """Make the call and return the number of wrong elements."""
    if call["dtype"].startswith("complex") and call["op"] != "sum":
        call = call | {"op": "sum"}
    verb, root = call["verb"], int(call["root"] * comm.size)
    every = inputs(call, comm.size)
    want = expected(call, every, comm.rank, root)
    x = every[comm.rank].copy()
    how = {"algorithm": call["algorithm"]}
    if call["out"] and verb != "broadcast":
        how["out"] = np.empty_like(want)
    if verb in schedules.ROOTED:
        how["root"] = root
    if verb not in ("broadcast", "allgather"):
        how["op"] = call["op"]
    if call["late"] < 0.01 and comm.rank == int(call["late"] * 100 * comm.size):
        time.sleep(1e-3)
    if verb == "allreduce" and call["wait"]:
        got = comm.iallreduce(x, **how).wait()
    else:
        got = getattr(comm, verb)(x, **how)
    return int(np.count_nonzero(got != want))


def resident_kb():
    status = Path("/proc/self/status")
    return int(status.read_text().split("VmRSS:")[1].split()[0]) if status.exists() else 0


def main():
    args = parse()
    world, random = MPI.COMM_WORLD, np.random.default_rng(args.seed)
    comms = communicators(world)
    start, calls, wrong, first_kb = time.monotonic(), 0, 0, None
    going = True
    while going:
        for _ in range(EVERY):
            comm, _ = comms[int(random.integers(len(comms)))]
            call = draw(random)
            bad = run(call, comm)
            if bad:
                print(f"rank {world.rank}: {bad} wrong in {call}", flush=True)
            wrong, calls = wrong + bad, calls + 1
        elapsed = time.monotonic() - start
        if first_kb is None and elapsed > args.seconds / 2:
            first_kb = resident_kb()
        going = world.bcast(elapsed < args.seconds)
    gained = world.allreduce(resident_kb() - first_kb, MPI.MAX)
    wrong = world.allreduce(wrong)
    for comm, _ in comms:
        comm.close()
    if world.rank == 0:
        print(f"{calls} calls, {wrong} wrong elements, {gained} KB more at most", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
