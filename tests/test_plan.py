"""What plans compute, what they may touch while messages are under way, and what they cost."""

import ast
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import collectives
from collectives import plan as p
from collectives import schedules
from collectives.blocks import ALIGN, MAX_DEPTH
from collectives.dtypes import accumulator, itemsize
from collectives.plan import Buffer, Signature, Verb, lower
from collectives.schedule import amount
from collectives.step import Op
from tests.plan_machine import ROWS, Machine
from tests.plan_memory import PlanError

SIZES = [1, 2, 3, 4, 5, 7, 8, 13]
EVERY = [(verb, algorithm) for verb in schedules.VERBS for algorithm in schedules.algorithms(verb)]
SEGMENT = 64  # bytes, so that some hundred elements make many blocks
KINDS = [("float32", "sum"), ("float16", "mean"), ("int8", "max"), ("int16", "mean"),
         ("float16", "prod"), ("complex64", "prod"), ("bool", "or")]


def split(count, size):
    return tuple(count // size + (r < count % size) for r in range(size))


def plans_of(verb, algorithm, size, count, dtype, op, root=0, in_place=False, shared=(),
             segment=SEGMENT):
    """The plans of all ranks; `count` is that of the whole tensor, or of each in an allgather."""
    counts = {"reduce_scatter": split(count, size), "allgather": (count,) * size}
    def one(rank):
        own = in_place and (verb != "reduce" or rank == root) and verb not in counts
        return lower(Signature(verb, algorithm, rank, size, root, counts.get(verb, (count,)),
                               dtype, op, own, segment, shared, 1 << 20))
    return [one(rank) for rank in range(size)]


def contributions(size, count, dtype, op):
    """Distinct as far as the type has room; every order of combining them is exact."""
    n = np.arange(count) * size + np.arange(size)[:, None]
    if op == "or":
        return (n * n % 13 == 0).view(np.uint8)
    if op == "prod":
        return np.array([1, 2, -1, 1, 0.5])[n % 5].astype(dtype)
    return (n % 201 - 100).astype(dtype)


def combined(rows, op):
    wide = rows.astype(np.float64) if op == "mean" else rows
    if op == "mean":
        mean = wide.sum(axis=0) / len(rows)
        exact = rows.dtype.kind == "f"
        return (mean.astype(np.float32) if exact else np.trunc(mean)).astype(rows.dtype)
    ufunc = {"sum": np.add, "max": np.maximum, "prod": np.multiply, "or": np.bitwise_or}[op]
    return ufunc.reduce(rows, axis=0)


def results_of(verb, rows, op, root):
    """What each rank's OUT must hold; None for none."""
    size = len(rows)
    if verb == "allgather":
        return [rows.reshape(-1)] * size
    if verb == "broadcast":
        return [rows[root]] * size
    total = combined(rows, op)
    if verb == "reduce_scatter":
        ends = np.cumsum(split(total.size, size))
        return [total[end - n:end] for end, n in zip(ends, split(total.size, size), strict=True)]
    return [total if verb == "allreduce" or rank == root else total[:0] for rank in range(size)]


def run(plans, seed=0):
    """Run them on `contributions` and compare with NumPy."""
    s = plans[0].signature
    count = s.counts[0] if s.verb == "allgather" else sum(s.counts)
    rows = contributions(s.size, count, "uint8" if s.dtype == "bool" else s.dtype, s.op)
    want = results_of(s.verb, rows, s.op, s.root)
    machine = Machine(plans, rows, [w.nbytes for w in want], seed)
    got = machine.run()
    for rank in range(s.size):
        result = got[rank].view(want[rank].dtype)
        np.testing.assert_array_equal(result, want[rank], err_msg=f"rank {rank} of {s}")
        if not plans[rank].signature.in_place:
            np.testing.assert_array_equal(machine.memories[rank].view(Buffer.IN),
                                          rows[rank].view(np.uint8), err_msg="input")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_results_are_numpys(verb, algorithm, size):
    for n, count in enumerate([0, 1, size - 1, size, size + 1, 97]):
        dtype, op = KINDS[(n + size) % 3]
        in_place = verb == "broadcast" or n % 2 == 0
        run(plans_of(verb, algorithm, size, count, dtype, op, n % size, in_place), n)


@pytest.mark.parametrize("channel", ["mpi", "shared", "both"])
@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_blocks_in_flight_do_not_disturb_each_other(verb, algorithm, size, channel):
    shared = {"mpi": (), "shared": tuple(range(size)), "both": tuple(range(size // 2 + 1))}
    for seed in (size, size + 3):  # so that all kinds are seen
        dtype, op = KINDS[seed % len(KINDS)]
        count = 300 * 4 // itemsize(dtype)
        plans = plans_of(verb, algorithm, size, count, dtype, op, seed % size,
                         verb == "broadcast" or seed % 2 == 0, shared[channel])
        run(plans, seed)


@pytest.mark.parametrize("algorithm", schedules.algorithms("reduce_scatter"))
def test_chunks_of_a_reduce_scatter_may_have_any_sizes(algorithm):
    counts = (0, 200, 1, 0, 77)
    plans = [lower(Signature("reduce_scatter", algorithm, rank, 5, 0, counts, "float32", "sum",
                             False, SEGMENT)) for rank in range(5)]
    rows = contributions(5, sum(counts), "float32", "sum")
    got = Machine(plans, rows, [4 * n for n in counts]).run()
    assert b"".join(part.tobytes() for part in got) == combined(rows, "sum").tobytes()


@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_a_tensor_of_many_segments_has_blocks_in_flight_and_more_to_come(verb, algorithm):
    for plan in plans_of(verb, algorithm, 4, 500, "float32", "sum"):
        assert plan.first_block[-1] > 1 and plan.depth > 1
    for plan in plans_of(verb, algorithm, 4, 5000, "float32", "sum"):
        assert plan.first_block[-1] > plan.depth == MAX_DEPTH


# The machine earns trust by rejecting plans without their hazards.

def with_column(plans, column, value):
    def change(plan):
        rows = plan.rows.copy()
        rows[:, column] = value
        return replace(plan, rows=rows)
    return [change(plan) for plan in plans]


def rejected(plans, column, value):
    """The error of some random order, or None."""
    for seed in range(20):
        try:
            run(with_column(plans, column, value), seed)
        except AssertionError as error:
            return error
    return None


@pytest.mark.parametrize("shared", [(), (0, 1, 2, 3)])
def test_machine_rejects_a_write_into_what_is_being_sent(shared):
    plans = plans_of("allreduce", "recursive_doubling", 4, 97, "float32", "sum", in_place=True,
                     shared=shared)
    error = rejected(plans, p.SENDS, 0)
    assert isinstance(error, PlanError) and "still being sent" in str(error)


def test_machine_rejects_a_receive_into_a_slot_in_use():
    plans = plans_of("allreduce", "direct", 13, 97, "float32", "sum", in_place=True)
    error = rejected(plans, p.AFTER, -1)
    assert isinstance(error, PlanError) and "still being received" in str(error)


def test_machine_rejects_a_kernel_with_the_wrong_final():
    plans = plans_of("allreduce", "ring", 3, 97, "float32", "mean")
    first = [replace(plan, kernels=tuple(replace(k, final=False) for k in plan.kernels))
             for plan in plans]
    with pytest.raises(AssertionError, match="not equal"):
        run(first)


def test_machine_rejects_ranks_that_disagree_about_the_count():
    plans = plans_of("allreduce", "ring", 2, 8, "float32", "sum")
    other = plans_of("allreduce", "ring", 2, 6, "float32", "sum")
    with pytest.raises(PlanError, match="is received as"):
        run([plans[0], other[1]])


# Costs.

@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_bytes_sent_are_the_schedules(verb, algorithm, size):
    chunks = schedules.num_chunks(verb, algorithm, size)
    block = chunks * ALIGN // 4
    for blocks in (1, 3, 7):
        elements = block * blocks  # so that all chunks are equal
        count = elements // size if verb == "allgather" else elements
        for plan in plans_of(verb, algorithm, size, count, "float32", "sum"):
            steps = schedules.generate(verb, algorithm, plan.signature.rank, size)
            assert plan.sent_nbytes == amount(steps, Op.SEND, chunks) * Fraction(4 * elements)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_scratch_does_not_grow_with_the_tensor(verb, algorithm, size):
    # Per block in flight: partial values, final values, and as much again where messages land.
    chunks = schedules.num_chunks(verb, algorithm, size)
    for dtype, op in (("float32", "sum"), ("float16", "mean"), ("int8", "mean")):
        widest = itemsize(accumulator(dtype, op))
        block = chunks * max(SEGMENT, ALIGN) // itemsize(dtype) * widest
        bound = MAX_DEPTH * (3 * block + 3 * ALIGN + chunks * ALIGN)
        largest = [max(plan.scratch_nbytes for plan in plans_of(verb, algorithm, size, count, dtype,
                                                                op))
                   for count in (1000, 10_000, 1_000_000)]
        assert max(largest) <= bound and largest[2] <= bound


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_scratch_is_smaller_than_a_large_tensor(verb, algorithm, size):
    for dtype, op in (("float32", "sum"), ("float16", "mean")):
        count = 1 << 20
        whole = count * itemsize(accumulator(dtype, op)) * (size if verb == "allgather" else 1)
        for plan in plans_of(verb, algorithm, size, count, dtype, op, segment=1 << 12):
            assert plan.scratch_nbytes <= whole


# Every Verb is handled.

def test_the_machine_handles_every_verb():
    assert set(ROWS) == set(Verb)


def test_the_executor_names_every_verb():
    # Read, not imported: importing it starts MPI.
    source = (Path(collectives.__file__).parent / "executor.py").read_text()
    named = {node.attr for node in ast.walk(ast.parse(source))
             if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Verb"}
    assert named == set(Verb.__members__)
