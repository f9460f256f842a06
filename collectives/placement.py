"""Which ranks share a host, and how many cores they have there.

A host is known by its name and boot id, not by MPI's shared-memory split, which some systems make
per NUMA domain.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a communicator are.

    hosts : one identifier per rank
    cores : how many cores the ranks of this rank's host may use together
    """

    rank: int
    hosts: tuple[str, ...]
    cores: int

    @classmethod
    def of(cls, comm) -> "Placement":
        """Ask all ranks of an mpi4py communicator."""
        everyone = comm.allgather((host_id(), affinity()))
        hosts = tuple(host for host, _ in everyone)
        mine = hosts[comm.rank]
        cores = set().union(*(cpus for host, cpus in everyone if host == mine))
        return cls(comm.rank, hosts, len(cores))

    @property
    def local_ranks(self) -> list[int]:
        """The ranks of this host, in order."""
        return [r for r, host in enumerate(self.hosts) if host == self.hosts[self.rank]]

    @property
    def local_rank(self) -> int:
        return self.local_ranks.index(self.rank)

    @property
    def local_size(self) -> int:
        return len(self.local_ranks)

    @property
    def one_host(self) -> bool:
        """True if all ranks are on this host."""
        return self.local_size == len(self.hosts)

    @property
    def oversubscribed(self) -> bool:
        """True if this host has more ranks than cores."""
        return self.local_size > self.cores


def host_id() -> str:
    """The same string in all processes of one running system (container, emulated host)."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
    return f"{socket.gethostname()} {boot}"


def affinity() -> set[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
