"""Every environment variable we read, in one table.

variable                    default   meaning
COLLECTIVES_ALGORITHM       auto      algorithm where the call says "auto"
COLLECTIVES_TOPOLOGY        (none)    topology file
COLLECTIVES_CHECK           0         1: compare every call across ranks before data moves
COLLECTIVES_DEBUG           WARNING   log level of the `collectives` logger
COLLECTIVES_TRACE           (none)    directory for traces
COLLECTIVES_STALL_SECONDS   60        warn once when a call waits longer; 0: never
COLLECTIVES_STALL_ABORT     0         raise StallError when a call waits longer [s]; 0: never
COLLECTIVES_CACHE           (user's)  directory for compiled kernels
COLLECTIVES_ABORT           1         0: an uncaught exception does not end the whole job
COLLECTIVES_SEGMENT         (tuned)   bytes per pipeline segment
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Settings:
    """The values of the table above, parsed."""

    algorithm: str = "auto"
    topology: str | None = None
    check: bool = False
    debug: str = "WARNING"
    trace: str | None = None
    stall_seconds: float = 60.0
    stall_abort: float = 0.0
    cache: str | None = None
    abort: bool = True
    segment: int | None = None


def _flag(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True,
             "0": False, "false": False, "no": False, "off": False, "": False}
    return known[text.strip().lower()]


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def _nbytes(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _level(text: str) -> str:
    name = text.strip().upper()
    if name not in logging.getLevelNamesMapping():
        raise ValueError(text)
    return name


_PARSERS = {
    "algorithm": (str, "an algorithm name"),
    "topology": (str, "a file name"),
    "check": (_flag, "0 or 1"),
    "debug": (_level, "a log level, such as INFO"),
    "trace": (str, "a directory"),
    "stall_seconds": (_seconds, "a number of seconds >= 0"),
    "stall_abort": (_seconds, "a number of seconds >= 0"),
    "cache": (str, "a directory"),
    "abort": (_flag, "0 or 1"),
    "segment": (_nbytes, "a number of bytes >= 1"),
}


def parse(environ: Mapping[str, str]) -> Settings:
    """Settings from `environ`.

    Raises
    ------
    ValueError
        If a value does not parse; names the variable, what was given and what is expected.
    """
    values = {}
    for field, (parser, expected) in _PARSERS.items():
        name = "COLLECTIVES_" + field.upper()
        text = environ.get(name)
        if text is None:
            continue
        try:
            values[field] = parser(text)
        except (ValueError, KeyError):
            raise ValueError(f"{name}={text!r}: expected {expected}") from None
    return Settings(**values)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once, at the first call."""
    return parse(os.environ)
