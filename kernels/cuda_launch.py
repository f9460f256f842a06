"""Launching machine code through the driver, on the memory and streams of any framework.

Kernels belong to a context.  A thread that has none gets the primary one of device 0, which CuPy,
PyTorch, JAX and Numba use too.
"""

import ctypes
import threading
from functools import lru_cache

from cuda.bindings import driver

_C_TYPES = (ctypes.c_longlong,) * 8 + (ctypes.c_double,)
_ATTRIBUTE = driver.CUdevice_attribute
_loaded: dict[tuple[int, str], object] = {}  # (context, kernel's name): function
_lock = threading.Lock()


def compute_capability() -> tuple[int, int]:
    """Of the device of this thread's context.

    Raises
    ------
    RuntimeError
        If there is no driver or no device.
    """
    _start()
    return _capability(int(_checked("cuCtxGetDevice", driver.cuCtxGetDevice())))


def function(name: str, machine_code):
    """The loaded kernel; `machine_code()` -> (entry, cubin) is asked for once per context."""
    _start()
    key = int(_checked("cuCtxGetCurrent", driver.cuCtxGetCurrent())), name
    if key not in _loaded:
        with _lock:
            if key not in _loaded:
                entry, cubin = machine_code()
                module = _checked("cuModuleLoadData", driver.cuModuleLoadData(cubin))
                _loaded[key] = _checked("cuModuleGetFunction",
                                        driver.cuModuleGetFunction(module, entry))
    return _loaded[key]


def launch(kernel, blocks: int, threads: int, stream: int, arguments: tuple) -> None:
    """Queue `kernel`, from `function`, on a stream (the driver's handle; 0 for the default one)."""
    _checked("cuLaunchKernel", driver.cuLaunchKernel(
        kernel, blocks, 1, 1, threads, 1, 1, 0, stream, (arguments, _C_TYPES), 0))


def _start() -> None:
    """Make sure that this thread has a context."""
    _initialize()
    if not int(_checked("cuCtxGetCurrent", driver.cuCtxGetCurrent())):
        device = _checked("cuDeviceGet", driver.cuDeviceGet(0))
        context = _checked("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(device))
        _checked("cuCtxSetCurrent", driver.cuCtxSetCurrent(context))


@lru_cache(maxsize=1)
def _initialize() -> None:
    try:
        result = driver.cuInit(0)
    except RuntimeError as error:  # the library cannot be loaded
        raise RuntimeError(f"no NVIDIA driver: {error}") from error
    _checked("cuInit", result)
    if not _checked("cuDeviceGetCount", driver.cuDeviceGetCount()):
        raise RuntimeError("no NVIDIA GPU is visible to this process")


@lru_cache
def _capability(device: int) -> tuple[int, int]:
    major, minor = (
        _checked("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(attribute, device))
        for attribute in (_ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                          _ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
    return major, minor


def _checked(call: str, result: tuple):
    """What a driver's call returned beside its status."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{call}: {status.name}")
    return values[0] if values else None
