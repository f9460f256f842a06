"""Shared memory between the ranks of a host, and what happens where there is none."""

import os

import numpy as np
import pytest

from collectives import mailbox, segment
from tests.mpirun import run_script

SCRIPT = """
import os, sys
import numpy as np
from collectives import mailbox, segment
{spoil}
import collectives as coll

rank, size = coll.rank(), coll.size()
for count in (1, 1000, 300_001):
    for algorithm in ("ring", "direct", "recursive_doubling"):
        x = np.arange(count, dtype=np.float32) % 100 + rank
        coll.allreduce(x, algorithm=algorithm)
        want = size * (np.arange(count) % 100) + size * (size - 1) // 2
        assert np.array_equal(x, want), (count, algorithm)
shared = coll.world().engines.shared
assert {expectation}, (shared.ranks, shared.limit)
print("right\\n", end="")
"""
# What goes wrong, and what is then shared.
CASES = {
    "nothing": ("pass", "shared.ranks == (0, 1, 2) and shared.limit > 1 << 40"),
    "memory of peers may not be read":
        ("segment._can_read = lambda *offer: False",
         "shared.ranks == (0, 1, 2) and 0 < shared.limit < 1 << 20"),
    "no anonymous files": ("segment._create = lambda nbytes: None", "shared.ranks == ()"),
    "one rank cannot open the file":
        ("if os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK')) == '1':\n"
         "    segment._attach = lambda *offer: None", "shared.ranks == ()"),
}


@pytest.mark.parametrize("case", CASES)
def test_messages_go_by_mpi_where_memory_cannot_be_shared(case, tmp_path):
    spoil, expectation = CASES[case]
    job = run_script(3, SCRIPT.format(spoil=spoil, expectation=expectation), tmp_path, timeout=120)
    assert job.returncode == 0 and job.stdout.count("right") == 3, job.stdout


def test_a_file_of_another_process_with_the_same_number_is_not_taken(tmp_path):
    with (tmp_path / "mine").open("wb") as mine, (tmp_path / "other").open("wb") as other:
        identity = segment._identity(other.fileno())
        assert segment._attach(os.getpid(), mine.fileno(), identity) is None
        fd = segment._attach(os.getpid(), other.fileno(), identity)
        assert fd is not None
        os.close(fd)


def test_memory_of_this_process_can_be_read_and_a_wrong_value_is_noticed():
    value = np.full(1, 7, np.int64)
    assert segment._can_read(os.getpid(), value.ctypes.data, 7)
    assert not segment._can_read(os.getpid(), value.ctypes.data, 8)
    assert not segment._can_read(os.getpid(), 8, 7)  # an address that is not mapped


def test_hosts_with_many_ranks_get_smaller_slots_within_the_budget():
    sizes = [mailbox._eager_nbytes(ranks) for ranks in (2, 8, 32, 64, 128)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == mailbox.EAGER_NBYTES
    per_rank = 64 * mailbox.MAX_DEPTH * mailbox.SLOTS * mailbox._eager_nbytes(64)
    assert per_rank <= mailbox.BUDGET
