"""Frozen wire bytes of the dense codecs: a contract between ranks, and with wires that were saved.

X is a block of 8 and a tail of 3.
"""

import numpy as np
import pytest

from collectives.kernels.codecs import BFloat16, Float16, Int4, Int8, Sign, Ternary

X = np.array([1, -2, 127, 0, 3.5, -0.0, 1e-3, -64, 63.5, 1, 254], np.float32)
FROZEN = {
    Float16(): "003c 00c0 f057 0000 0043 0080 1914 00d4 f053 003c f05b",
    BFloat16(): "803f 00c0 fe42 0000 6040 0080 833a 80c2 7e42 803f 7e43",
    Int8(block=8): "0000803f 01 fe 7f 00 04 00 00 c0"  # scale 1; 3.5 is a tie
                   "00000040 20 00 7f",                # scale 2
    Int4(block=8): "92249141 00 00 07 c0"              # scale 127/7; 7 and, in the high half, -4
                   "92241142 72 00",
    Ternary(block=8): "0000fe42 04 c0"                 # scale 127; 1 in byte 0, -1 in byte 1
                      "00007e43 10",
    Sign(block=8): "4280c541 82"                       # mean 197.501 / 8; elements 1 and 7
                   "5555d442 00",
    Int8(block=8, stochastic=True, seed=7): "0000803f 01 fe 7f 00 04 00 00 c0 00000040 20 01 7f",
    Int4(block=8, stochastic=True, seed=7): "92249141 10 00 07 d0 92241142 72 00",
    Ternary(block=8, stochastic=True, seed=7): "0000fe42 14 00 00007e43 10",
}


@pytest.mark.parametrize("codec", FROZEN, ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wire_bytes_are_frozen(codec, dtype):
    wire = np.full(codec.wire_nbytes(X.size), 0xAA, np.uint8)
    codec.encode(X.astype(dtype), None, wire)
    assert wire.tobytes() == bytes.fromhex(FROZEN[codec])


@pytest.mark.parametrize("codec", FROZEN, ids=repr)
def test_zeros_of_every_sign_have_frozen_bytes(codec):
    wire = np.full(codec.wire_nbytes(2), 0xAA, np.uint8)
    codec.encode(np.array([0.0, -0.0], np.float32), None, wire)
    if codec.bits == 16:
        assert wire.tobytes() == bytes.fromhex("0000 0080")
    else:  # the smallest scale of levels is 2^-126
        scale = "00000000" if codec.name == "sign" else "00008000"
        assert wire.tobytes() == bytes.fromhex(scale) + bytes(wire.size - 4)


@pytest.mark.parametrize("codec", FROZEN, ids=repr)
def test_what_is_not_finite_has_frozen_bytes(codec):
    wire = np.full(codec.wire_nbytes(2), 0xAA, np.uint8)
    codec.encode(np.array([np.inf, 1.0], np.float32), None, wire)
    want = {"float16": "007c 003c", "bfloat16": "807f 803f"}.get(codec.name)
    assert wire.tobytes() == (bytes.fromhex(want) if want else
                              bytes.fromhex("0000c07f") + bytes(wire.size - 4))
