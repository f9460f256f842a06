"""Error feedback: what compression dropped, kept by the tensor's name and added to the next call.

    feedback = ErrorFeedback(momentum=0.9, warmup_steps=500)
    coll.allreduce({"w": gw, "b": gb}, "mean", compression="topk:0.01", residual=feedback)
    coll.allreduce(gw, "mean", compression="int8", residual=feedback["w"])

A name is the tensor's path in its container, as in "encoder.0.weight".  Which tensors travel
together does not matter, so buckets may change from one call to the next.

State per tensor, in its accumulator's type (float64 for float64, else float32): the residual r,
and with momentum the velocity u.  A call on a gradient g makes u = momentum u + g and

    this tensor is              contributes   leaves in r               leaves in u
    compressed, dense codec     u + r         what was dropped          u
    compressed, sparse codec    u + r         what was dropped          u, but 0 where it was sent
    not compressed              u + r         nothing, r is freed       u

Without momentum, read g for u.  The first `warmup_steps` calls of each name are not compressed.

Each rank applies momentum to its own gradient before the exchange (*momentum correction*), so the
optimizer must have none.  What a sparse codec sends late is stale, so the velocity restarts from 0
there (*momentum factor masking*, see `feedback_entry`).  Dense codecs send every element in every
call and are not masked.  Source: Lin, Han, Mao, Wang, Dally, "Deep gradient compression: reducing
the communication bandwidth for distributed training", ICLR 2018, arXiv:1712.01887.  Their warm-up
also lowers the density step by step, which `policies.ByStep` does.

A velocity that is not finite becomes 0 once it was contributed, so that one overflow does not
stay; what other elements gathered is kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from numbers import Integral, Real

import numpy as np

from collectives import feedback_state
from collectives.dtypes import accumulator
from collectives.feedback_entry import Entry, Record, flat, pieces
from collectives.kernels.codec import FLOATS, Codec

_NOTHING = Record()  # of a name not seen yet; never written


class Named:
    """The error feedback of one tensor, for calls on it alone: `residual=feedback["w"]`.

    In calls on a container it is a prefix: "w.0", "w.1".
    """

    def __init__(self, feedback: "ErrorFeedback", name: str):
        self.feedback, self.name = feedback, name

    def __repr__(self) -> str:
        return f"{self.feedback!r}[{self.name!r}]"

    @property
    def residual(self) -> np.ndarray | None:
        """The residual itself, not a copy; None while there is none."""
        return self.feedback._records.get(self.name, _NOTHING).residual

    @property
    def velocity(self) -> np.ndarray | None:
        """The velocity itself, not a copy; None while there is none."""
        return self.feedback._records.get(self.name, _NOTHING).velocity

    def begin(self, name, dtype, shape, codec) -> Entry:
        """As `ErrorFeedback.begin`, with `name` relative to this one; None for this one."""
        name = self.name if name is None else f"{self.name}.{name}"
        return self.feedback.begin(name, dtype, shape, codec)


class ErrorFeedback:
    """The residuals of one rank, by tensor name; see the module docstring.

    Costs, per element, 4 bytes for the residual and with momentum 4 for the velocity (8 each for
    float64).  Test `feedback is not None`, not its truth: while it is empty it is false.

    Parameters
    ----------
    momentum : factor of the velocity, 0 <= momentum < 1
    warmup_steps : calls per name that are not compressed

    Examples
    --------
    >>> ErrorFeedback(momentum=0.9)
    <ErrorFeedback(momentum=0.9, warmup_steps=0): 0 tensors, 0 bytes>
    """

    def __init__(self, momentum: float = 0.0, warmup_steps: int = 0):
        if not isinstance(momentum, Real) or not 0 <= momentum < 1:
            raise ValueError(f"ErrorFeedback: momentum={momentum!r}: expected a number from 0 to "
                             "below 1")
        if not isinstance(warmup_steps, Integral) or warmup_steps < 0:
            raise ValueError(f"ErrorFeedback: warmup_steps={warmup_steps!r}: expected an integer "
                             ">= 0")
        self.momentum, self.warmup_steps = float(momentum), int(warmup_steps)
        self._records: dict[str, Record] = {}

    def __repr__(self) -> str:
        return (f"<ErrorFeedback(momentum={self.momentum}, warmup_steps={self.warmup_steps}): "
                f"{len(self)} tensors, {self.nbytes} bytes>")

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> Named:
        return Named(self, _checked_name(name))

    @property
    def names(self) -> tuple[str, ...]:
        """Names seen so far, in order of appearance."""
        return tuple(self._records)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of all residuals and velocities."""
        return sum(array.nbytes for record in list(self._records.values())
                   for array in (record.residual, record.velocity) if array is not None)

    def begin(self, name: str | None, dtype: str, shape, codec: Codec | None) -> Entry:
        """The part of `name` in a call that starts; nothing was sent yet.

        dtype : the tensor's canonical name;  shape : the tensor's;  codec : None if the policy says
        so.  What no codec compresses, such as integers, gets an entry that does nothing.

        Raises
        ------
        ValueError
            If the tensor's shape or accumulator is another than before, or the name is used by
            another tensor of this call or by a call that was not waited for.
        TypeError
            If `codec` cannot compress `dtype`.
        """
        if dtype not in FLOATS:
            if codec is not None:
                raise TypeError(f"{codec!r} cannot compress {dtype}: expected one of "
                                f"{', '.join(FLOATS)}")
            return Entry(Record(), dtype, None, 0.0, active=False)
        record = self._matching(_checked_name(name), accumulator(dtype, "sum"), tuple(shape))
        active = codec is not None and record.steps >= self.warmup_steps
        if active and record.residual is None:
            record.residual = np.zeros(record.shape, record.dtype)
        if self.momentum and record.velocity is None:
            record.velocity = np.zeros(record.shape, record.dtype)
        return Entry(record, dtype, codec, self.momentum, active)

    def residual_norm(self, name: str) -> float:
        """The Euclidean norm of the residual, summed in float64; 0.0 while there is none."""
        residual = flat(self._known(name).residual)
        if residual is None:
            return 0.0
        squares = (np.square(residual[part], dtype=np.float64).sum()
                   for part in pieces(residual.size))
        return sqrt(sum(squares))

    def reset(self, name: str | None = None) -> None:
        """Forget `name`, or all names: residual, velocity and steps."""
        self._check_idle()
        if name is None:
            self._records = {}
        else:
            self._known(name)
            del self._records[name]

    def state_dict(self) -> dict:
        """A copy of the state: a nested dict of NumPy arrays and numbers, to be pickled.

        `numpy.savez(file, state=state)` and `torch.save` take it; both pickle, so read it with
        `numpy.load(file, allow_pickle=True)["state"].item()` or `torch.load(weights_only=False)`.
        It is this rank's: each rank saves its own.
        """
        self._check_idle()
        return feedback_state.pack(self._records, self.momentum, self.warmup_steps)

    def load_state_dict(self, state: Mapping | Sequence[Mapping], *, rank: int | None = None,
                        size: int | None = None, keep: str = "sum") -> None:
        """Go on exactly where `state` was saved, perhaps with another number of ranks.

        Parameters
        ----------
        state : this rank's; or those of all old ranks in order, if the number of ranks changed
        rank, size : of the new run, with the states of old ranks.  Rank r takes the sum of the old
            ranks r, r + size, r + 2 size, ..., or zeros if there are none
        keep : "sum": the sum over ranks of residuals and of velocities is what it was, so that an
            allreduce with op="sum" loses nothing.  "mean": their mean is, for op="mean"

        Residuals and velocities are contributed to the same reduction, so both are treated alike.
        Momentum and warm-up become what they were when the state was saved.

        Raises
        ------
        TypeError, ValueError
            If a state is malformed, or states are not of the same moment; then nothing changes.
        """
        self._check_idle()
        states = [state] if isinstance(state, Mapping) else state
        if states is not state and (rank, size) != (None, None):
            raise TypeError("rank and size go with a list of states: expected the states of all "
                            "old ranks")
        if states is not state:
            rank, size = 0, 1
        loaded = feedback_state.unpack(states, rank, size, keep)
        fresh = ErrorFeedback(loaded.momentum, loaded.warmup_steps)  # checks both
        self._records, self.momentum = loaded.records, fresh.momentum
        self.warmup_steps = fresh.warmup_steps

    def _known(self, name: str) -> Record:
        if name not in self._records:
            raise KeyError(f"no residual of {name!r}: expected one of {list(self._records)}")
        return self._records[name]

    def _matching(self, name: str, dtype: str, shape: tuple[int, ...]) -> Record:
        """The record of `name`, new if no call on it was completed."""
        record = self._records.get(name)
        if record is not None and record.user() is not None:
            raise ValueError(f"the residual of {name!r} is used by another tensor of this name or "
                             "by a call not yet waited for: expected names that differ, and one "
                             "call at a time")
        if record is None or not record.steps:
            record = self._records[name] = Record()
        if record.shape is None:
            record.shape, record.dtype = shape, np.dtype(dtype)
        if record.shape != shape or record.dtype != dtype:
            raise ValueError(f"the residual of {name!r} is {record.dtype}{list(record.shape)}: got "
                             f"a tensor that needs {dtype}{list(shape)}; expected the same shape, "
                             f"or reset({name!r}) first")
        return record

    def _check_idle(self) -> None:
        busy = [name for name, record in list(self._records.items()) if record.user() is not None]
        if busy:
            raise ValueError(f"calls with the residuals of {busy} were not yet waited for: wait "
                             "for them first")


def _checked_name(name) -> str:
    if name is None:
        raise ValueError('a lone tensor has no name: expected residual=feedback["w"]')
    if not isinstance(name, str):
        raise TypeError(f"residual name {name!r}: expected a string")
    return name
