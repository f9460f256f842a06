"""Every kernel of the sparse codecs against NumPy, bit for bit; `kernels.codec` has the table."""

from ctypes import CFUNCTYPE, c_double, c_int64

import numpy as np
import pytest

from collectives.kernels.codec import Emit
from collectives.kernels.codecs import Threshold, TopK
from collectives.kernels.fused import fused_kernel
from tests.sparse_reference import DTYPES, chosen, kernel, pack, saturated

CALL = CFUNCTYPE(None, *[c_int64] * 8, c_double)
POISON = 0xA5
DIVISOR = 3
CODECS = [TopK(0.05), Threshold(1.5)]
RELATIVE = Threshold(relative=1.5)
SIZES = [1, 2, 15, 16, 17, 511, 513, 4113, 20_001]


def accumulator(name):
    return "float64" if name == "float64" else "float32"


def cases():
    """(emit, adds, feedback, a, dst): all of float32, and of each other type what differs."""
    for feedback in (False, True):
        for adds in (False, True):
            yield Emit.WIRE, adds, feedback, "float32", ""
            yield Emit.VALUE, adds, feedback, "float32", "float32"
            if feedback or not adds:
                yield Emit.FINAL, adds, feedback, "float32", "float32"
    for name in DTYPES:
        yield Emit.DECODE, True, False, "", name
        yield Emit.PARTIAL, True, False, name, accumulator(name)
    for name in ("float16", "bfloat16", "float64"):
        yield Emit.WIRE, False, False, name, ""
        yield Emit.VALUE, True, True, name, name
        yield Emit.FINAL, True, True, name, name
    yield Emit.FINAL, False, False, "float32", "bfloat16"


CASES = [(codec, case) for case in cases() for codec in CODECS] + [
    (RELATIVE, (Emit.WIRE, False, False, "float32", "")),
    (RELATIVE, (Emit.FINAL, True, True, "float64", "float64"))]


def name_of_case(value):
    if not isinstance(value, tuple):
        return repr(value)
    emit, adds, feedback, a, dst = value
    return "-".join([emit.name, *["adds"] * adds, *["feedback"] * feedback, a, dst])


def numbers(rng, n, name):
    """Wide in size, with ties, zeros of both signs and denormals."""
    x = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)
    x[rng.random(n) < 0.1] = rng.choice([0.0, -0.0, 1.0, -1.0, 1e-41, 3e38])
    return saturated(x, name)


def spoiled(rng, x):
    """x with some of it not finite."""
    x[rng.random(x.size) < 0.02] = rng.choice([np.nan, np.inf, -np.inf])
    return x


class Memory:
    """An array between guards, at an address that is a multiple of its items only."""

    def __init__(self, nbytes, content=None):
        self.bytes = np.full(nbytes + 40, POISON, np.uint8)
        self.inner = self.bytes[24:24 + nbytes]
        if content is not None:
            self.inner[:] = content.view(np.uint8)

    @property
    def address(self):
        return self.inner.__array_interface__["data"][0]

    def untouched_from(self, nbytes):
        return (self.bytes[:24] == POISON).all() and (self.bytes[24 + nbytes:] == POISON).all()


def bits(array):
    return array.view(f"u{array.dtype.itemsize}")


def assert_same(got, want):
    """Equal bits; of zero and NaN, any."""
    same = (bits(got) == bits(want)) | ((got == 0) & (want == 0)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), f"at {np.flatnonzero(~same)[:9]}: {got[~same][:9]} is not {want[~same][:9]}"


def run(codec, case, a, incoming, residual, divisor, in_place):
    """(dst, wire, residual) as memory, after the kernel."""
    emit, adds, feedback, a_name, dst = case
    n = incoming[0].size
    acc = accumulator(a_name if dst != "float64" else dst)
    work = acc if emit is Emit.WIRE and adds and not feedback else dst
    out = Memory(n * DTYPES[work].itemsize if work else 0)
    own = Memory(0 if a is None else a.nbytes, a)
    if in_place:
        out = own
    rest = Memory(residual.nbytes, residual) if feedback else None
    wire = Memory(codec.wire_nbytes(n) if emit in (Emit.WIRE, Emit.FINAL) else 0)
    arrived = Memory(incoming[1].size, incoming[1]) if adds else None
    address = fused_kernel(codec.layout, emit, adds, feedback, a_name, dst)
    CALL(address)(out.address, own.address, arrived.address if adds else 0,
                  rest.address if feedback else 0, wire.address, n, divisor, 0, codec.parameter)
    for memory in filter(None, (out, rest, wire)):
        assert memory.untouched_from(memory.inner.size)
    return out, wire, rest


def check(codec, case, rng, n, spoil=(), in_place=False):
    """spoil : which of the inputs are not all finite."""
    emit, adds, feedback, a_name, dst = case
    acc = accumulator(a_name if dst != "float64" else dst)
    a = numbers(rng, n, a_name) if a_name else None
    came, residual = numbers(rng, n, "float32"), numbers(rng, n, acc) / DTYPES[acc].type(16)
    for name, x in (("a", a), ("incoming", came), ("residual", residual)):
        if name in spoil and x is not None:
            spoiled(rng, x)
    came[np.isnan(came)] = np.float32(np.nan)
    picked = chosen(codec, came)
    wired = np.zeros(n, np.float32)
    wired[picked] = came[picked]
    with np.errstate(over="ignore", invalid="ignore"):
        want = kernel(codec, emit, a, wired if adds else None, residual if feedback else None,
                      DIVISOR, dst)
    incoming = wired, pack(codec, came, picked)
    out, wire, rest = run(codec, case, a, incoming, residual, DIVISOR, in_place)
    if want.dst is not None:
        assert_same(out.inner.view(want.dst.dtype), want.dst)
    if want.wire is not None:
        np.testing.assert_array_equal(wire.inner[:want.wire.size], want.wire)
    if want.residual is not None:
        assert_same(rest.inner.view(acc), want.residual)


@pytest.mark.parametrize("codec, case", CASES, ids=name_of_case)
class TestOfEveryKernel:
    def test_it_has_the_bits_of_numpy(self, codec, case):
        rng = np.random.default_rng(1)
        for n in SIZES:
            check(codec, case, rng, n)

    def test_it_takes_what_is_not_finite(self, codec, case):
        rng = np.random.default_rng(2)
        for n in SIZES:
            for spoil in (["a"], ["incoming"], ["residual"], ["a", "incoming", "residual"]):
                check(codec, case, rng, n, spoil)

    def test_it_may_work_in_place(self, codec, case):
        emit, _, _, a, dst = case
        if a != dst or emit not in (Emit.PARTIAL, Emit.FINAL, Emit.VALUE):
            pytest.skip("dst and a are of different types, or there is only one of them")
        rng = np.random.default_rng(3)
        for n in SIZES:
            check(codec, case, rng, n, ["a"], in_place=True)

    def test_nothing_is_done_to_no_elements(self, codec, case):
        emit, adds, feedback, a, dst = case
        address = fused_kernel(codec.layout, emit, adds, feedback, a, dst)
        CALL(address)(0, 0, 0, 0, 0, 0, 1, 0, codec.parameter)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_a_sum_without_a_place_is_refused(codec):
    with pytest.raises(ValueError, match="FINAL with adds needs feedback"):
        fused_kernel(codec, Emit.FINAL, True, False, "float32", "float32")
