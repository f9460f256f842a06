"""COLLECTIVES_CHECK=1: do all ranks make the same call?

Before data moves, ranks exchange a digest of the call's description with one fixed schedule, the
same whatever the call is, so that different calls meet.  Where digests differ they exchange the
descriptions, and every rank raises an error that says who differs.  Nothing of the call itself has
been sent by then, so the communicator can be used afterwards.
"""

from collections import defaultdict
from hashlib import blake2b

import numpy as np

from collectives.errors import MismatchError

TEXT_NBYTES = 512


def compare(exchange, description: str, rank: int) -> None:
    """Raise MismatchError on every rank unless all gave the same description.

    exchange : function that takes a 1-D array and returns shape (size, n): an allgather
    """
    digest = np.frombuffer(blake2b(description.encode(), digest_size=16).digest(), np.int64)
    digests = exchange(digest)
    if (digests == digests[0]).all():
        return
    text = np.zeros(TEXT_NBYTES, np.uint8)
    encoded = description.encode()[:TEXT_NBYTES]
    text[:len(encoded)] = np.frombuffer(encoded, np.uint8)
    ranks = defaultdict(list)
    for peer, row in enumerate(exchange(text)):
        ranks[row.tobytes().rstrip(b"\0").decode(errors="replace")].append(peer)
    said = "\n".join(f"  rank {', '.join(map(str, who))}: {what}" for what, who in ranks.items())
    raise MismatchError(f"[rank {rank}] ranks made different calls:\n{said}")
