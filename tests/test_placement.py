"""Which ranks share a host: by the host's identity, not by MPI's split into shared memory."""

import pytest

from collectives import placement
from collectives.placement import Placement


class FakeComm:
    """Answers allgather with what each rank would say."""

    def __init__(self, rank, everyone):
        self.rank, self._everyone = rank, everyone

    def allgather(self, mine):
        assert mine == (placement.host_id(), placement.affinity())
        return self._everyone


def placed(rank, hosts, cores):
    return Placement.of(FakeComm(rank, list(zip(hosts, cores, strict=True))))


def test_numa_domains_of_one_host_are_one_host():
    # Four ranks, two per NUMA domain, as their affinities show: local ranks do not repeat.
    cores = [{0, 1}, {0, 1}, {2, 3}, {2, 3}]
    everyone = [placed(rank, ["a"] * 4, cores) for rank in range(4)]
    assert [p.local_rank for p in everyone] == [0, 1, 2, 3]
    assert {p.local_size for p in everyone} == {4}
    assert {p.cores for p in everyone} == {4}


@pytest.mark.parametrize("hosts, local_ranks, one_host", [
    ("aabb", [0, 1, 0, 1], False),
    ("abab", [0, 0, 1, 1], False),
    ("aaab", [0, 1, 2, 0], False),
    ("aaaa", [0, 1, 2, 3], True),
])
def test_local_ranks_count_within_a_host(hosts, local_ranks, one_host):
    everyone = [placed(rank, hosts, [{0}] * 4) for rank in range(4)]
    assert [p.local_rank for p in everyone] == local_ranks
    assert {p.one_host for p in everyone} == {one_host}


def test_more_ranks_than_cores_oversubscribe():
    assert placed(0, "aaa", [{0, 1}] * 3).oversubscribed
    assert not placed(0, "aab", [{0, 1}] * 3).oversubscribed
