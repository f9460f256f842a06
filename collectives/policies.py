"""Policies choose a codec for each tensor of a call: by its size, its name, or the step.

A policy is any function of a `TensorInfo` that returns what `compression=` takes: a codec, a
string, None, or again a policy.  So they compose in a line each:

    big = MinSize(16_384, ByName({"embed*": "topk:0.01"}, default="int8"))
    schedule = ByStep({0: None, 1000: big})
    coll.allreduce(grads, "mean", compression=schedule, residual=feedback)
    schedule.advance()

A policy is never asked about integers, bools and complex numbers: these travel uncompressed beside
the gradients.  (A codec named outright for them is an error of the call.)  All ranks must come to
the same choice, so decide by nothing but the tensor and the step.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import translate
from numbers import Integral

from collectives.dtypes import itemsize
from collectives.kernels.codec import FLOATS, Codec

_DEEPEST = 32  # policies inside policies; beyond it we assume that they return one another


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a policy decides by.

    name : path in the container, keys and positions joined with "." as in "encoder.0.weight"; None
        for a lone tensor without a name
    dtype : canonical name (see `collectives.dtypes`)
    size : elements
    """

    name: str | None
    dtype: str
    size: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor, uncompressed."""
        return self.size * itemsize(self.dtype)


def checked(compression):
    """`compression` with strings read: a codec, a policy or None.

    Raises
    ------
    ValueError
        For a string that names no codec; lists those that exist.
    TypeError
        For what can be no compression, such as a codec's class in place of a codec.
    """
    if compression is None or isinstance(compression, Codec):
        return compression
    if isinstance(compression, type):
        name = compression.__name__
        raise TypeError(f"compression={name}: expected an object, such as {name}(...)")
    if callable(compression):
        return compression
    from collectives.kernels.codecs import as_codec  # here, since it imports every codec
    return as_codec(compression)


def resolve(compression, tensor: TensorInfo) -> Codec | None:
    """The codec for `tensor`, or None to send it as it is.

    Raises
    ------
    ValueError, TypeError
        As `checked`, also for what a policy returns; names the policy and the tensor.
    """
    choice, policy = checked(compression), None
    for _ in range(_DEEPEST):
        if choice is None or isinstance(choice, Codec):
            return choice
        if tensor.dtype not in FLOATS:
            return None
        policy = choice
        choice = _asked(policy, tensor)
    raise ValueError(f"{policy!r}: {_DEEPEST} policies that return policies: expected a codec, a "
                     f"string or None for {tensor}")


def _asked(policy, tensor: TensorInfo):
    answer = policy(tensor)
    try:
        return checked(answer)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{policy!r} returned {answer!r} for {tensor}: {error}") from error


@dataclass(frozen=True)
class MinSize:
    """`compression` for tensors of at least `nbytes`, `below` for smaller ones.

    Small tensors cost latency, not bandwidth, and are often the sensitive ones (biases, norms).

    Examples
    --------
    >>> MinSize(4096, None)(TensorInfo("bias", "float32", 10)) is None
    True
    """

    nbytes: int
    compression: object
    below: object = None

    def __post_init__(self):
        _not_negative("MinSize: nbytes", self.nbytes)
        object.__setattr__(self, "nbytes", int(self.nbytes))
        object.__setattr__(self, "compression", checked(self.compression))
        object.__setattr__(self, "below", checked(self.below))

    def __call__(self, tensor: TensorInfo):
        return self.compression if tensor.nbytes >= self.nbytes else self.below


class ByName:
    """The compression of the first pattern that the tensor's name matches, else `default`.

    Patterns are those of `fnmatch.fnmatchcase`: `*`, `?`, `[abc]`; `*` also matches dots.  A tensor
    without a name has the name "".

    Examples
    --------
    >>> policy = ByName({"*.bias": None, "norm*": None}, default="int8")
    >>> policy(TensorInfo("encoder.0.bias", "float32", 10)) is None
    True
    """

    def __init__(self, patterns: Mapping, default=None):
        if not isinstance(patterns, Mapping):
            raise TypeError(f"ByName: patterns={patterns!r}: expected a dict from name patterns to "
                            "compressions")
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(f"ByName: pattern {pattern!r}: expected a string")
        self.patterns = {pattern: checked(choice) for pattern, choice in patterns.items()}
        self.default = checked(default)
        self._rules = [(re.compile(translate(pattern)).match, choice)
                       for pattern, choice in self.patterns.items()]

    def __call__(self, tensor: TensorInfo):
        name = tensor.name or ""
        for match, choice in self._rules:
            if match(name):
                return choice
        return self.default

    def __repr__(self) -> str:
        return f"ByName({self.patterns!r}, default={self.default!r})"


class ByStep:
    """The compression whose key is the largest that is not above `step`.

    `step` counts calls of `advance`, one per training step; set it when a run is resumed.  All
    ranks must be at the same step.

    Examples
    --------
    >>> policy = ByStep({0: None, 2: None})
    >>> policy.advance()
    >>> policy
    <ByStep({0: None, 2: None}), step 1>
    """

    def __init__(self, entries: Mapping):
        if not isinstance(entries, Mapping):
            raise TypeError(f"ByStep: entries={entries!r}: expected a dict from steps to "
                            "compressions")
        for key in entries:
            _not_negative("ByStep: key", key)
        if 0 not in entries:
            raise ValueError(f"ByStep: keys {list(entries)}: expected 0 among them, for the first "
                             "step")
        self.entries = {int(key): checked(entries[key]) for key in sorted(entries)}
        self._keys = list(self.entries)
        self._step = 0

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        _not_negative("ByStep: step", step)
        self._step = int(step)

    def advance(self) -> None:
        """Go to the next step."""
        self._step += 1

    def __call__(self, tensor: TensorInfo):
        return self.entries[self._keys[bisect_right(self._keys, self._step) - 1]]

    def __repr__(self) -> str:
        return f"<ByStep({self.entries!r}), step {self._step}>"


def _not_negative(what: str, value) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{what}={value!r}: expected an integer >= 0")
    if value < 0:
        raise ValueError(f"{what}={value}: expected an integer >= 0")
