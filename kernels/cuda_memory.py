"""The one place where device code differs between a GPU and Numba's simulator.

    load, store                         elements at an address, aligned to their size
    load_packed, store_packed           a float32 at any address, byte by byte
    float_bits, bits_float              bit patterns of float32
    double_bits                         and of float64
    scalar_function, block_function     decorators of device functions: those of numbers alone, and
                                        those that use threads, shared memory and barriers

The simulator (NUMBA_ENABLE_CUDASIM=1 before Numba is imported) runs kernels as Python on the
host's memory, one thread per GPU thread.  It has no intrinsics; `cuda_simulated` has functions.

Only imported when a device kernel is asked for: see `kernels.cuda`.
"""

import numpy as np
from numba import config, cuda

SIMULATED = bool(config.ENABLE_CUDASIM)

if SIMULATED:
    from collectives.kernels.cuda_simulated import (
        bits_float,
        double_bits,
        float_bits,
        load,
        store,
    )

    def scalar_function(function):
        """Plain Python: the simulator's own wrapper makes every call 10 times as slow."""
        return function
else:
    from collectives.kernels.cuda_intrinsics import (
        bits_float,
        double_bits,
        float_bits,
        load,
        store,
    )

    def scalar_function(function):
        """A device function of numbers."""
        return cuda.jit(function, device=True)


def block_function(function):
    """A device function that all threads of a block call together."""
    return cuda.jit(function, device=True)


_BYTE, _U8 = np.uint32(0xFF), np.uint32(8)


@scalar_function
def load_packed(address):
    """The float32 at `address`, which need not be a multiple of 4."""
    bits = np.uint32(load(address, 3, np.uint8))
    bits = np.uint32(np.uint32(bits << _U8) | np.uint32(load(address, 2, np.uint8)))
    bits = np.uint32(np.uint32(bits << _U8) | np.uint32(load(address, 1, np.uint8)))
    bits = np.uint32(np.uint32(bits << _U8) | np.uint32(load(address, 0, np.uint8)))
    return bits_float(bits)


@scalar_function
def store_packed(address, value):
    """Write a float32 to `address`, which need not be a multiple of 4."""
    bits = float_bits(value)
    for byte in range(4):
        store(address, byte, np.uint8(bits & _BYTE))
        bits = np.uint32(bits >> _U8)


__all__ = ["SIMULATED", "bits_float", "block_function", "double_bits", "float_bits", "load",
           "load_packed", "scalar_function", "store", "store_packed"]
