"""COLLECTIVES_CHECK=1: do all ranks make the same call?

Before data moves, ranks exchange a digest of the call's description with one fixed schedule, the
same whatever the call is, so that different calls meet.  Where digests differ they exchange the
descriptions, and every rank raises an error that says who differs.  Nothing of the call itself has
been sent by then, so the communicator can be used afterwards.

    first exchange    16 bytes blake2b of the description, 8 bytes its length
    second exchange   the description, padded with zeros to the longest
"""

from collections import defaultdict
from hashlib import blake2b

import numpy as np

from collectives import calls
from collectives.calls import Call
from collectives.errors import MismatchError
from collectives.settings import settings
from collectives.stall import Watch

SHOWN = 400  # characters of a description in the error


def admit(communicator, lane, build) -> Call:
    """The call that `build` makes, with its number, once all ranks have come with the same.

    A call that one rank rejects is compared too, so that the others do not wait for it.
    """
    def exchange(x):
        message = calls.allgather(x, None, communicator.size, "recursive_doubling")
        return lane.checks.run(message, Watch(lane, description, lane.number))

    try:
        call = build()
        lane.admit(call)
    except Exception as error:
        lane.number += 1
        description = f"call {lane.number}: raised {type(error).__name__}: {error}"
        compare(exchange, description, communicator.rank)
        raise
    description = _described(communicator, call)
    compare(exchange, description, communicator.rank)
    return call


def _described(communicator, call: Call) -> str:
    """All that must agree between ranks."""
    tensors = "".join(f", {dtype}{list(shape)}" for dtype, shape in call.tensors[8:])
    runs_as = sorted({communicator.engines.algorithm(call, part) for part in call.parts})
    return (f"{call}, runs as {'+'.join(runs_as)}, segment={settings().segment or 'default'}"
            f"{tensors}")


def compare(exchange, description: str, rank: int) -> None:
    """Raise MismatchError on every rank unless all gave the same description.

    exchange : function that takes a 1-D array and returns shape (size, n): an allgather
    """
    encoded = description.encode()
    head = blake2b(encoded, digest_size=16).digest() + len(encoded).to_bytes(8, "little")
    heads = exchange(np.frombuffer(head, np.int64))
    if (heads == heads[0]).all():
        return
    text = np.zeros(heads[:, 2].max(), np.uint8)
    text[:len(encoded)] = np.frombuffer(encoded, np.uint8)
    ranks = defaultdict(list)
    for peer, row in enumerate(exchange(text)):
        ranks[row.tobytes().rstrip(b"\0").decode(errors="replace")].append(peer)
    raise MismatchError(f"[rank {rank}] ranks made different calls:\n{_listed(ranks)}")


def _listed(ranks: dict[str, list[int]]) -> str:
    """One line per description; of long ones, what is around the first difference."""
    texts = list(ranks)
    same = next(n for n in range(max(map(len, texts)) + 1)
                if len({text[:n + 1] for text in texts}) > 1)
    start = max(0, same - SHOWN // 2) if max(map(len, texts)) > SHOWN else 0
    lines = []
    for text, who in ranks.items():
        shown = ("..." if start else "") + text[start:start + SHOWN]
        more = "..." if start + SHOWN < len(text) else ""
        label = "rank" if len(who) == 1 else "ranks"
        lines.append(f"  {label} {', '.join(map(str, who))}: {shown}{more}")
    return "\n".join(lines)
