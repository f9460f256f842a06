"""From a Python function to machine code of a GPU; no GPU is needed.

    Numba          Python -> LTO-IR for one compute capability
    nvJitLink      LTO-IR -> machine code, or PTX to look at

Numba has no option against contracting x * y + z into one rounding, which a host does not do; the
linker has.  So what is linked computes as the host does, bit for bit: IEEE division and square
root, denormals kept.  Code with a fused multiply-add is refused.

These are public interfaces (`numba.cuda.compile`, `cuda.bindings.nvjitlink`), but for one thing:
Numba asks the current device for what to compile functions that kernels call, and fails without
one; see `_as_device`.  Versions differ in the compute capabilities that they know: CUDA 12
from 5.0 on, CUDA 13 from 7.5 on.  Machine code is kept on disk like that of the host.
"""

import glob
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock, get_ident
from types import SimpleNamespace
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numba
import numba_cuda
import numpy as np
from cuda import bindings
from cuda.bindings import nvjitlink
from numba import cuda
from numba.cuda import dispatcher

import collectives
from collectives.kernels.cache import store

ARGUMENTS = (numba.int64,) * 8 + (numba.float64,)
_EXACT = ("-lto", "-fma=0", "-ftz=0", "-prec-div=1", "-prec-sqrt=1")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_kept = WeakKeyDictionary()  # kernel: (cc, its LTO-IR)
_lock = Lock()
_CONTRACTED = re.compile(r"\bfma\.[\w.]+")


def ptx(kernel: Callable, cc: tuple[int, int]) -> str:
    """Assembly of `kernel` for compute capability `cc`, such as (9, 0).

    Raises
    ------
    RuntimeError
        If `cc` is not known to the CUDA libraries that are installed, or they contract.
    """
    text = _link(_lto_ir(kernel, cc), cc, "-ptx")[0].decode().rstrip("\0")
    contracted = _CONTRACTED.search(text)
    if contracted:
        raise RuntimeError(f"{contracted[0]} in the code of {kernel.__qualname__}: this version of "
                           "the CUDA libraries contracts although told not to, so that results "
                           "would differ from the host's")
    return text


def resources(kernel: Callable, cc: tuple[int, int]) -> str:
    """What the assembler says about registers, spills and shared memory."""
    return _link(_lto_ir(kernel, cc), cc, "-Xptxas=-v")[1]


def machine_code(kernel: Callable, cc: tuple[int, int], name: str) -> tuple[bytes, bytes]:
    """(name of the entry, cubin), from disk if there.  `name` tells apart all kernels."""
    digest = hashlib.sha256("\0".join((name, repr(cc), *_versions())).encode()).hexdigest()
    file = f"{re.sub(r'[^A-Za-z0-9]+', '-', name)[:60]}-{digest}"
    with store().claim(file) as payload:
        if payload is None:
            entry = _ENTRY.search(ptx(kernel, cc))[1].encode()
            payload = entry + b"\0" + _link(_lto_ir(kernel, cc), cc)[0]
            store().save(file, payload)
    entry, _, cubin = payload.partition(b"\0")
    return entry, cubin


def _lto_ir(kernel: Callable, cc: tuple[int, int]) -> bytes:
    """For `cc` or, if that is kept, for a lower one: it can be linked for `cc` too."""
    if kernel not in _kept or _kept[kernel][0] > cc:
        try:
            with _as_device(cc):
                code, _ = cuda.compile(kernel, ARGUMENTS, cc=cc, device=False, abi="numba",
                                       output="ltoir")
        except (RuntimeError, cuda.CudaSupportError) as error:
            raise RuntimeError(f"compute capability {cc[0]}.{cc[1]}: {error}; CUDA "
                               f"{bindings.__version__} is installed") from error
        _kept[kernel] = cc, code
    return _kept[kernel][1]


@contextmanager
def _as_device(cc: tuple[int, int]) -> Iterator[None]:
    """Answer this thread in place of the current device, which may not exist or be another."""
    device, me = SimpleNamespace(compute_capability=cc), get_ident()
    with _lock:
        others = dispatcher.get_current_device
        with patch.object(dispatcher, "get_current_device",
                          lambda: device if get_ident() == me else others()):
            yield


def _link(code: bytes, cc: tuple[int, int], *options: str) -> tuple[bytes, str]:
    """(machine code, or PTX if asked for, the linker's log)."""
    options = [*_EXACT, f"-arch=sm_{cc[0]}{cc[1]}", *options]
    handle = nvjitlink.create(len(options), options)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, code, len(code), "kernel")
        nvjitlink.complete(handle)
        if "-ptx" in options:
            size, get = nvjitlink.get_linked_ptx_size, nvjitlink.get_linked_ptx
        else:
            size, get = nvjitlink.get_linked_cubin_size, nvjitlink.get_linked_cubin
        linked = _read(handle, size, get)
        log = _read(handle, nvjitlink.get_info_log_size, nvjitlink.get_info_log)
    finally:
        nvjitlink.destroy(handle)
    return linked, log.decode().rstrip("\0")


def _read(handle: int, size: Callable, get: Callable) -> bytes:
    buffer = bytearray(size(handle))
    if buffer:
        get(handle, buffer)
    return bytes(buffer)


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    """What machine code depends on beside the kernel's name: sources and compilers."""
    root = Path(collectives.__file__).parent / "kernels"
    digest = hashlib.sha256()
    for name in sorted(glob.glob("**/*.py", root_dir=root, recursive=True)):
        content = (root / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return (digest.hexdigest(), np.__version__, numba.__version__, numba_cuda.__version__,
            bindings.__version__, repr(nvjitlink.version()))
