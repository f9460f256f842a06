"""Memory that the ranks of one host share.

It has no name in any file system: an anonymous memfd that peers open through /proc, so nothing is
left behind, whatever ends a process.  Pages come to be when they are first written, on the NUMA
node of who writes them.
"""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_PR_SET_PTRACER, _ANY = 0x59616D61, ctypes.c_ulong(-1)


def share(comm, local_ranks: list[int],
          nbytes: int) -> tuple[np.ndarray | None, list[int], bool]:
    """Memory of the ranks of one host.  Collective over the mpi4py communicator `comm`.

    Returns
    -------
    memory : uint8 (nbytes,), zeros at first; None on all ranks of the host alike if one of them
        cannot open it, or there is but one
    pids : their process ids
    readable : whether all of them can read each other's own memory
    """
    leader, alone = comm.rank == local_ranks[0], len(local_ranks) == 1
    fd = _create(nbytes) if leader and not alone else None
    _allow_reading()
    probe = np.full(1, comm.rank, np.int64)
    offers = comm.allgather((os.getpid(), probe.ctypes.data, fd, _identity(fd)))
    pid, _, leader_fd, identity = offers[local_ranks[0]]
    if not leader and leader_fd is not None:
        fd = _attach(pid, leader_fd, identity)
    readable = all(_can_read(offers[r][0], offers[r][1], r) for r in local_ranks)
    found = comm.allgather((fd is not None, readable))  # also: all have opened, fd may be closed
    memory = None
    if fd is not None:
        if all(found[r][0] for r in local_ranks):
            memory = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
        os.close(fd)
    return memory, [offers[r][0] for r in local_ranks], all(found[r][1] for r in local_ranks)


def _create(nbytes: int) -> int | None:
    try:
        fd = os.memfd_create("collectives")
        os.truncate(fd, nbytes)
    except (AttributeError, OSError):
        return None
    return fd


def _attach(pid: int, leader_fd: int, identity: tuple[int, int]) -> int | None:
    try:
        fd = os.open(f"/proc/{pid}/fd/{leader_fd}", os.O_RDWR)
    except OSError:
        return None
    if _identity(fd) == identity:
        return fd
    os.close(fd)  # another process has that number here: a PID namespace of our own
    return None


def _identity(fd: int | None) -> tuple[int, int] | None:
    if fd is None:
        return None
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _allow_reading() -> None:
    """Let other processes of this user read our memory, where Yama asks for consent."""
    if _YAMA.exists() and _YAMA.read_text().strip() == "1":
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)


def _can_read(pid: int, where: int, value: int) -> bool:
    """True if `value` can be read from the memory of process `pid`."""
    found = np.full(1, -1, np.int64)
    local = np.array([found.ctypes.data, 8], np.int64)
    remote = np.array([where, 8], np.int64)
    function = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    if function is None:
        return False
    arguments = (ctypes.c_int(pid), ctypes.c_void_p(local.ctypes.data), ctypes.c_ulong(1),
                 ctypes.c_void_p(remote.ctypes.data), ctypes.c_ulong(1), ctypes.c_ulong(0))
    function.restype = ctypes.c_ssize_t
    return function(*arguments) == 8 and int(found[0]) == value
