"""Cut a call into blocks and give every row its bytes and offsets.

Chunks of a block are cut evenly: of n elements in c chunks, the first n mod c chunks hold one
more.  A chunk may be empty; rows of zero bytes do nothing, on both ends alike.  With a codec,
chunks are cut evenly in units of its `align`, so that the wires of neighbours are neighbours; the
last unit may be shorter.  Where chunks end elsewhere (one per rank) or the codec's wires do not
concatenate, each chunk has a wire, and travels, alone.
"""

from dataclasses import dataclass
from math import lcm

import numpy as np

from collectives import plan as table
from collectives import schedules
from collectives.coding import Coding
from collectives.dtypes import itemsize
from collectives.lowering import Lowering, Row
from collectives.plan import Buffer, Channel, Plan, Signature, Verb

ALIGN = 64  # bytes: blocks and scratch start on a cache line
MAX_SLOTS = 8  # receives posted ahead per block
PIECE_NBYTES = 1 << 17  # what is read of a peer's memory at a time: stays in the L2 cache
MAX_DEPTH = 4  # blocks in flight


@dataclass(frozen=True)
class Blocks:
    """How a call is cut.

    lengths : int64 (V, chunks), elements of each chunk in a block of each variant
    starts : int64 (chunks,), element at which each chunk starts in the whole tensor, in block 0;
        None where that depends on the variant (it is then the sum of the lengths before)
    wires : int64 (V, chunks + 1), bytes at which each chunk's wire starts, and the last one ends;
        empty without a codec
    first_block : int64 (V + 1,)
    step : elements from one block to the next
    """

    lengths: np.ndarray
    starts: np.ndarray | None
    first_block: np.ndarray
    step: int
    wires: np.ndarray

    @property
    def number(self) -> int:
        return int(self.first_block[-1])


def assemble(s: Signature) -> Plan:
    """Lower the schedule of `s` and lay its blocks out in memory."""
    blocks = cut(s)
    if s.codec is None:
        lowering = Lowering(s, split=blocks.starts is not None and blocks.number > 1)
    else:
        lowering = Coding(s, split=_wires_alone(s))
    rows = lowering.run()
    widest = max(itemsize(s.dtype), itemsize(lowering.accumulator))
    for row in rows:
        row.shared = _is_shared(s, row, blocks)
    slots, slot_nbytes = _slots(s, rows, blocks, widest)
    scratch = _scratch(rows, blocks, s.dtype, lowering.accumulator)
    scratch[Buffer.LAND] = (slots + 1) * slot_nbytes
    stride = np.zeros(len(Buffer), np.int64)
    stride[[Buffer.IN, Buffer.OUT]] = blocks.step * itemsize(s.dtype)
    stride[Buffer.RESIDUAL] = blocks.step * itemsize(lowering.accumulator)
    return Plan(
        signature=s, rows=_rows(s, rows, slots),
        extents=_extents(s, rows, blocks, lowering.accumulator),
        first_block=blocks.first_block, stride=stride, scratch=scratch,
        slot_nbytes=slot_nbytes, kernels=tuple(lowering.kernels), accumulator=lowering.accumulator,
        depth=min(blocks.number, MAX_DEPTH))


def cut(s: Signature) -> Blocks:
    """Blocks of about `s.segment` bytes per chunk, alike but for the last ones."""
    size, unit = itemsize(s.dtype), s.codec.align if s.codec else 1
    align = lcm(max(1, ALIGN // size), unit)
    segment = max(align, s.segment // size)
    if s.verb in ("reduce_scatter", "allgather"):
        counts = np.array(s.counts, np.int64)
        number = max(1, -(-int(counts.max()) // segment))
        step = _round_up(-(-int(counts.max()) // number), align)
        first = np.arange(number, dtype=np.int64)[:, None] * step
        lengths, first_block = _distinct(np.clip(counts - first, 0, step))
        return Blocks(lengths, np.cumsum(counts) - counts, first_block, step,
                      _wires(s, lengths))
    count, chunks = s.counts[0], schedules.num_chunks(s.verb, s.algorithm, s.size)
    number = max(1, -(-count // (segment * chunks)))
    step = _round_up(-(-count // number), align * chunks) if number > 1 else count
    number = max(1, -(-count // step)) if step else 1
    sizes = np.minimum(step, count - step * np.arange(number, dtype=np.int64))[:, None]
    units = -(-sizes // unit)
    ends = np.cumsum(units // chunks + (np.arange(chunks) < units % chunks), axis=1) * unit
    even = np.diff(np.minimum(ends, sizes), axis=1, prepend=0)
    lengths, first_block = _distinct(even)
    return Blocks(lengths, None, first_block, step, _wires(s, lengths))


def _wires_alone(s: Signature) -> bool:
    """True if each chunk has a wire of its own."""
    return s.verb in ("reduce_scatter", "allgather") or not s.codec.concatenates


def _wires(s: Signature, lengths: np.ndarray) -> np.ndarray:
    if s.codec is None:
        return np.zeros((len(lengths), 0), np.int64)
    ends = np.zeros((len(lengths), lengths.shape[1] + 1), np.int64)
    for row, of in zip(ends, lengths, strict=True):
        if _wires_alone(s):
            row[1:] = np.cumsum([_round_up(s.codec.wire_nbytes(int(n)), ALIGN) for n in of])
        else:
            row[1:] = [s.codec.wire_nbytes(int(n)) for n in np.cumsum(of)]
    return ends


def _distinct(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Runs of equal rows: the distinct rows, and where each run starts and the last one ends."""
    new = np.ones(len(lengths), bool)
    new[1:] = (lengths[1:] != lengths[:-1]).any(axis=1)
    return lengths[new], np.append(np.flatnonzero(new), len(lengths))


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _slots(s: Signature, rows: list[Row], blocks: Blocks, widest: int) -> tuple[int, int]:
    """How many landing slots of how many bytes.

    No more slots than fit in a block's own size, at least one.  Rows that read a peer's memory
    share one more slot, whose size is that of a piece; but a wire lands in one piece.
    """
    reduces = [row for row in rows if row.verb is Verb.REDUCE]
    if not reduces:
        return 0, 0
    longest = {id(row): max(_nbytes(s, of, row) for of in blocks.lengths) for row in reduces}
    landing = [longest[id(row)] for row in reduces if not row.shared]
    most = max(longest.values())
    if not landing:
        return 0, _round_up(most if s.codec else min(most, PIECE_NBYTES), ALIGN)
    fit = int(blocks.lengths[0].sum()) * widest // max(*landing, 1)
    return (max(1, min(fit, len(landing), MAX_SLOTS)),
            _round_up(most if s.codec else max(landing), ALIGN))


def _scratch(rows, blocks: Blocks, dtype: str, accumulator: str) -> np.ndarray:
    used = {row.a[0] for row in rows if row.a is not None}.union(*(row.writes for row in rows))
    elements = int(blocks.lengths.sum(axis=1).max(initial=0))
    scratch = np.zeros(len(Buffer), np.int64)
    for buffer, name in ((Buffer.PART, accumulator), (Buffer.FINAL, dtype)):
        if buffer in used:
            scratch[buffer] = _round_up(elements * itemsize(name), ALIGN)
    if Buffer.WIRE in used:
        scratch[Buffer.WIRE] = _round_up(int(blocks.wires.max(initial=0)), ALIGN)
    return scratch


def _is_shared(s: Signature, row: Row, blocks: Blocks) -> bool:
    """True if this message goes through shared memory, in blocks of every variant."""
    if row.peer not in s.shared or s.rank not in s.shared:
        return False
    return max(_nbytes(s, of, row) for of in blocks.lengths) <= s.shared_limit


def _rows(s: Signature, rows: list[Row], slots: int) -> np.ndarray:
    out = np.full((len(rows), table.DST_SIZE + 1), -1, np.int64)
    landed: list[int] = []
    for n, row in enumerate(rows):
        slot, after = slots, row.after
        if row.verb is Verb.REDUCE and not row.shared:
            slot = len(landed) % slots
            after = landed[-slots] if len(landed) >= slots else -1
            landed.append(n)
        (a, a_type), (dst, dst_type) = (place or (-1, row.wire) for place in (row.a, row.dst))
        out[n] = (row.verb, row.peer, Channel.SHARED if row.shared else Channel.MPI,
                  _box(s, row) if row.shared else -1, a, dst, row.kernel, row.swap, slot, after,
                  row.sends, _size(row.wire or dst_type), _size(a_type), _size(dst_type))
    return out


def _size(name: str) -> int:
    """Bytes per element; a wire is bytes."""
    return itemsize(name) if name else 1


def _box(s: Signature, row: Row) -> int:
    """The number of the pair (source, destination) among all pairs of the host."""
    here, there = s.shared.index(s.rank), s.shared.index(row.peer)
    source, destination = (here, there) if row.verb is Verb.SEND else (there, here)
    return source * len(s.shared) + destination


def _extents(s: Signature, rows: list[Row], blocks: Blocks, accumulator: str) -> np.ndarray:
    out = np.zeros((len(blocks.lengths), len(rows), table.RESIDUAL_OFFSET + 1), np.int64)
    wire, residual = (Buffer.WIRE, ""), (Buffer.RESIDUAL, accumulator)
    for v, lengths in enumerate(blocks.lengths):
        within = np.cumsum(lengths) - lengths
        whole = within if blocks.starts is None else blocks.starts
        places = whole, within, blocks.wires[v]
        for n, row in enumerate(rows):
            nbytes = _nbytes(s, lengths, row)
            out[v, n] = (nbytes, nbytes if row.verb is Verb.COPY else _span(lengths, row),
                         _offset(s, row.a, row.first, *places),
                         _offset(s, row.dst, row.first, *places),
                         _offset(s, wire if row.encodes else None, row.first, *places),
                         _offset(s, residual if s.codec else None, row.first, *places))
    return out


def _offset(s: Signature, place, chunk: int, whole, within, wires) -> int:
    """Bytes from a buffer's base (of block 0, or of the scratch) to `chunk`."""
    if place is None:
        return 0
    buffer, name = place
    if buffer is Buffer.WIRE:
        return int(wires[chunk])
    if buffer in (Buffer.PART, Buffer.FINAL):
        return int(within[chunk]) * itemsize(name)
    alone = buffer in {"allgather": (Buffer.IN, Buffer.RESIDUAL),
                       "reduce_scatter": (Buffer.OUT,)}.get(s.verb, ())
    return 0 if alone else int(whole[chunk]) * itemsize(name)


def _nbytes(s: Signature, lengths: np.ndarray, row: Row) -> int:
    """Bytes of a row's message, or of what it copies."""
    count = _span(lengths, row)
    if s.codec is not None and row.verb is not Verb.COPY:
        return s.codec.wire_nbytes(count)
    return count * itemsize(row.wire or row.dst[1])


def _span(lengths: np.ndarray, row: Row) -> int:
    return int(lengths[row.first:row.first + row.count].sum())
