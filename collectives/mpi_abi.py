"""Call MPI's C functions from compiled code.  The only module that knows a handle's width.

MPI functions are external symbols of the loaded libmpi, so that functions compiled against them
can be cached on disk (a ctypes pointer could not).  Handles are 4 bytes under MPICH and pointers
under Open MPI and the MPI ABI; compiled code receives them as int64 and narrows them here.
Requests live in 8-byte slots whatever their width.  `MPI_STATUS_IGNORE` differs between libraries,
so a real status is always passed.

Importing this module needs an initialised MPI: import it from functions.
"""

import re
from pathlib import Path

import llvmlite.binding
import numpy as np
from mpi4py import MPI
from numba import njit, types

from collectives.kernels.scalars import store

REQUEST_NBYTES = 8  # stride of request slots
STATUS_NBYTES = MPI._sizeof(MPI.Status)
SUCCESS = MPI.SUCCESS
_IOV = 64  # offset in the scratch that calls use: a flag, a status, two iovecs
IO_NBYTES = 128

_handle = {4: types.int32, 8: types.int64}[MPI._sizeof(MPI.Comm)]
_pointer = types.intp
_int = types.int32


def _library_path() -> str:
    """The libmpi that mpi4py loaded, from the process's own map of memory."""
    maps = Path("/proc/self/maps")
    names = set(re.findall(r"(/\S*/libmpi(?:_abi)?\.so\S*)$", maps.read_text(), re.M)) \
        if maps.exists() else set()
    if len(names) > 1:
        raise RuntimeError(f"more than one MPI library in this process: {sorted(names)}")
    return names.pop() if names else MPI.__file__


llvmlite.binding.load_library_permanently(_library_path())


def _external(name, *arguments, returns=_int):
    return types.ExternalFunction(name, returns(*arguments))


_isend = _external("MPI_Isend", _pointer, _int, _handle, _int, _int, _handle, _pointer)
_irecv = _external("MPI_Irecv", _pointer, _int, _handle, _int, _int, _handle, _pointer)
_test = _external("MPI_Test", _pointer, _pointer, _pointer)
_get_count = _external("MPI_Get_count", _pointer, _handle, _pointer)
_wtime = _external("MPI_Wtime", returns=types.float64)
_sched_yield = _external("sched_yield")
_usleep = _external("usleep", types.uint32)
_process_vm_readv = _external(
    "process_vm_readv", _int, _pointer, types.uintp, _pointer, types.uintp, types.uintp,
    returns=types.intp)
_to_handle = {4: np.int32, 8: np.int64}[MPI._sizeof(MPI.Comm)]


@njit(inline="always")
def isend(address, nbytes, peer, tag, byte, comm, request):
    return _isend(address, np.int32(nbytes), _to_handle(byte), np.int32(peer), np.int32(tag),
                  _to_handle(comm), request)


@njit(inline="always")
def irecv(address, nbytes, peer, tag, byte, comm, request):
    return _irecv(address, np.int32(nbytes), _to_handle(byte), np.int32(peer), np.int32(tag),
                  _to_handle(comm), request)


@njit(inline="always")
def test(request, flag, status):
    """Writes int32 `flag`; the request slot is dead once it is set."""
    return _test(request, flag, status)


@njit(inline="always")
def get_count(status, byte, count):
    """Writes the received bytes to int32 `count`."""
    return _get_count(status, _to_handle(byte), count)


@njit(inline="always")
def wtime():
    return _wtime()


@njit(inline="always")
def sched_yield():
    _sched_yield()


@njit(inline="always")
def usleep(microseconds):
    _usleep(np.uint32(microseconds))


@njit(inline="always")
def read_memory(pid, dst, src, nbytes, io):
    """Copy from `src` in process `pid` to `dst` here; False if the system refuses.

    io : address of IO_NBYTES bytes of scratch
    """
    iov = io + _IOV
    store(iov, 0, np.int64(dst))
    store(iov, 1, np.int64(nbytes))
    store(iov, 2, np.int64(src))
    store(iov, 3, np.int64(nbytes))
    return _process_vm_readv(np.int32(pid), iov, np.uint64(1), iov + 16, np.uint64(1),
                             np.uint64(0)) == nbytes


def handle(obj) -> int:
    """The C handle of an mpi4py object, as an int64 (two's complement where it is a pointer)."""
    return int(np.uint64(MPI._handleof(obj)).view(np.int64))


def library() -> str:
    """Which MPI library this is, for cache keys: compiled code depends on handle widths."""
    return f"{MPI.get_vendor()[0]} handle={MPI._sizeof(MPI.Comm)}"
