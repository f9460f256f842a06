"""What the bandwidth columns of the benches mean."""

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))  # benches are scripts, not a package

from bandwidth import BUSBW_FACTOR, algbw_GBps, busbw_GBps

GB = 10**9


def test_algbw_is_the_whole_array_over_the_time():
    assert algbw_GBps(GB, 1.0) == 1.0
    assert algbw_GBps(GB, 0.5) == 2.0


@pytest.mark.parametrize("collective, busbw", [
    ("allreduce", 1.5),
    ("reduce_scatter", 0.75),
    ("allgather", 0.75),
    ("alltoall", 0.75),
    ("broadcast", 1.0),
    ("reduce", 1.0),
])
def test_busbw_of_one_GB_per_second_on_four_ranks(collective, busbw):
    assert busbw_GBps(collective, GB, 1.0, size=4) == busbw


@pytest.mark.parametrize("collective", BUSBW_FACTOR)
def test_one_rank_moves_nothing(collective):
    assert busbw_GBps(collective, GB, 1.0, size=1) == 0.0


@pytest.mark.parametrize("collective", BUSBW_FACTOR)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 13])
def test_busbw_of_an_empty_array_is_a_number(collective, size):
    assert math.isfinite(busbw_GBps(collective, 0, 1e-6, size))


def test_a_quarter_of_the_bytes_on_the_wire_is_a_quarter_of_the_bandwidth():
    logical, wire = busbw_GBps("allreduce", GB, 1.0, 4), busbw_GBps("allreduce", GB // 4, 1.0, 4)
    assert wire == logical / 4
