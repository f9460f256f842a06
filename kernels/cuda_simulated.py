"""What `cuda_intrinsics` has, for Numba's CUDA simulator: threads of Python on host memory."""

import ctypes

import numpy as np


def load(address, index, dtype):
    """Element `index` of the array of `dtype` (a NumPy type) at the integer `address`."""
    return _element(address, index, np.dtype(dtype))[0]


def store(address, index, value):
    """Write `value`, a NumPy scalar, to element `index` of the array of its type at `address`."""
    _element(address, index, value.dtype)[0] = value


def _element(address, index, dtype):
    where = int(address) + int(index) * dtype.itemsize
    if where % dtype.itemsize:
        raise ValueError(f"address {where:#x} of a {dtype} is not aligned: a GPU cannot read it")
    return np.frombuffer((ctypes.c_char * dtype.itemsize).from_address(where), dtype)


def _bitcast(source, target):
    def cast(value):
        if type(value) is not source:
            raise TypeError(f"bits of a {type(value).__name__}: expected {source.__name__}")
        return value.view(target)
    return cast


float_bits = _bitcast(np.float32, np.uint32)
bits_float = _bitcast(np.uint32, np.float32)
double_bits = _bitcast(np.float64, np.uint64)


def half_to_float(bits):
    """The float32 that equals the IEEE half with these bits."""
    return np.float32(np.uint16(bits).view(np.float16))


def float_to_half(value):
    """Bits of the IEEE half nearest to a float32, ties to even; Inf above its range."""
    return np.float16(np.float32(value)).view(np.uint16)
