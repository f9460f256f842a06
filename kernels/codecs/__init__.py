"""The codecs, and how a string names one."""

from dataclasses import MISSING, fields

from collectives.kernels.codec import Codec
from collectives.kernels.codecs.bfloat16 import BFloat16
from collectives.kernels.codecs.float16 import Float16
from collectives.kernels.codecs.int4 import Int4
from collectives.kernels.codecs.int8 import Int8
from collectives.kernels.codecs.sign import Sign
from collectives.kernels.codecs.ternary import Ternary
from collectives.kernels.codecs.threshold import Threshold
from collectives.kernels.codecs.topk import TopK

CODECS = {kind.name: kind
          for kind in (Float16, BFloat16, Int8, Int4, Ternary, Sign, TopK, Threshold)}

__all__ = ["CODECS", "BFloat16", "Codec", "Float16", "Int4", "Int8", "Sign", "Ternary",
           "Threshold", "TopK", "as_codec"]

_READ = {int: int, float: float, bool: {"True": True, "False": False}.__getitem__}


def as_codec(spec) -> Codec:
    """The codec that `spec` is or names: `name`, `name:VALUE` or `name:field=VALUE,field=VALUE`.

    A VALUE alone is that of the first field.

    Raises
    ------
    ValueError
        For a name or field that does not exist, or a value that it cannot have.
    TypeError
        If `spec` is neither a codec nor a string.

    Examples
    --------
    >>> as_codec("int8:block=64"), as_codec("topk:0.01")
    (Int8(block=64, stochastic=False, seed=0), TopK(density=0.01))
    """
    if isinstance(spec, Codec):
        return spec
    if not isinstance(spec, str):
        raise TypeError(f"compression={spec!r}: expected a codec, a policy, or one of "
                        f"{', '.join(CODECS)}")
    name, _, parameters = spec.partition(":")
    if name not in CODECS:
        raise ValueError(f"compression={spec!r}: expected one of {', '.join(CODECS)}")
    kind = CODECS[name]
    known = {field.name: field for field in fields(kind)}
    given = {}
    for text in filter(None, parameters.split(",")):
        field, equals, value = text.rpartition("=")
        field = field if equals else next(iter(known), "")
        if field not in known or field in given:
            raise ValueError(f"compression={spec!r}: {name} has no parameter {text!r}: expected "
                             f"{', '.join(known) or 'none'}, each once")
        given[field] = _read(known[field], value, spec)
    missing = [f.name for f in known.values() if f.default is MISSING and f.name not in given]
    if missing:
        raise ValueError(f"compression={spec!r}: expected {name}:{missing[0].upper()}")
    return kind(**given)


def _read(field, text: str, spec: str):
    kind = next((t for t in _READ if t.__name__ in str(field.type)), float)
    try:
        return _READ[kind](text)
    except (KeyError, ValueError):
        raise ValueError(f"compression={spec!r}: {field.name}={text!r}: expected "
                         f"{kind.__name__}") from None
