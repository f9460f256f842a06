"""Collectives among the ranks of one host, played in one process: one rank at a time advances, in
random order, until it has to wait.  Ranks may so be calls apart.
"""

import mmap
from dataclasses import dataclass

import numpy as np
import pytest

from collectives.dtypes import carrier, itemsize
from collectives.errors import MPIError
from collectives.host_execution import SHORT_NBYTES, SLOT_NBYTES, HostExecution, HostMemory
from collectives.plan import Signature

VERBS = ["allreduce", "reduce_scatter", "allgather", "broadcast", "reduce"]
COUNTERS = np.zeros(2, np.int64)


def memories(size):
    """The views of `size` ranks."""
    shared = np.frombuffer(mmap.mmap(-1, HostMemory.nbytes(size)), np.uint8)
    return [HostMemory(shared, size) for _ in range(size)]


@dataclass
class Call:
    """One call on all ranks: `inputs`, what each rank's `outputs` shall be, and where they go."""

    signatures: list
    inputs: list
    outputs: list
    expected: list

    def check(self, rank):
        got, want = self.outputs[rank], self.expected[rank]
        assert got.tobytes() == want.tobytes(), (self.signatures[rank], np.flatnonzero(got != want))


def in_order(inputs, op):
    """Combined one after the other: the very bits that are promised."""
    combine = {"sum": np.add, "mean": np.add, "max": np.maximum, "prod": np.multiply}[op]
    total = inputs[0].copy()
    for x in inputs[1:]:
        total = combine(total, x)
    return total / total.dtype.type(len(inputs)) if op == "mean" else total


def make(random, size, verb, count, dtype="float32", op="sum", root=0, segment=1 << 20):
    """A call with random inputs, in place where it can be, half of the time."""
    def new(n):
        return random.standard_normal(n).astype(carrier(dtype)) if dtype.startswith("float") \
            else random.integers(-99, 99, n).astype(carrier(dtype))
    counts = tuple(int(n) for n in random.integers(0, count + 1, size)) \
        if verb in ("reduce_scatter", "allgather") else (count,)
    starts = np.concatenate([[0], np.cumsum(counts)])
    total = int(starts[-1])
    rows = [slice(*starts[r:r + 2]) for r in range(size)] if len(counts) > 1 else []
    inputs = [new(counts[r] if verb == "allgather" else total) for r in range(size)]
    whole = np.concatenate(inputs) if verb == "allgather" else \
        inputs[root] if verb == "broadcast" else in_order(inputs, op)
    expected = [whole[rows[r]] if verb == "reduce_scatter" else whole for r in range(size)]
    in_place = bool(random.integers(2)) and not rows
    if verb == "reduce":
        expected = [whole if r == root else (inputs[r].copy() if in_place else np.zeros_like(whole))
                    for r in range(size)]
    outputs = inputs if in_place else [np.zeros_like(want) for want in expected]
    signatures = [Signature(verb, "shared", r, size, root, counts, dtype, op, in_place, segment)
                  for r in range(size)]
    return Call(signatures, inputs, outputs, [x.copy() for x in expected])


def play(random, calls, views):
    """Run all calls on all ranks, and check each rank's result as soon as it has it."""
    position, running = [0] * len(views), [None] * len(views)
    steps = 0
    while any(at < len(calls) for at in position):
        steps += 1
        assert steps < 10_000 * len(calls), f"no progress at {position}"
        rank = int(random.integers(len(views)))
        if position[rank] == len(calls):
            continue
        call = calls[position[rank]]
        if running[rank] is None:
            running[rank] = HostExecution(call.signatures[rank], views[rank], 1, COUNTERS)
            running[rank].start(call.inputs[rank].ctypes.data, call.outputs[rank].ctypes.data)
        if running[rank].advance(0.0):
            call.check(rank)
            running[rank], position[rank] = None, position[rank] + 1


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("seed", range(3))
def test_calls_of_all_kinds_follow_each_other_whoever_is_late(size, seed):
    random = np.random.default_rng([size, seed])
    calls = []
    for _ in range(40):
        op = str(random.choice(["sum", "mean", "max"]))
        segment = int(random.choice([64 * size, 1024, 1 << 20]))
        count = int(random.choice([0, 1, size, 97, 3000, 20_000]))
        calls.append(make(random, size, str(random.choice(VERBS)), count, "float32", op,
                          int(random.integers(size)), segment))
    play(random, calls, memories(size))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("dtype, op", [("float64", "sum"), ("int8", "sum"), ("int64", "max")])
def test_other_types_and_more_than_a_slot(verb, dtype, op):
    random = np.random.default_rng(1)
    count = SLOT_NBYTES // itemsize(dtype) * 5 // 2
    play(random, [make(random, 3, verb, n, dtype, op, 2) for n in (count, 1, count)], memories(3))


@pytest.mark.parametrize("count", [SHORT_NBYTES // 4, SHORT_NBYTES // 4 + 1])
def test_where_short_ends(count):
    random = np.random.default_rng(2)
    play(random, [make(random, 4, verb, count) for verb in VERBS], memories(4))


def different(**change):
    given = {"verb": "allreduce", "count": 100, "dtype": "float32", "op": "sum", "root": 0}
    return given | change


@pytest.mark.parametrize("change", [{"count": 101}, {"dtype": "int32"}, {"op": "max"}, {"root": 1},
                                    {"verb": "reduce", "root": 1}])
def test_a_rank_in_another_call_is_named_and_nothing_is_written(change):
    random = np.random.default_rng(3)
    views = memories(3)
    right, wrong = (make(random, 3, **different(**c)) for c in ({}, change))
    ranks = [HostExecution((wrong if r == 1 else right).signatures[r], views[r], 1, COUNTERS)
             for r in range(3)]
    before = [x.copy() for x in right.inputs]
    for r, rank in enumerate(ranks):
        rank.start(right.inputs[r].ctypes.data, right.outputs[r].ctypes.data)
    assert not ranks[0].advance(0.0) and not ranks[1].advance(0.0)
    with pytest.raises(MPIError, match=r"rank 1 is in a call of another.*float32\[100\], op=sum"):
        ranks[2].advance(0.0)
    with pytest.raises(MPIError, match="rank 0 is in a call of another"):
        ranks[1].advance(0.0)
    for x, was in zip(right.inputs, before, strict=True):
        np.testing.assert_array_equal(x, was)


def test_memory_is_bounded_and_a_waiting_rank_says_for_what():
    assert HostMemory.nbytes(8) < 16 * SLOT_NBYTES + (1 << 16)
    call = make(np.random.default_rng(4), 2, "allreduce", 10)
    rank = HostExecution(call.signatures[0], memories(2)[0], 1, COUNTERS)
    rank.start(call.inputs[0].ctypes.data, call.outputs[0].ctypes.data)
    assert not rank.advance(0.0)
    assert rank.waiting_for() == "block 0 of 1, shared memory of this host"
