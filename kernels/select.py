"""How far down keys (see `lanes`) are sent: the k largest, exactly, or those above a threshold.

The k largest, by a sample, one pass and a radix:

    guess        the keys of some blocks give one that k to 2 k elements probably reach
    candidates   a pass over all blocks, most of which have no such key, writes their indices to the
                 wire, which has room for 2 k
    boundary     a histogram of the keys that are left, as fine as BUCKETS counters allow; the
                 bucket with the k-th largest is the next range; again, until that is one key, or
                 all of a bucket is taken

The sample decides about time, not about the result.  If the list does not fit (all keys equal, say)
or is too short, or n is small, the histograms are of all elements: a pass for each.

Sums of squares are of what is sent, so each is exact in float64; what is not finite counts as 0.
Their order is one that a GPU can follow.  Element i of a piece of PIECE is added to sum i mod SUMS,
in ascending order; the sums of a piece are added in halves (sum j += sum j + SUMS/2, and so on),
those of the pieces one by one.
"""

import math
from types import SimpleNamespace

import numpy as np

from collectives.kernels.incoming import apart
from collectives.kernels.lanes import (
    INF_KEY,
    LANES,
    NAN_KEY,
    clear,
    count_up,
    first_lanes,
    least,
    lowest,
    ones,
    width,
)
from collectives.kernels.scalars import load, store

BUCKETS_BITS = 12
BUCKETS = 1 << BUCKETS_BITS
COARSE, FINE = 19, 12  # shifts: all keys, or 2 octaves of them, in BUCKETS
SAMPLE, SHARE = 256, 64  # the least: blocks, and elements in them that are to be sent
SUMS, PIECE = 256, 4096
SCRATCH_NBYTES = max(4 * BUCKETS, 8 * SUMS)

_ALL, _LAST = NAN_KEY + 1, BUCKETS - 1


def selector(block_at, vector, size: int) -> SimpleNamespace:
    """Functions of a view whose blocks are at `block_at`; `vector`: its `lanes`.

    candidates(view, k, listed, counts) -> (total, low) : indices, ascending, of the elements whose
        keys reach `low`, written as uint32 to `listed`, which has room for 2 k; at least k do.
        The counters are those of `boundary`'s first round.  total is 0 if there is no list
    boundary(view, k, listed, total, low, counts) -> (floor, ties) : those above the floor, and the
        first `ties` of those at it, are the k largest.  Of all elements if total is 0
    """
    guess, count_keys = _guesser(vector, size), _counter(block_at, vector, size)
    key, reaching = vector.key, vector.reaching

    @apart
    def candidates(view, k, listed, counts):
        low, total, i, step = guess(view, k, counts), 0, 0, LANES
        clear(counts, 4 * BUCKETS)
        n = view.n if low and not view.odd else 0
        while i < n and total + LANES <= 2 * k:
            here = view.source + i * size
            if i + LANES <= n:
                hits = reaching(here, view.divisor, low)
            else:
                step, hits = 1, 1 if key(here, view.divisor) >= low else 0
            while hits:
                j = lowest(hits)
                hits &= hits - 1
                store(listed, total, np.uint32(i + j))
                total += 1
                count_up(counts, (key(here + j * size, view.divisor) - low) >> FINE, _LAST)
            i += step
        return (total, low) if i >= n and total >= k else (0, low if i < n else 0)

    @apart
    def boundary(view, k, listed, total, low, counts):
        high, need, counted = _ALL, k, total > 0
        shift = FINE if low else COARSE
        searching = True
        while searching:
            if not counted:
                count_keys(view, listed, total, low, high, shift, counts)
            counted = False
            bucket, above = descend(counts, need)
            need -= above
            if bucket < _LAST:  # which counts all that is beyond, too
                high = least(high, low + ((bucket + 1) << shift))
            low += bucket << shift
            searching = high - low > 1 and np.int64(load(counts, bucket, np.uint32)) != need
            shift = width(high - low - 1) - BUCKETS_BITS
            shift = shift if shift > 0 else 0
        return low, need

    return SimpleNamespace(candidates=candidates, boundary=boundary)


def _guesser(vector, size: int):
    """`guess(view, k, counts)`: a key that k to 2 k elements probably reach; 0 if unknown.

    If k is small, the largest key of each block of the sample makes do to find out where to look
    closely, in a second round.
    """
    key, peak, reaching = vector.key, vector.peak, vector.reaching

    @apart
    def guess(view, k, counts):
        every = view.n // LANES
        total = least(SHARE * every // k, every >> 3)
        total = total if total > SAMPLE else least(SAMPLE, every >> 3)
        step = every // total if total >= SAMPLE else 0
        share = k * total / (every + 1)
        wanted = np.int64(1.15 * share + 3 * math.sqrt(share) + 3)
        few = 2 * wanted < total
        low, shift, rounds = 0, COARSE, 0 if step == 0 else 2 if few else 1
        while rounds:
            clear(counts, 4 * BUCKETS)
            for s in range(total):
                # In each stretch of `step` blocks another one, as data may have a period.
                here = view.source + (s * step + ((s * 40503) >> 4) % step) * LANES * size
                if few and rounds == 2:
                    count_up(counts, peak(here, view.divisor) >> COARSE, _LAST)
                else:
                    hits = reaching(here, view.divisor, low)
                    while hits:
                        found = key(here + lowest(hits) * size, view.divisor)
                        hits &= hits - 1
                        count_up(counts, (found - low) >> shift, _LAST)
            low = least(low + (descend(counts, wanted)[0] << shift), INF_KEY)
            shift = FINE
            rounds -= 1
        return low

    return guess


def _counter(block_at, vector, size: int):
    """`count_keys(view, listed, total, low, high, shift, counts)`: a histogram of low to high - 1.

    The last bucket also counts what is beyond it.
    """
    key, reaching = vector.key, vector.reaching

    @apart
    def count_keys(view, listed, total, low, high, shift, counts):
        clear(counts, 4 * BUCKETS)
        for t in range(total):
            i = np.int64(load(listed, t, np.uint32))
            found = key(view.source + i * size, view.divisor)
            if low <= found < high:
                count_up(counts, (found - low) >> shift, _LAST)
        cursor, n = 0, 0 if total else view.n
        for i in range(0, n, LANES):
            here, cursor = block_at(view, i, cursor)
            hits = reaching(here, view.divisor, low) & first_lanes(view.n - i)
            while hits:
                found = key(here + lowest(hits) * size, view.divisor)
                hits &= hits - 1
                if found < high:
                    count_up(counts, (found - low) >> shift, _LAST)

    return count_keys


@apart
def descend(counts, need):
    """The bucket of the `need`-th largest, and how many are in those above."""
    above, bucket = 0, _LAST
    here = np.int64(load(counts, bucket, np.uint32))
    while bucket > 0 and above + here < need:
        above += here
        bucket -= 1
        here = np.int64(load(counts, bucket, np.uint32))
    return bucket, above


def meter(block_at, vector) -> SimpleNamespace:
    """Functions of a view, as for `selector`.

    reached(view, floor) -> int : how many keys reach the floor
    squares(view, sums) -> float64 : see the module docstring; sums : address of SUMS float64
    """
    reaching, add_squares = vector.reaching, vector.add_squares

    @apart
    def reached(view, floor):
        count, cursor = 0, 0
        for i in range(0, view.n, LANES):
            here, cursor = block_at(view, i, cursor)
            count += ones(reaching(here, view.divisor, floor) & first_lanes(view.n - i))
        return count

    @apart
    def squares(view, sums):
        total, cursor = 0.0, 0
        for start in range(0, view.n, PIECE):
            clear(sums, 8 * SUMS)
            for i in range(start, least(start + PIECE, view.n), LANES):
                here, cursor = block_at(view, i, cursor)
                add_squares(here, view.divisor, sums + 8 * (i & (SUMS - 1)))
            half = SUMS >> 1
            while half:
                for j in range(half):
                    other = load(sums, j + half, np.float64)
                    store(sums, j, load(sums, j, np.float64) + other)
                half >>= 1
            total += load(sums, 0, np.float64)
        return total

    return SimpleNamespace(reached=reached, squares=squares)
