"""What users of other compressed all-reduces reported of many steps, as tests of ours."""

from hashlib import sha256
from time import sleep

import numpy as np
import pytest
from mpi4py import MPI

import collectives as coll
from tests.mpi.one_process import chunks, normal, reduced_chunk
from tests.mpi.reference import RANK, SIZE

COMM = MPI.COMM_WORLD
ONE_SCALE = ["int8", "int4", "ternary", "sign"]  # per block


# K17: pytorch/pytorch#49374: residuals of buffers that were overwritten already.

class Bucket:
    """Gradients of all ranks for all steps, and what one process makes of this rank's chunk.

    results, found : of each step, by that process and by calls
    kept : (SIZE, n), residuals of all ranks after the last step
    """

    def __init__(self, seed, steps, count, op):
        self.name, self.op = f"bucket {seed}", op
        self.rows = normal(steps, SIZE, count, seed=seed)
        self.buffer = np.empty(count, np.float32)
        self.found, self.chunks = [], chunks(coll.Int8(), count)
        self.kept = np.zeros_like(self.rows[0, :, self.chunks[RANK]])
        self.results = [reduced_chunk(coll.Int8(), RANK, rows[:, self.chunks[RANK]], self.kept, op)
                        for rows in self.rows]

    def start(self, step, feedback):
        self.buffer[:] = self.rows[step, RANK]
        return coll.iallreduce(self.buffer, self.op, compression="int8",
                               residual=feedback[self.name])


def test_residuals_of_calls_in_flight_are_those_of_one_process_bit_for_bit():
    steps, feedback, late = 200, coll.ErrorFeedback(), np.random.default_rng(17)
    buckets = [Bucket(0, steps, 300, "mean"), Bucket(1, steps, 256 * SIZE + 7, "sum"),
               Bucket(2, steps, 640, "mean")]
    digest = sha256()
    requests = {bucket: bucket.start(0, feedback) for bucket in buckets}
    for step in range(steps):
        for bucket in buckets:  # the others are in flight
            result = requests.pop(bucket).wait()
            bucket.found.append(result[bucket.chunks[RANK]].copy())
            digest.update(result)
            result.fill(np.nan)
            if step + 1 < steps and step % 4 != 3:
                requests[bucket] = bucket.start(step + 1, feedback)
            if RANK == SIZE - 1 and late.random() < 0.1:
                sleep(0.002)
        if not requests and step + 1 < steps:
            coll.world().lanes.mine().arena.poison()
            requests = {bucket: bucket.start(step + 1, feedback) for bucket in buckets}
    assert len(set(COMM.allgather(digest.hexdigest()))) == 1
    mine = [(bucket.chunks, feedback[bucket.name].residual) for bucket in buckets]
    theirs = COMM.alltoall([[residual[parts[q]] for parts, residual in mine] for q in range(SIZE)])
    for bucket, *kept in zip(buckets, *theirs, strict=True):
        np.testing.assert_array_equal(bucket.found, bucket.results)
        np.testing.assert_array_equal(kept, bucket.kept)


# K18: learning-at-home/hivemind#195, #225, #272: replicas drift, since owners keep what is exact.

@pytest.mark.parametrize("name", ONE_SCALE)
def test_replicas_that_are_averaged_again_and_again_stay_equal_and_near(name):
    start, residual = normal(5000, seed=18), np.zeros(5000, np.float32)
    x, errors, digests = start.copy(), [], []
    for _ in range(50):
        coll.allreduce(x, "mean", compression=name, residual=residual)
        errors.append(np.abs(x - start).max())
        digests.append(sha256(x).hexdigest())
    assert all(theirs == digests for theirs in COMM.allgather(digests))
    # The mean of `start` and of what it decodes to, C, lies between them and so decodes to C too.
    # From then on x + residual is `start` again.  All but for three roundings per rank and round.
    rounding = 3 * SIZE * 2.0**-24 * 2 * np.abs(start).max()
    assert errors[0] <= (coll.as_codec(name).error_bound(start).max() + rounding) * (SIZE > 1)
    assert (np.array(errors) <= errors[0] + rounding * np.arange(50)).all()


# K20: IST-DASLab/torch_cgx#5, #3: a switch for all calls compresses losses, counts, other models.

class Model:
    """A model's hook: its own codec and residuals, a call for each of its buckets."""

    def __init__(self, seed, compression):
        self.rows = normal(5, SIZE, 3000, seed=seed)
        self.compression, self.feedback = compression, coll.ErrorFeedback()

    def hook(self, step):
        bucket = {"w": self.rows[step, RANK].copy(), "steps": np.array([2**40 + RANK])}
        return coll.iallreduce(bucket, compression=self.compression, residual=self.feedback)


def test_compression_is_of_the_call_and_two_models_do_not_meet():
    def models():
        return Model(20, coll.MinSize(64, "int8")), Model(21, coll.MinSize(64, "topk:0.05"))
    pair, other_pair, together = models(), models(), ([], [])
    alone = [[model.hook(step).wait() for step in range(5)] for model in pair]
    exact = SIZE * (SIZE - 1) // 2
    for step in range(5):
        pending = [model.hook(step) for model in other_pair]
        assert coll.allreduce(RANK + 0.125) == exact + SIZE / 8
        counts = coll.allreduce(np.array([2**53 + 1, RANK]))
        assert counts.tolist() == [SIZE * (2**53 + 1), exact]
        logits = coll.allreduce(np.arange(1000, dtype=np.float32) + RANK)
        np.testing.assert_array_equal(logits, SIZE * np.arange(1000, dtype=np.float32) + exact)
        for results, request in zip(together, pending, strict=True):
            results.append(request.wait())
    for one, other, model, same in zip(alone, together, pair, other_pair, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a["w"], b["w"])
            assert a["steps"] == b["steps"] == SIZE * 2**40 + exact
        np.testing.assert_array_equal(model.feedback["w"].residual, same.feedback["w"].residual)
