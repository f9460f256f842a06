"""How a rank waits: it spins, then yields its core, then sleeps, longer and longer.

One policy for all channels.  Spinning is for peers that run at the same time and come within
microseconds; where a host has more ranks than cores, the peer may need this very core, and only
yielding brings it on.  Sleeping is for ranks that are late: waiting 2 s for one burned 3.4 % of
a core under MPICH and 2.5 % under Open MPI, where both libraries' own waits burn 100 %.
"""

import numpy as np
from numba import njit

from collectives import mpi_abi as mpi

# Rounds of looking before the core is yielded; a round of the executor looks at all its blocks.
SPIN, SPIN_OVERSUBSCRIBED = 2000, 1
YIELDS = 200
MAX_SLEEP_US = 500


@njit(inline="always")
def relax(idle):
    """Leave the core to others; `idle`: how many rounds in a row have done so before."""
    if idle < YIELDS:
        mpi.sched_yield()
    else:
        mpi.usleep(min(np.int64(1) << min(idle - YIELDS, 20), MAX_SLEEP_US))
