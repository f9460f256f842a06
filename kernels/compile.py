"""Compile on demand for one signature; keep the machine code on disk.

`function` gives a callable for Python, `address` a C function pointer for other compiled code.
Both first look in this process, then on disk, and only then compile; see `cache` for what happens
when many processes do so at once.

A file is named by a digest of all that the machine code depends on: the function, its key and
signature, the caller's environment, the sources, the versions, the processor, Numba's options.

Three things differ from Numba's own cache:

- Symbols are unique.  Numba numbers functions 1, 2, ... in each process and names symbols by it.
  Closures of one factory, compiled by different processes, may so have callees of one name; where
  both are loaded, one silently calls the callees of the other.  We number from a random start.
- Loading does not import the typing rules, which only compiling needs: 0.4 s less.
- C functions are looked up first.  A call of one that is not there would end the process.
"""

import glob
import hashlib
import io
import itertools
import logging
import pickle
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core import config, environment, serialize, sigutils
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import NullCache
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.runtime import rtsys

import collectives
from collectives.kernels.cache import cache_directory, store

__all__ = ["address", "cache_directory", "function", "stats"]

_OPTIONS = {"nopython": True, "nogil": True}
_NUMBA_SETTINGS = ("OPT", "DEBUGINFO_DEFAULT", "BOUNDSCHECK", "LOOP_VECTORIZE", "SLP_VECTORIZE")

_LOG = logging.getLogger("collectives")
_built: dict[tuple, CPUDispatcher | CFunc] = {}  # kept for the life of the process
_counts = Counter(compiled=0, loaded=0)


def function(py_func: Callable, signature, *, key: str = "", environment: str = "") -> Callable:
    """`py_func` compiled in nopython mode for `signature` alone; releases the GIL when called.

    Parameters
    ----------
    py_func : Python function, or one decorated with njit
    signature : as for numba.njit
    key : tells apart the closures of one factory; any two that differ need different keys
    environment : whatever else the machine code depends on, such as the MPI library

    Returns
    -------
    A Numba dispatcher that raises TypeError for other array types or another number of arguments.
    It converts scalars to the signature's types as Numba does, a float to an integer too.

    Raises
    ------
    RuntimeError
        If a C function that `py_func` calls is not loaded.
    """
    return _obtain(_dispatcher, py_func, signature, key, environment)


def address(py_func: Callable, signature, *, key: str = "", environment: str = "") -> int:
    """Address of `py_func` as a C function, valid for the life of the process.

    Parameters and errors are those of `function`; `signature` must have a return type.
    """
    return _obtain(_callback, py_func, signature, key, environment).address


def stats() -> dict[str, int]:
    """How many functions this process has compiled, and how many loaded from disk."""
    return dict(_counts)


def _obtain(kind: Callable, py_func: Callable, signature, key: str, environment: str):
    py_func = getattr(py_func, "py_func", py_func)
    arguments, returns = sigutils.normalize_signature(signature)
    identity = (kind.__name__, py_func.__module__, py_func.__qualname__, key,
                f"{returns}{arguments}", environment)
    if identity in _built:
        return _built[identity]
    with global_compiler_lock:  # a lock of our own could be taken in the other order
        if identity not in _built:
            _built[identity] = _build(_file_name(py_func, key, identity),
                                      partial(kind, py_func, arguments, returns))
        return _built[identity]


def _build(name: str, make: Callable[["_Entry"], CPUDispatcher | CFunc]):
    start_s = time.perf_counter()
    with store().claim(name) as payload:
        entry = _Entry(name, payload)
        _number_symbols()
        built = make(entry)
    _LOG.debug("%s %s in %.3f s", entry.outcome, name, time.perf_counter() - start_s)
    _counts[entry.outcome] += 1
    return built


def _dispatcher(py_func: FunctionType, arguments, returns, entry: "_Entry") -> CPUDispatcher:
    dispatcher = CPUDispatcher(py_func, targetoptions=dict(_OPTIONS))
    dispatcher._cache = entry
    dispatcher.compile(arguments if returns is None else returns(*arguments))
    dispatcher.disable_compile()
    return dispatcher


def _callback(py_func: FunctionType, arguments, returns, entry: "_Entry") -> CFunc:
    callback = CFunc(py_func, (arguments, returns), {}, dict(_OPTIONS))
    callback._cache = entry
    callback.compile()
    return callback


class _Entry(NullCache):
    """One stored function, as Numba sees its cache."""

    def __init__(self, name: str, payload: bytes | None):
        self.name = name
        self.payload = payload
        self.outcome = "compiled"

    def load_overload(self, sig, target_context) -> CompileResult | None:
        if self.payload is None:
            return None
        try:
            symbols, state = _Unpickler(io.BytesIO(self.payload)).load()
        except Exception as error:  # whatever a pickle may raise
            _LOG.debug("compiling %s anew: %r", self.name, error)
            return None
        rtsys.initialize(target_context)
        if _missing(symbols):
            target_context.refresh()  # some symbols come with Numba's modules
        _require(symbols)
        self.outcome = "loaded"
        return CompileResult._rebuild(target_context, *state)

    def save_overload(self, sig, result: CompileResult) -> None:
        result.library._ensure_finalized()  # until then callees are not linked in
        symbols = _externals(result.library._final_module)
        _require(symbols)
        if result.library.has_dynamic_globals:
            _LOG.warning("%s contains addresses of this process: not stored", self.name)
        else:
            store().save(self.name, serialize.dumps((symbols, result._reduce())))


class _Unpickler(pickle.Unpickler):
    """Restores environments of callees without importing their modules; `a.sum()` needs SciPy's.

    Their globals are for object mode only.
    """

    def find_class(self, module: str, name: str):
        if name == "_rebuild_env":
            return _rebuild_environment
        return super().find_class(module, name)


def _rebuild_environment(module: str, consts: list, name: str) -> environment.Environment:
    if module in sys.modules:
        return environment._rebuild_env(module, consts, name)
    rebuilt = environment.Environment({"__name__": module})
    rebuilt.consts[:] = consts
    rebuilt.env_name = name
    environment.Environment._memo[name] = rebuilt
    return rebuilt


def _number_symbols() -> None:
    """Let Numba count functions from a random start (see above); it uses the number for names."""
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(48) << 14)


_number_symbols()  # for callees that are compiled before we are called


def _externals(module: llvm.ModuleRef) -> list[str]:
    """What `module` uses and does not define."""
    symbols = itertools.chain(module.functions, module.global_variables)
    return [s.name for s in symbols if s.is_declaration and not s.name.startswith("llvm.")]


def _missing(symbols: list[str]) -> list[str]:
    return [symbol for symbol in symbols if not llvm.address_of_symbol(symbol)]


def _require(symbols: list[str]) -> None:
    missing = _missing(symbols)
    if missing:
        raise RuntimeError(f"C functions not found: {', '.join(missing)}; first load their library"
                           " with llvmlite.binding.load_library_permanently")


def _file_name(py_func: FunctionType, key: str, identity: tuple) -> str:
    """Readable, then a digest of all that the machine code depends on."""
    depends = (*identity, _source(py_func), _package_digest(), *_machine())
    digest = hashlib.sha256("\0".join(depends).encode()).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9]+", "-", f"{py_func.__name__}-{key}").strip("-")[:60]
    return f"{readable}-{digest}"


def _source(py_func: FunctionType) -> str:
    """Digest of the file that defines `py_func`; its bytecode if there is none."""
    code = py_func.__code__
    try:
        return hashlib.sha256(Path(code.co_filename).read_bytes()).hexdigest()
    except OSError:
        return repr((code.co_code, code.co_consts, code.co_names))


@lru_cache(maxsize=1)
def _package_digest() -> str:
    """Digest of every source file of this package: any of them may be compiled as a callee."""
    root = Path(collectives.__file__).parent
    digest = hashlib.sha256()
    for name in sorted(glob.glob("**/*.py", root_dir=root, recursive=True)):  # follows links
        content = (root / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _machine() -> tuple[str, ...]:
    """Interpreter, versions, processor (as Numba targets it) and Numba's options."""
    processor = cpu_target.target_context.codegen().magic_tuple()
    options = [f"{name}={getattr(config, name, None)}" for name in _NUMBA_SETTINGS]
    return (sys.version, np.__version__, numba.__version__, llvmlite.__version__,
            *map(str, processor), *options)
