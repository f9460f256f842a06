"""The state of one name, and its part in one call: the arithmetic of `error_feedback`.

Where was a sparse codec's v = u + r + incoming sent?  Not just where r is 0 afterwards: a float64
travels as float32, and the owner of a chunk keeps the rounding of the mean, so of a sent v about
e |v| stays in r, e being the unit roundoff.  An element counts as sent where |r| <= sqrt(e) |u|.

    sent, but missed          |u| < sqrt(e) |v|, about: the velocity is small beside what was sent
    kept, but taken for sent  |r| <= sqrt(e) |u|: r and u nearly cancelled

    sqrt(e): 1/4096 for float32 and float64, 1/45 for float16, 1/16 for bfloat16; e is the result's,
    so that for these two misses happen on the owner only.  Elsewhere r is 0 where v was sent.

Either mistake changes the momentum of one element of one rank; nothing is lost, since what a rank
contributes and what it keeps add up whatever u is.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np

from collectives.kernels.codec import Codec

# Unit roundoff of the result or of the wire, whichever is coarser: wires carry float32 at best.
_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-24}
_PIECE = 1 << 16  # elements: what is computed in several passes stays in cache between them


def nobody() -> None:
    """The weak reference of a record that no call uses."""


@dataclass(slots=True)
class Record:
    """What is known of one name.

    shape, dtype : the tensor's and its accumulator's; None while unknown
    residual, velocity : of this shape and dtype; None while there is none
    steps : calls completed
    user : weak reference to the entry of the call in flight
    """

    shape: tuple[int, ...] | None = None
    dtype: np.dtype | None = None
    residual: np.ndarray | None = None
    velocity: np.ndarray | None = None
    steps: int = 0
    user: Callable[[], object] = nobody


class Entry:
    """One tensor in one call: `source` before anything is sent, then `end`, or `cancel`.

    active : whether the tensor is compressed in this call
    residual : what the kernels add and leave, accumulator's type, the tensor's shape, contiguous;
        None if not active
    """

    __slots__ = ("__weakref__", "_codec", "_dtype", "_momentum", "_record", "active", "residual")

    def __init__(self, record: Record, dtype: str, codec: Codec | None, momentum: float,
                 active: bool):
        self._record, self._dtype, self._codec = record, dtype, codec
        self._momentum = momentum
        self.active = active
        self.residual = record.residual if active else None
        record.user = weakref.ref(self)  # a call that is dropped half-way does not block the name

    def source(self, values: np.ndarray) -> np.ndarray | None:
        """What to contribute in place of the gradient; None for the gradient itself.

        Call it once.  The answer is our state: read it until `end`, do not write it.

        values : the gradient, accumulator's type, shape (n,); is not written
        """
        u = flat(self._record.velocity)
        r = None if self.active else flat(self._record.residual)
        if u is None and r is None:
            return None
        _check_values(values, u if r is None else r)
        with np.errstate(over="ignore", invalid="ignore"):
            for part in pieces(values.size):
                new = values[part]
                if u is not None:
                    np.multiply(u[part], self._momentum, out=u[part])
                    new = np.add(u[part], new, out=u[part])
                if r is not None:
                    np.add(r[part], new, out=r[part])
        return _read_only(u if r is None else r)

    def end(self) -> None:
        """Account for a call that is complete."""
        record = self._record
        if record.velocity is not None:
            sparse = self.active and not self._codec.concatenates
            _restart(flat(record.velocity), flat(record.residual) if sparse else None,
                     sqrt(_ROUNDOFF[self._dtype]))
        if not self.active:
            record.residual = None  # was contributed
        record.steps += 1
        record.user = nobody

    def cancel(self) -> None:
        """Forget a call that was not made, or failed."""
        self._record.user = nobody


def _check_values(values: np.ndarray, like: np.ndarray) -> None:
    if values.shape != like.shape or values.dtype != like.dtype:
        raise ValueError(f"gradient of {values.dtype}{list(values.shape)}: expected "
                         f"{like.dtype}{list(like.shape)}")


def flat(array: np.ndarray | None) -> np.ndarray | None:
    """A 1-D view of one of our arrays, which are contiguous."""
    return None if array is None else array.reshape(-1)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def pieces(size: int) -> Iterator[slice]:
    """Slices that cover `size` elements."""
    return (slice(start, start + _PIECE) for start in range(0, size, _PIECE))


def _restart(u: np.ndarray, r: np.ndarray | None, tolerance: float) -> None:
    """u = 0 where u is not finite and, if there is an `r`, where the element was sent."""
    for part in pieces(u.size):
        some = u[part]
        drop = ~np.isfinite(some)
        if r is not None:
            limit = np.abs(some)
            limit *= tolerance
            drop |= np.abs(r[part]) <= limit
        some[drop] = 0
