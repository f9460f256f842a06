"""Rounding to bfloat16 in NumPy, which has no such type: bits in, bits out."""

import numpy as np

from collectives.rounding import narrow, widen


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan():
    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0x7F7FFFFF],
                    np.uint32)
    rounded = narrow(bits.view(np.float32), "bfloat16")
    assert [hex(x) for x in rounded] == ["0x3f80", "0x3f80", "0x3f82", "0x3f81", "0x7fc0", "0x7f80"]


def test_every_bfloat16_survives_widening_and_narrowing():
    every = np.arange(1 << 16).astype(np.uint16)
    numbers = every[~np.isnan(widen(every, "bfloat16"))]
    assert numbers.size == (1 << 16) - 2 * 127
    assert (narrow(widen(numbers, "bfloat16"), "bfloat16") == numbers).all()
