"""Every length and every alignment, and nothing beside the target."""

import numpy as np

from collectives.kernels.copying import copy

GUARD = 0xEE


def test_every_length_from_and_to_every_alignment():
    random = np.random.default_rng(0)
    source = random.integers(0, 200, 4096, np.uint8)
    for n in [*range(260), 300, 319, 320, 321, 511, 512, 575, 576, 577, 1000, 2048, 3001]:
        for src, dst in ((0, 0), (1, 0), (0, 1), (63, 17), (16, 64)):
            target = np.full(4096, GUARD, np.uint8)
            copy(target.ctypes.data + dst, source.ctypes.data + src, n)
            np.testing.assert_array_equal(target[dst:dst + n], source[src:src + n])
            assert (target[:dst] == GUARD).all() and (target[dst + n:] == GUARD).all(), (n, dst)


def test_onto_itself():
    x = np.arange(1000, dtype=np.uint8)
    copy(x.ctypes.data, x.ctypes.data, 1000)
    np.testing.assert_array_equal(x, np.arange(1000, dtype=np.uint8))
