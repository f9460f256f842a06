"""A new Op is added to every consumer of schedules, or this file fails."""

import pytest

from collectives import coding, lowering, schedule, verify
from collectives.step import Op

# consumer: its table from Op to what it does
CONSUMERS = {
    "verify": verify.ACTIONS,
    "schedule": schedule.CELLS,
    "plan": lowering.LOWER,
    "plan with a codec": coding.CODE,
}


@pytest.mark.parametrize("table", CONSUMERS.values(), ids=CONSUMERS)
def test_consumer_handles_every_op(table):
    assert set(table) == set(Op)
