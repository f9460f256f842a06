"""Every kernel of the dense codecs against NumPy, bit for bit; `kernels.codec` has the table."""

from ctypes import CFUNCTYPE, c_double, c_int64

import numpy as np
import pytest

from collectives.kernels.codec import Emit
from collectives.kernels.codecs import BFloat16, Float16, Int4, Int8, Sign, Ternary
from collectives.kernels.fused import fused_kernel
from tests import dense_reference as reference

CODECS = [Float16(), BFloat16(), Int8(), Int4(), Ternary(), Sign(),
          Ternary(block=72, stochastic=True)]
NARROW = ["float16", "bfloat16", "float64"]
N = 2 * 1024 + 37
DIVISOR, SEED = 3, 0x1234_5678_9ABC_DEF0
POISON = 0xAA
CALL = CFUNCTYPE(None, *[c_int64] * 8, c_double)


def cases():
    """(codec, emit, adds, feedback, a, dst): all for float32, the fullest for other types.

    Types are converted in one place for all codecs of a kind, so one of each kind has all types.
    """
    for codec in CODECS:
        for emit in (Emit.WIRE, Emit.FINAL):
            for adds, feedback in np.ndindex(2, 2):
                yield codec, emit, bool(adds), bool(feedback), "float32", "float32"
        for name in ["float32", *(NARROW if codec in (Float16(), Int8(), Sign()) else [])]:
            acc = "float64" if name == "float64" else "float32"
            yield codec, Emit.PARTIAL, True, False, name, acc
            yield codec, Emit.DECODE, True, False, "", name
            yield codec, Emit.VALUE, True, True, name, name
            if name != "float32":
                yield codec, Emit.WIRE, True, True, name, ""
                yield codec, Emit.FINAL, True, True, name, name
        yield codec, Emit.FINAL, True, True, "float32", "float16"
    for name in ["float32", *NARROW]:
        yield None, Emit.PARTIAL, False, False, name, "float64" if name == "float64" else "float32"
        yield None, Emit.VALUE, False, False, name, name
        yield None, Emit.VALUE, False, True, name, name
    yield None, Emit.VALUE, False, True, "float32", "bfloat16"


CASES = [(codec, emit, adds, feedback, a, "" if emit is Emit.WIRE else dst)
         for codec, emit, adds, feedback, a, dst in cases()]


def case_id(value):
    return value.name if isinstance(value, Emit) else repr(value)


def ordinary(n, name, rng):
    x = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)
    x[n // 4:n // 2] = 0.0
    return reference.saturated(x, name)


def special(n, name, rng):
    """Each where it spoils no more than a block; the first block is good."""
    x = rng.standard_normal(n)
    rare = [np.nan, np.inf, -np.inf, -0.0, 1e-40, -3e-45, 1e-320, 65519.9, -7e4, 3.4e38, 1e300, 0.0]
    x[-500:-500 + len(rare)] = rare
    x[-100:-92] = [65519.9, -7e4, 3.3e38, -1e300, 1e-41, 0.0, -0.0, 1e-6]
    return reference.saturated(x, name)


class Guarded:
    """A copy of an array, or poison, between guard bytes; of odd address if `odd`."""

    def __init__(self, array, odd=False):
        self.nbytes, self.dtype, start = array.nbytes, array.dtype, 64 + odd
        self.memory = np.full(array.nbytes + 128, POISON, np.uint8)
        self.inner = self.memory[start:start + array.nbytes]
        self.address = self.inner.__array_interface__["data"][0]

    def filled(self, array):
        self.inner[:] = array.view(np.uint8)
        return self

    def values(self):
        return self.inner.view(self.dtype) if self.nbytes else np.zeros(0, self.dtype)

    def check_guards(self):
        outside = self.memory.copy()
        start = self.address - self.memory.__array_interface__["data"][0]
        outside[start:start + self.nbytes] = POISON
        assert (outside == POISON).all()


def guarded(array, odd=False):
    return None if array is None else Guarded(array, odd).filled(array)


def blank(n, dtype, odd=False):
    return Guarded(np.zeros(n, dtype), odd)


class Run:
    """One call of a kernel with its inputs, and what NumPy expects."""

    def __init__(self, case, n, fill, in_place=False):
        codec, emit, adds, feedback, a, dst = case
        rng = np.random.default_rng(n)
        acc = "float64" if "float64" in (a, dst) else "float32"
        mine = fill(n, a, rng) if a else None
        theirs = fill(n, "float32", rng)
        residual = (fill(n, acc, rng) / 8).astype(acc) if feedback else None
        if residual is not None:  # residuals are finite
            residual[~np.isfinite(residual)] = 0.25
        incoming = reference.encode(codec, theirs, 7) if adds else None
        with np.errstate(all="ignore"):
            self.want = reference.run(codec, emit, mine, (incoming, n) if adds else None, residual,
                                      DIVISOR, SEED, dst or acc)
        odd = codec is not None and codec.bits != 16
        self.a, self.incoming, self.residual = (
            guarded(mine), guarded(incoming, odd), guarded(residual))
        self.wire = blank(codec.wire_nbytes(n), np.uint8, odd) if self.want[2] is not None else None
        self.dst = self.a if in_place else blank(n, reference.DTYPES[dst]) if dst else None
        call = CALL(fused_kernel(*case))
        call(*(x.address if x else 0 for x in (
            self.dst, self.a, self.incoming, self.residual, self.wire)), n, DIVISOR, SEED, 0.0)
        self.inputs = mine, incoming

    def check(self):
        for got, want in zip((self.dst, self.residual, self.wire), self.want, strict=True):
            if want is not None:
                np.testing.assert_array_equal(got.values(), want)
        for array in (self.dst, self.a, self.incoming, self.residual, self.wire):
            if array is not None:
                array.check_guards()
        if self.a is not None and self.a is not self.dst:
            np.testing.assert_array_equal(self.a.values(), self.inputs[0])


@pytest.mark.parametrize("codec, emit, adds, feedback, a, dst", CASES, ids=case_id)
class TestEveryKernel:
    def test_writes_what_numpy_does(self, codec, emit, adds, feedback, a, dst):
        for n in (0, 1, 7, N):
            Run((codec, emit, adds, feedback, a, dst), n, ordinary).check()

    def test_keeps_special_values_in_their_blocks(self, codec, emit, adds, feedback, a, dst):
        Run((codec, emit, adds, feedback, a, dst), N, special).check()

    def test_writes_over_its_own_input(self, codec, emit, adds, feedback, a, dst):
        if a == dst:
            Run((codec, emit, adds, feedback, a, dst), N, special, in_place=True).check()


def test_seed_and_parameter_are_told_at_run_time():
    one = fused_kernel(Int8(stochastic=True).layout, Emit.WIRE, False, False, "float32", "")
    other = fused_kernel(Int8(stochastic=True, seed=9).layout, Emit.WIRE, False, False, "float32",
                         "")
    assert one == other


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_kernels_of_other_layouts_are_others(codec):
    def addresses(codec):
        return {fused_kernel(codec.layout, emit, True, True, "float32", "float32")
                for emit in (Emit.FINAL, Emit.VALUE)}

    others = [other for other in CODECS if other != codec]
    assert not addresses(codec) & set().union(*map(addresses, others))
