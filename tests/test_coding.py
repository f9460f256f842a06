"""Plans with a codec, in the same machine as all plans: the laws, for every verb and algorithm."""

import numpy as np
import pytest

from collectives import plan as p
from collectives import schedules
from collectives.dtypes import carrier
from collectives.kernels.codec import Emit
from collectives.plan import Buffer, Signature, Verb, lower
from tests.plan_machine import Machine
from tests.toy_codecs import UNIT, Blocky, Lonely

SIZES = [1, 2, 3, 4, 5, 8, 13]
EVERY = [(verb, algorithm) for verb in schedules.VERBS for algorithm in schedules.algorithms(verb)
         if not schedules.reencodes(verb, algorithm)]
CODECS = [Blocky(), Blocky(16), Lonely(), Lonely(work=True)]
SEGMENT = 64


def split(count, size):
    return tuple(count // size + (r < count % size) for r in range(size))


def plans_of(verb, algorithm, size, count, codec, *, dtype="float32", op="sum", root=0,
             in_place=False, shared=(), feedback=True):
    counts = {"reduce_scatter": split(count, size), "allgather": (count,) * size}
    def one(rank):
        own = in_place and (verb != "reduce" or rank == root) and verb not in counts
        reads = feedback and (verb != "broadcast" or rank == root)
        return lower(Signature(verb, algorithm, rank, size, root, counts.get(verb, (count,)),
                               dtype, op, own, SEGMENT, shared, 1 << 20, codec, reads))
    return [one(rank) for rank in range(size)]


class Run:
    """Small integers through the plans of all ranks; results and new residuals."""

    def __init__(self, plans, seed=0):
        s, random = plans[0].signature, np.random.default_rng(seed)
        self.s, size = s, s.size
        count = s.counts[0] if s.verb == "allgather" else sum(s.counts)
        self.rows = random.integers(-9, 10, (size, count)).astype(s.dtype)
        wide = carrier(plans[0].accumulator)
        self.old = random.integers(-5, 6, (size, count)).astype(wide)
        given = [old if plan.signature.feedback else None
                 for plan, old in zip(plans, self.old, strict=True)]
        self.old[[g is None for g in given]] = 0
        machine = Machine(plans, self.rows, [self._out_nbytes(rank) for rank in range(size)], seed,
                          given)
        results = machine.run()
        self.results = [result.view(s.dtype) for result in results]
        self.new = np.zeros_like(self.old)
        for rank, memory in enumerate(machine.memories):
            if given[rank] is not None:
                self.new[rank] = memory.view(Buffer.RESIDUAL).view(wide)
            if not plans[rank].signature.in_place:
                np.testing.assert_array_equal(memory.view(Buffer.IN).view(s.dtype),
                                              self.rows[rank], err_msg="input")

    def _out_nbytes(self, rank):
        s, item = self.s, self.rows.itemsize
        if s.verb == "reduce" and rank != s.root:
            return 0
        count = {"reduce_scatter": s.counts[rank] if s.verb == "reduce_scatter" else 0,
                 "allgather": sum(s.counts)}.get(s.verb, s.counts[0])
        return count * item

    def result(self):
        """What came out, over the whole tensor: of all ranks if they differ in what they get."""
        s = self.s
        if s.verb == "reduce_scatter":
            return np.concatenate(self.results)
        if s.verb == "reduce":
            return self.results[s.root]
        for other in self.results:
            np.testing.assert_array_equal(other, self.results[0], err_msg="replicas differ")
        return self.results[0]

    def check_conservation(self):
        """result (times the ranks, of a mean) + new residuals = inputs + old residuals."""
        s, given = self.s, self.rows + self.old
        if s.verb == "allgather":
            got, want = self.result() + self.new.reshape(-1), given.reshape(-1)
        elif s.verb == "broadcast":
            got, want = self.result() + self.new[s.root], given[s.root]
        else:
            times = s.size if s.op == "mean" else 1
            got, want = times * self.result() + self.new.sum(axis=0), given.sum(axis=0)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_nothing_is_lost_and_replicas_are_equal(verb, algorithm, size):
    for n, count in enumerate([0, 1, 7, 8, 9, 41, 97]):
        codec = CODECS[(n + size) % len(CODECS)]
        in_place = verb == "broadcast" or n % 2 == 0
        run = Run(plans_of(verb, algorithm, size, count, codec, root=n % size, in_place=in_place),
                  n)
        run.check_conservation()


@pytest.mark.parametrize("dtype, op", [("float16", "sum"), ("float32", "mean"),
                                       ("float64", "mean")])
@pytest.mark.parametrize("size", [2, 4])  # a mean is exact
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_other_types_and_means(verb, algorithm, size, dtype, op):
    op = "sum" if verb in ("allgather", "broadcast") else op
    for codec in CODECS[1:3]:
        Run(plans_of(verb, algorithm, size, 77, codec, dtype=dtype, op=op,
                     in_place=True)).check_conservation()


@pytest.mark.parametrize("channel", ["mpi", "shared", "both"])
@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_blocks_in_flight_do_not_disturb_each_other(verb, algorithm, size, channel):
    shared = {"mpi": (), "shared": tuple(range(size)), "both": tuple(range(size // 2 + 1))}
    for seed in (size, size + 3):
        codec = CODECS[seed % len(CODECS)]
        plans = plans_of(verb, algorithm, size, 300, codec, root=seed % size,
                         in_place=verb == "broadcast" or seed % 2 == 0, shared=shared[channel])
        assert plans[0].first_block[-1] > 1
        Run(plans, seed).check_conservation()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_without_a_residual_the_result_is_near(verb, algorithm, size):
    # Each of at most `size` encodings of a value drops at most half a unit, none of more parts.
    for codec in (CODECS[0], CODECS[3]):
        run = Run(plans_of(verb, algorithm, size, 97, codec, feedback=False))
        want = {"allgather": run.rows.reshape(-1), "broadcast": run.rows[0]}.get(
            verb, run.rows.sum(axis=0))
        assert np.abs(run.result() - want).max() <= UNIT / 2 * size


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_every_chunk_is_encoded_at_most_once_per_rank(verb, algorithm, size, codec):
    for plan in plans_of(verb, algorithm, size, 320, codec):
        settled = [plan.kernels[row[p.KERNEL]].emit in (Emit.WIRE, Emit.FINAL, Emit.VALUE)
                   for row in plan.rows if row[p.VERB] in (Verb.REDUCE, Verb.ENCODE)]
        elements = plan.extents[:, plan.rows[:, p.VERB] >= 0, p.COUNT]
        acts = np.isin(plan.rows[:, p.VERB], (Verb.REDUCE, Verb.ENCODE))
        per_block = elements[:, acts][:, settled].sum(axis=1)
        total = int((per_block * np.diff(plan.first_block)).sum())
        assert total <= 320


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_a_ring_decodes_adds_and_encodes_in_one_pass(size):
    for plan in plans_of("allreduce", "ring", size, 320, Blocky()):
        emits = [plan.kernels[row[p.KERNEL]].emit for row in plan.rows
                 if row[p.VERB] == Verb.REDUCE]
        assert emits == [Emit.WIRE] * (size - 2) + [Emit.FINAL]
        assert plan.scratch[Buffer.PART] == 0
        encodes = [row for row in plan.rows if row[p.VERB] == Verb.ENCODE]
        assert len(encodes) == 1  # the first send


@pytest.mark.parametrize("algorithm", ["ring", "direct", "halving_doubling"])
def test_bytes_sent_do_not_grow_with_the_ranks(algorithm):
    codec, count = Blocky(16), 16 * 64
    for size in (2, 4, 8, 16):
        for plan in plans_of("allreduce", algorithm, size, count, codec):
            assert plan.sent_nbytes == 2 * codec.wire_nbytes(count) * (size - 1) // size
