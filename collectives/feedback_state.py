"""The state of error feedback: what is kept per name, and how it is saved and dealt to ranks.

    {"residuals": {name: array}, "velocities": {name: array}, "steps": {name: int},
     "momentum": float, "warmup_steps": int}

A state belongs to one rank.  When p ranks become q, the states are dealt like cards: rank r sums
those of the old ranks r, r + q, r + 2 q, ...  (zeros if there are none), so that each goes to
exactly one rank and the sum over ranks stays, to rounding.
"""

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np

from collectives.feedback_entry import Record

_KEYS = ("residuals", "velocities", "steps", "momentum", "warmup_steps")
_KEEP = ("sum", "mean")


class Loaded(NamedTuple):
    """What a new run starts with."""

    records: dict[str, Record]
    momentum: float
    warmup_steps: int


def pack(records: Mapping[str, Record], momentum: float, warmup_steps: int) -> dict:
    """The state as a dict, arrays copied; names without a completed call are left out."""
    done = {name: record for name, record in records.items() if record.steps}
    return {
        "residuals": {name: record.residual.copy() for name, record in done.items()
                      if record.residual is not None},
        "velocities": {name: record.velocity.copy() for name, record in done.items()
                       if record.velocity is not None},
        "steps": {name: record.steps for name, record in done.items()},
        "momentum": momentum,
        "warmup_steps": warmup_steps,
    }


def unpack(states: Sequence[Mapping], rank: int, size: int, keep: str) -> Loaded:
    """The share of `rank` of `size` in the states of the old ranks, copied.

    keep : what stays as it was over all ranks, "sum" or "mean"

    Raises
    ------
    TypeError, ValueError
        If a state is malformed, or states disagree in shapes, steps, momentum or warm-up.
    """
    _check_ranks(states, rank, size, keep)
    for n, state in enumerate(states):
        _check_state(state, f"state {n}: " if len(states) > 1 else "state: ")
    factor = size / len(states) if keep == "mean" else 1.0
    names = dict.fromkeys(name for state in states for name in state["steps"])
    records = {}
    for name in names:
        residuals = [_array(state["residuals"].get(name)) for state in states]
        velocities = [_array(state["velocities"].get(name)) for state in states]
        shape, dtype = _layout(name, residuals + velocities)
        records[name] = Record(
            shape, dtype, _share(residuals, rank, size, factor),
            _share(velocities, rank, size, factor),
            _same(f"steps of {name!r}", [state["steps"][name] for state in states
                                         if name in state["steps"]]))
    return Loaded(records, _same("momentum", [state["momentum"] for state in states]),
                  _same("warmup_steps", [state["warmup_steps"] for state in states]))


def _share(arrays: list[np.ndarray | None], rank: int, size: int, factor: float):
    """The new array of `rank`; None if no old rank had one."""
    known = next((array for array in arrays if array is not None), None)
    if known is None:
        return None
    mine = [array for array in arrays[rank::size] if array is not None]
    if not mine:
        return np.zeros(known.shape, known.dtype)
    total = np.array(mine[0], order="C")
    for array in mine[1:]:
        total += array
    if factor != 1.0:
        total *= factor
    return total


def _layout(name: str, arrays: list[np.ndarray | None]):
    """Shape and dtype that all arrays of one name have."""
    layouts = [(array.shape, array.dtype) for array in arrays if array is not None]
    return _same(f"shape and dtype of {name!r}", layouts) if layouts else (None, None)


def _same(what: str, values: list):
    for value in values:
        if value != values[0]:
            raise ValueError(f"state: {what}: {values[0]} and {value}: expected states of one run, "
                             "saved at the same step")
    return values[0]


def _array(value) -> np.ndarray | None:
    """As an array of native byte order; copied only if it has another."""
    if value is None:
        return None
    array = np.asarray(value)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_ranks(states, rank, size, keep) -> None:
    if not isinstance(states, (list, tuple)):
        raise TypeError(f"state is a {type(states).__name__}: expected what state_dict() returned, "
                        "or a list of those, one of each old rank")
    if not states:
        raise ValueError("state: expected the states of one old rank or more")
    if not isinstance(size, Integral) or not isinstance(rank, Integral) or not 0 <= rank < size:
        raise ValueError(f"rank={rank!r}, size={size!r}: expected those of the new run, with a "
                         "list of states")
    if keep not in _KEEP:
        raise ValueError(f"keep={keep!r}: expected one of {', '.join(_KEEP)}")


def _check_state(state, where: str) -> None:
    if not isinstance(state, Mapping):
        raise TypeError(f"{where}{type(state).__name__}: expected what state_dict() returned")
    if set(state) != set(_KEYS):
        raise ValueError(f"{where}has {sorted(map(str, state))}: expected {sorted(_KEYS)}")
    for key in _KEYS[:3]:
        if not isinstance(state[key], Mapping):
            raise TypeError(f"{where}{key} is a {type(state[key]).__name__}: expected a dict")
    for name, steps in state["steps"].items():
        if not isinstance(name, str) or not isinstance(steps, Integral) or steps < 1:
            raise ValueError(f"{where}steps of {name!r} is {steps!r}: expected an integer >= 1")
    for key, kind in ("momentum", Real), ("warmup_steps", Integral):
        if not isinstance(state[key], kind):
            raise TypeError(f"{where}{key} is {state[key]!r}: expected a number")
    for key in "residuals", "velocities":
        _check_arrays(state[key], state["steps"], where + key)


def _check_arrays(arrays: Mapping, steps: Mapping, where: str) -> None:
    for name, value in arrays.items():
        if name not in steps:
            raise ValueError(f"{where} of {name!r}: expected it among steps too")
        if not hasattr(value, "__array__"):
            raise TypeError(f"{where} of {name!r} is a {type(value).__name__}: expected an array")
        dtype = np.asarray(value).dtype
        if (dtype.kind, dtype.itemsize) not in (("f", 4), ("f", 8)):
            raise ValueError(f"{where} of {name!r} has dtype {dtype}: expected float32 or float64")
