"""The three laws of compression, for every codec, algorithm, count and type.

    conservation        result + new residuals = inputs + old residuals
    equal replicas      all ranks hold the same bits
    visible values      what is not finite on one rank is not finite on any, and in no residual

TEST_EVERYTHING=1 in the environment runs all combinations on many ranks too.

Tolerance of the first.  Let M be the sum over ranks of |input| + |old residual| + |new residual|.
Every partial sum is a sum of some of these terms, so no intermediate value exceeds M.  An element
is rounded, to half an ulp of at most M, in p-1 additions of ranks, p additions of old residuals, p
subtractions that give new ones, and one product where a mean is multiplied back: 3p times.
"""

import numpy as np
import pytest
from mpi4py import MPI

import collectives as coll
from collectives import schedules
from collectives.dtypes import carrier
from tests.compression_matrix import ALGORITHMS, CODECS, DTYPES
from tests.everything import EVERYTHING
from tests.layouts import numpy_dtype
from tests.mpi.reference import RANK, SIZE, Guarded, same_on_all_ranks

COMM = MPI.COMM_WORLD
# More ranks on few cores take long: there, each combination has some of the types.
FEW = SIZE <= 2 or EVERYTHING


def some_types():
    """(codec, algorithm, dtype): all on few ranks, else float32 and another type in turn."""
    for i, name in enumerate(CODECS):
        for j, algorithm in enumerate(ALGORITHMS):
            others = [dtype for dtype in DTYPES if dtype != "float32"]
            types = DTYPES if FEW else ["float32", others[(i + j) % len(others)]]
            for dtype in types:
                yield name, algorithm, dtype


def counts_of(codec):
    block = getattr(codec, "block", 256)
    return [1, block - 1, block, block + 1, 4097, 100_003]


def accumulator(dtype):
    return np.float64 if dtype == "float64" else np.float32


def summed(x):
    """Over all ranks, by MPI, in float64."""
    return COMM.allreduce(x.astype(np.float64))


def inputs(count, dtype, seed):
    """Gradients and old residuals, different on every rank; values that float16 can sum."""
    random = np.random.default_rng([seed, RANK])
    x = random.standard_normal(count).astype(numpy_dtype(dtype))
    return x, (random.standard_normal(count) / 4).astype(accumulator(dtype))


def check_conservation(x, old, new, result, op):
    """On arrays of one type; see the module docstring."""
    p = SIZE if op == "mean" else 1
    magnitudes = summed(np.abs(x.astype(np.float64)) + np.abs(old) + np.abs(new))
    roundoff = 2.0 ** (-53 if old.dtype == np.float64 else -24)
    left = summed(x.astype(np.float64) + old) - p * result.astype(np.float64) - summed(new)
    over = np.abs(left) > 3 * SIZE * roundoff * magnitudes
    assert not over.any(), (np.flatnonzero(over)[:5], np.abs(left / magnitudes).max() / roundoff)


@pytest.mark.parametrize("name, algorithm, dtype", list(some_types()))
def test_nothing_is_lost_and_replicas_are_equal(name, algorithm, dtype):
    codec = coll.as_codec(name)
    parts = []
    for n, count in enumerate(counts_of(codec)):
        op = ("sum", "mean")[n % 2]
        x, old = inputs(count, dtype, n)
        tensor, residual = Guarded(x), Guarded(old)
        out = tensor if n % 3 else Guarded(shape=x.shape, dtype=x.dtype)
        coll.allreduce(tensor.array, op, out=None if out is tensor else out.array,
                       compression=name, residual=residual.array, algorithm=algorithm)
        for guarded in (tensor, residual, out):
            guarded.check()
        parts.append((op, x, old, residual.array, out.array))
    for op in ("sum", "mean"):  # together: the checks are as many messages as the calls
        check_conservation(*(np.concatenate(arrays) for arrays in zip(
            *(part[1:] for part in parts if part[0] == op), strict=True)), op)
    assert same_on_all_ranks(*(out for *_, out in parts))


@pytest.mark.parametrize("algorithm", ALGORITHMS if FEW else ["halving_doubling"])
@pytest.mark.parametrize("name", CODECS)
def test_many_segments_in_flight(name, algorithm, channel, small_segments):
    x, old = inputs(20_011, "float32", 7)
    result, new = x.copy(), old.copy()
    coll.allreduce(result, compression=name, residual=new, algorithm=algorithm)
    check_conservation(x, old, new, result, "sum")
    assert same_on_all_ranks(result)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf] if FEW else [np.nan])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", CODECS)
def test_what_is_not_finite_on_one_rank_is_seen_on_all_and_does_not_stay(name, algorithm, bad):
    count, at = 3000, 1234
    x, old = inputs(count, "float32", 3)
    x[at] = bad if RANK == SIZE - 1 else x[at]
    result, residual = x.copy(), old.copy()
    coll.allreduce(result, compression=name, residual=residual, algorithm=algorithm)
    assert not np.isfinite(result[at])
    assert np.isfinite(residual).all()
    assert same_on_all_ranks(result)
    clean, before = inputs(count, "float32", 4)[0], residual.copy()
    result = clean.copy()
    coll.allreduce(result, compression=name, residual=residual, algorithm=algorithm)
    check_conservation(clean, before, residual, result, "sum")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", CODECS[:6])
def test_without_a_residual_the_error_is_within_the_codecs_bound(name, algorithm):
    # Two values per rank, of blocks alike: every partial sum stays within +-SIZE, so that an
    # encoding of it is off by at most the bound for a block of SIZE; each value goes through SIZE
    # encodings at most.
    codec = coll.as_codec(name)
    count = 2 * getattr(codec, "block", 256) * SIZE
    x = np.where(np.arange(count) % 2, 1, -1).astype(np.float32)
    result = coll.allreduce(x.copy(), compression=name, algorithm=algorithm)
    bound = codec.error_bound(np.float32(SIZE) * x).max() * SIZE
    assert np.abs(result - SIZE * x).max() <= bound + 2.0**-20 * SIZE


VERBS = [(verb, algorithm) for verb in schedules.VERBS for algorithm in schedules.algorithms(verb)
         if verb != "allreduce"]


@pytest.mark.parametrize("name", ["int8", "topk:0.1", "threshold:1.5"][:3 if FEW else 1])
@pytest.mark.parametrize("verb, algorithm", VERBS)
def test_other_verbs_lose_nothing_either(verb, algorithm, name):
    for count in (1, SIZE, 5003):
        x, old = inputs(count, "float32", count)
        new, how = old.copy(), {"compression": name, "algorithm": algorithm}
        if verb == "reduce_scatter":
            rows = COMM.allgather(coll.reduce_scatter(x, residual=new, **how))
            check_conservation(x, old, new, np.concatenate(rows), "sum")
        elif verb == "reduce":
            result = coll.reduce(x.copy(), root=SIZE - 1, residual=new, **how)
            check_conservation(x, old, new, COMM.bcast(result, SIZE - 1), "sum")
        elif verb == "allgather":
            rows = coll.allgather(x, residual=new, **how)
            assert same_on_all_ranks(rows)
            np.testing.assert_allclose(rows[RANK] + new, x + old, rtol=0, atol=2.0**-22 * 8)
        else:
            result = coll.broadcast(x.copy(), SIZE - 1, residual=new, **how)
            assert same_on_all_ranks(result)
            if RANK == SIZE - 1:
                np.testing.assert_allclose(result + new, x + old, rtol=0, atol=2.0**-22 * 8)
            else:
                np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("name, most", [
    ("float16", 1 / 2), ("bfloat16", 1 / 2), ("int8", 1 / 3.9), ("int4", 1 / 7.7),
    ("ternary", 1 / 15), ("sign", 1 / 29), ("topk:0.01", 1 / 49), ("threshold:2.6", 1 / 45)])
@pytest.mark.parametrize("algorithm", ["direct", "ring", "halving_doubling"][:3 if FEW else 1])
def test_bytes_on_the_wire_are_what_the_codec_says_for_any_number_of_ranks(algorithm, name, most):
    codec, count = coll.as_codec(name), 1 << 18
    x = np.random.default_rng(RANK).standard_normal(count).astype(np.float32)
    def sent(**how):
        before = coll.world().sent_nbytes
        coll.allreduce(x.copy(), "mean", algorithm=algorithm, **how)
        return coll.world().sent_nbytes - before
    plain = COMM.allreduce(sent())
    got = COMM.allreduce(sent(compression=name))
    assert got <= most * plain
    if SIZE in (2, 4, 8) and not codec.variable:
        assert got == 2 * (SIZE - 1) * SIZE * codec.wire_nbytes(count // SIZE)


def test_stochastic_rounding_differs_between_calls_and_is_the_same_again_for_a_seed():
    x = np.full(1000, 0.3, np.float32)
    x[::100] = 100.0
    results = [coll.allreduce(x.copy(), compression="int8:stochastic=True,seed=5")
               for _ in range(2)]
    assert (results[0] != results[1]).any() == (SIZE > 1)  # on one rank nothing is encoded
    assert same_on_all_ranks(*results)


def test_containers_and_policies_send_each_tensor_as_it_should_be():
    grads = {"w": inputs(5000, "float32", 1)[0], "b": np.full(10, RANK + 0.1, np.float32),
             "steps": np.array([RANK, 1]), "h": inputs(3000, "float16", 2)[0]}
    want = {key: summed(value) for key, value in grads.items()}
    magnitude = {key: summed(np.abs(value)) for key, value in grads.items()}
    feedback = coll.ErrorFeedback()
    policy = coll.MinSize(1024, coll.ByName({"h": "topk:0.1"}, default="int8"))
    result = coll.allreduce(grads, compression=policy, residual=feedback)
    np.testing.assert_array_equal(result["steps"], want["steps"])
    np.testing.assert_allclose(result["b"], want["b"], rtol=SIZE * 2.0**-23)
    for key in ("w", "h"):
        new = feedback[key].residual
        assert new.any() or SIZE == 1
        left = np.abs(result[key] + summed(new) - want[key])
        assert (left <= 3 * SIZE * 2.0**-24 * (magnitude[key] + summed(np.abs(new)))).all()
    assert same_on_all_ranks(*result.values())


def test_a_residual_of_the_tensors_own_type_and_layout():
    x = inputs(600, "float16", 9)[0].reshape(20, 30).T
    old = np.asfortranarray(np.full((30, 20), 0.25, np.float16))
    residual = old.copy(order="K")[::-1]
    result = coll.allreduce(np.array(x), compression="int4", residual=residual)
    left = summed(x.astype(np.float64) + 0.25) - result.astype(np.float64) - summed(residual)
    # The residual is rounded to float16 on each rank: half an ulp of its value.
    ulps = summed(np.abs(residual.astype(np.float64)) * 2.0**-11 + 2.0**-25)
    assert (np.abs(left) <= ulps + 3 * SIZE * 2.0**-24 * 8 * SIZE).all()


@pytest.mark.parametrize("how, error", [
    ({"compression": "int7"}, "expected one of float16, bfloat16, int8"),
    ({"compression": "int8:blok=3"}, "blok"),
    ({"compression": "topk"}, "topk:DENSITY"),
    ({"compression": "int8", "op": "max"}, "expected sum or mean"),
    ({"compression": "int8", "algorithm": "native"}, "expected one of auto, ring, direct"),
    ({"compression": "int8", "algorithm": "recursive_doubling"}, "halving_doubling"),
    ({"compression": "int8", "residual": np.zeros(4, np.float32)}, r"\(4,\)"),
    ({"compression": "int8", "residual": [np.zeros(5, np.float32)]}, "like the tensor"),
])
def test_what_cannot_be_compressed_is_an_error_on_every_rank_before_any_message(how, error):
    before = coll.world().sent_nbytes
    with pytest.raises(ValueError, match=error):
        coll.allreduce(np.ones(5, np.float32), **how)
    assert coll.world().sent_nbytes == before


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_a_codec_named_outright_for_what_it_cannot_encode_is_a_type_error(dtype):
    with pytest.raises(TypeError, match=f"Int8.*{dtype}"):
        coll.allreduce(np.ones(5, dtype), "sum", compression="int8")


def test_switching_compression_off_sends_what_is_left():
    x, old = inputs(500, "float32", 2)
    result, residual = x.copy(), old.copy()
    coll.allreduce(result, residual=residual)
    check_conservation(x, old, residual, result, "sum")
    assert np.abs(residual).max() < 1e-6 and carrier("float32") == residual.dtype


def test_a_broadcast_is_compressed_on_all_ranks_alike_when_the_warm_up_is_over():
    feedback = coll.ErrorFeedback(warmup_steps=1)
    x = np.random.default_rng(1).standard_normal(600).astype(np.float32)
    results = [coll.broadcast(x.copy() if RANK == 0 else np.zeros_like(x), compression="int8",
                              residual=feedback["x"]) for _ in range(2)]
    np.testing.assert_array_equal(results[0], x)
    assert (results[1] != x).any() == (SIZE > 1)  # on one rank nothing is encoded
    assert same_on_all_ranks(*results)
    new = feedback["x"].residual
    np.testing.assert_allclose(results[1] + new if RANK == 0 else new, x if RANK == 0 else 0,
                               rtol=0, atol=2.0**-22 * 8)
