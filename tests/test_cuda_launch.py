"""Launching device kernels: with a driver that stands in for a GPU, and without one."""

from ctypes import c_double, c_longlong
from importlib.util import find_spec

import numpy as np
import pytest

if find_spec("numba_cuda") is None or find_spec("cuda") is None:
    pytest.skip("needs numba-cuda: pip install 'mpi-collectives[cuda12]'",
                allow_module_level=True)

from cuda.bindings import driver

from collectives.kernels import cuda_launch
from collectives.kernels.codec import Emit
from collectives.kernels.codecs import Int8
from collectives.kernels.cuda import address_of, device_kernel, handle_of, unavailable


class Driver:
    """Stands in for a GPU of compute capability 9.0 and records what it is asked."""

    CUresult = driver.CUresult
    CUdevice_attribute = driver.CUdevice_attribute

    def __init__(self):
        self.context, self.calls = 0, []

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *given: (driver.CUresult.CUDA_SUCCESS, *self.answer(name, given))

    def answer(self, name, given):
        self.calls.append((name, given))
        if name == "cuCtxSetCurrent":
            self.context = given[0]
            return ()
        if name == "cuDeviceGetAttribute":
            return (9 if "MAJOR" in given[0].name else 0,)
        return ({"cuCtxGetCurrent": self.context, "cuDevicePrimaryCtxRetain": 5,
                 "cuDeviceGetCount": 1, "cuModuleLoadData": 6, "cuModuleGetFunction": 7}
                .get(name, 0),)

    def asked(self, name):
        return [given for called, given in self.calls if called == name]


@pytest.fixture
def gpu(monkeypatch):
    found = Driver()
    monkeypatch.setattr(cuda_launch, "driver", found)
    monkeypatch.setattr(cuda_launch, "_loaded", {})
    for cached in (cuda_launch._initialize, cuda_launch._capability):
        cached.cache_clear()
    yield found
    for cached in (cuda_launch._initialize, cuda_launch._capability):
        cached.cache_clear()


def test_a_launch_loads_once_and_passes_what_the_kernel_takes(gpu):
    kernel = device_kernel(Int8(block=16), Emit.DECODE, True, False, "", "float32")
    for stream in (None, 3):
        kernel.launch(stream, 256, None, 512, None, None, 33, 1, 2**64 - 2, 0.5)
    assert unavailable() == "" and len(gpu.asked("cuModuleLoadData")) == 1
    assert [given for given in gpu.asked("cuLaunchKernel")] == [
        (7, 3, 1, 1, 32, 1, 1, 0, stream,
         ((256, 0, 512, 0, 0, 33, 1, -2, 0.5), (c_longlong,) * 8 + (c_double,)), 0)
        for stream in (0, 3)]
    kernel.launch(None, 256, None, 512, None, None, 0, 1, 0, 0.5)  # nothing to do
    assert len(gpu.asked("cuLaunchKernel")) == 2


def test_another_context_gets_a_module_of_its_own(gpu):
    kernel = device_kernel(Int8(block=16), Emit.DECODE, True, False, "", "float32")
    for context in (11, 12, 11):
        gpu.context = context
        kernel.launch(None, 256, None, 512, None, None, 33, 1, 0, 0.0)
    assert len(gpu.asked("cuModuleLoadData")) == 2 and not gpu.asked("cuCtxSetCurrent")


def test_an_error_of_the_driver_is_named(gpu, monkeypatch):
    kernel = device_kernel(Int8(block=16), Emit.DECODE, True, False, "", "float32")
    monkeypatch.setattr(gpu, "cuLaunchKernel", lambda *given: (
        driver.CUresult.CUDA_ERROR_INVALID_VALUE,), raising=False)
    with pytest.raises(RuntimeError, match="cuLaunchKernel: CUDA_ERROR_INVALID_VALUE"):
        kernel.launch(None, 256, None, 512, None, None, 33, 1, 0, 0.0)


@pytest.mark.skipif(not unavailable(), reason="a GPU is here: bench/gpu_kernels.py checks launches")
def test_without_a_gpu_a_launch_says_so():
    kernel = device_kernel(Int8(), Emit.DECODE, True, False, "", "float32")
    with pytest.raises(RuntimeError, match="no NVIDIA"):
        kernel.launch(None, 256, None, 512, None, None, 8, 1, 0, 0.0)
    assert "no NVIDIA" in unavailable()


class Array:
    def __init__(self, address):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (1,),
                                         "typestr": "<f4", "version": 3}


def test_arrays_and_streams_of_any_framework():
    assert [address_of(x) for x in (Array(4096), 77, None)] == [4096, 77, 0]
    with pytest.raises(TypeError, match="ndarray: expected an array on the device"):
        address_of(np.zeros(3))
    cupy, torch = type("S", (), {"ptr": 7})(), type("S", (), {"cuda_stream": 8})()
    assert [handle_of(s) for s in (cupy, torch, 9, None)] == [7, 8, 9, 0]
