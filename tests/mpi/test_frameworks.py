"""PyTorch tensors and JAX arrays.  At two rank counts only: importing them takes seconds a rank."""

import numpy as np
import pytest

import collectives as coll
from tests.mpi.reference import RANK, SIZE

if SIZE not in (2, 3):
    pytest.skip("on 2 and 3 ranks", allow_module_level=True)

torch = pytest.importorskip("torch")
TOTAL = SIZE * (SIZE + 1) // 2
FACTOR = RANK + 1


def numbers(*shape, dtype=torch.float32):
    return torch.arange(1, 1 + int(np.prod(shape))).reshape(shape).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_strided_column_over_every_verb(dtype):
    def column():
        return (numbers(2 * SIZE, 2, dtype=torch.float32) % 5 * FACTOR).to(dtype)[:, 0]

    for verb in ("allreduce", "iallreduce", "reduce", "broadcast", "reduce_scatter", "allgather"):
        results = []
        for x in (column(), column().contiguous()):
            got = getattr(coll, verb)(x)
            results.append(got.wait() if verb == "iallreduce" else got)
        assert torch.equal(*results) and results[0].dtype == dtype, verb


def test_the_other_column_is_left_alone():
    pairs = numbers(2, 2) * FACTOR
    got = coll.allreduce(pairs[:, 0])
    assert torch.equal(pairs, torch.stack([numbers(2, 2)[:, 0] * TOTAL,
                                           numbers(2, 2)[:, 1] * FACTOR], dim=1))
    assert got.data_ptr() == pairs.data_ptr()


def test_channels_last_meets_contiguous_and_stays():
    x = numbers(2, 3, 4, 4) * FACTOR
    x = x.to(memory_format=torch.channels_last) if RANK == 0 else x
    assert coll.allreduce(x) is x and torch.equal(x, numbers(2, 3, 4, 4) * TOTAL)
    assert x.is_contiguous(memory_format=torch.channels_last) == (RANK == 0)
    assert torch.equal(coll.allgather(x)[SIZE - 1], x)


def test_transposed_meets_row_major():
    x = (numbers(4, 3) * FACTOR).t().contiguous().t() if RANK == 0 else numbers(4, 3) * FACTOR
    assert torch.equal(coll.allreduce(x), numbers(4, 3) * TOTAL)


@pytest.mark.parametrize("verb", ["allreduce", "broadcast"])
def test_a_parameter_is_updated_and_stays_a_leaf(verb):
    p = torch.nn.Parameter(torch.full((3,), float(FACTOR)))
    version = p._version
    assert getattr(coll, verb)(p) is p
    assert p.tolist() == [TOTAL if verb == "allreduce" else 1] * 3
    assert p.requires_grad and p.is_leaf and p.grad_fn is None and p._version > version


def test_a_result_out_of_place_has_no_graph():
    y = torch.nn.Parameter(torch.ones(3)) * 2
    out = coll.allreduce(y, out=torch.empty(3))
    assert not out.requires_grad and out.tolist() == [2 * SIZE] * 3
    assert y.tolist() == [2] * 3 and y.grad_fn is not None


def test_sparse_tensors_are_refused_on_every_rank_and_the_next_call_works():
    nnz = 2 if RANK == 0 else 5
    x = torch.sparse_coo_tensor(torch.zeros(1, nnz, dtype=torch.int64), torch.ones(nnz), (10,))
    for tensor in (x, x.coalesce()):
        with pytest.raises(TypeError, match="to_dense"):
            coll.allreduce(tensor)
    assert torch.equal(coll.allreduce(x.to_dense())[:1], torch.tensor([2.0 + 5 * (SIZE - 1)]))


def test_a_mean_of_integers_is_numpys():
    values = [2 * RANK + 1, -2 * RANK - 1, 100, -(RANK == 0), 7]
    for dtype in ("int32", "uint8", "int64"):
        x = np.array(values).astype(dtype)
        got = coll.allreduce(torch.from_numpy(x.copy()), "mean")
        assert got.tolist() == coll.allreduce(x, "mean").tolist()


def test_ranks_may_differ_in_framework():
    x = np.full(4, FACTOR, np.float32)
    got = coll.allreduce(torch.from_numpy(x) if RANK == 0 else x)
    assert got.tolist() == [TOTAL] * 4


def test_jax_arrays_are_reduced_by_value():
    jnp = pytest.importorskip("jax.numpy")
    for dtype in (jnp.float32, jnp.bfloat16, jnp.int8, jnp.bool_):
        x = jnp.arange(5).astype(dtype) * (FACTOR if dtype is not jnp.bool_ else True)
        before = np.asarray(x).copy()
        want = before if dtype is jnp.bool_ else (jnp.arange(5) * TOTAL).astype(dtype)
        got = coll.allreduce(x)
        assert type(got) is type(x) and got.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
        np.testing.assert_array_equal(np.asarray(x), before)
    assert coll.allgather(x).shape == (SIZE, 5)
    assert coll.broadcast(jnp.float32(RANK), SIZE - 1) == SIZE - 1
    mixed = coll.allreduce({"jax": jnp.ones(2), "torch": torch.ones(2), "numpy": np.ones(2)})
    assert all(float(v[0]) == SIZE for v in mixed.values())
