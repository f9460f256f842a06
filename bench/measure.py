"""Measure contenders on buffers of one size: their times, what they send, and what is wrong."""

import argparse
from collections.abc import Sequence

import compressed
import numpy as np
from bandwidth import algbw_GBps, busbw_GBps
from buffers import Pool, default_pool_nbytes
from collective import REDUCING, exchange, inputs, whole
from contenders import Contender, ours
from mpi4py import MPI
from timing import default_iterations, interleave


def counts(args: argparse.Namespace, size: int) -> list[int]:
    """Elements of the whole array, from the first size to the last; each once."""
    found, nbytes = {}, args.minbytes
    while nbytes <= args.maxbytes:
        found[whole(args.collective, max(1, nbytes // args.dtype.itemsize), size)] = None
        nbytes *= args.factor
    return list(found)


def measure(comm: MPI.Comm, contenders: Sequence[Contender], args: argparse.Namespace,
            count: int, in_place: bool) -> list[dict]:
    """One row per contender.  Collective; the rows are the same on all ranks."""
    part = exchange(args.collective, args.op, args.dtype, comm.rank, comm.size, count, in_place)
    largest = float(np.abs(inputs(args.op, args.dtype, comm.size)).sum(axis=0).max())
    pool = Pool(part, [c.slack(comm.size, largest) for c in contenders],
                default_pool_nbytes(comm), args.rotate)
    traffic = [traffic_of(comm, c, args, part) for c in contenders]
    pool.wrong += [broken(comm, c, args, part) for c in contenders]

    def prepare(k: int) -> tuple[np.ndarray, np.ndarray]:
        buffers = pool.take(k)
        if contenders[k].prepare:
            contenders[k].prepare()
        return buffers

    nbytes = count * args.dtype.itemsize
    iterations = args.iters or default_iterations(nbytes)
    times_s = interleave(comm, [c.call for c in contenders], prepare, iterations, args.warmup)
    pool.check()
    comm.Allreduce(MPI.IN_PLACE, pool.wrong, MPI.SUM)
    common = {"collective": args.collective, "nbytes": nbytes, "count": count,
              "dtype": args.dtype.name, "op": args.op if args.collective in REDUCING else "none",
              "ranks": comm.size, "in_place": in_place}
    return [common | figures(contender, common, samples_s) | sent | {"wrong": int(wrong)}
            for contender, samples_s, sent, wrong
            in zip(contenders, times_s, traffic, pool.wrong, strict=True)]


def traffic_of(comm: MPI.Comm, contender: Contender, args: argparse.Namespace, part) -> dict:
    """Bytes that a rank sends in one call, and would send without a codec; None if unknown."""
    if contender.algorithm in (None, "native"):
        return {"wire_nbytes": None, "logical_nbytes": None}
    pair = Pool(part, [0.0], 0, slots=1).take(0)
    wire, logical = (
        compressed.sent_nbytes(comm, ours(contender.algorithm, args.op, codec, False,
                                          args.collective).call, *pair)
        for codec in (contender.compression, "none"))
    return {"wire_nbytes": wire, "logical_nbytes": logical}


def broken(comm: MPI.Comm, contender: Contender, args: argparse.Namespace, part) -> int:
    """Elements of a lossy all-reduce that break a law, on this rank."""
    if contender.law is None:
        return 0
    return compressed.broken(comm, contender.law, part.given, args.op == "mean")


def figures(contender: Contender, row: dict, samples_s: np.ndarray) -> dict:
    """What a row says about the contender's times."""
    median_s = float(np.median(samples_s))
    return {"algorithm": contender.name, "compression": contender.compression,
            "time_us": median_s * 1e6,
            "time_min_us": float(samples_s.min()) * 1e6,
            "time_max_us": float(samples_s.max()) * 1e6,
            "algbw": algbw_GBps(row["nbytes"], median_s),
            "busbw": busbw_GBps(row["collective"], row["nbytes"], median_s, row["ranks"])}
