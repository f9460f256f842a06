"""One rank fails, the job ends: no rank waits for ever for one that is gone.

    how a rank fails                      what happens, if the job has more than one rank
    uncaught exception, any thread        traceback with "[rank R] " before each line, MPI_Abort(1)
    KeyboardInterrupt                     the same, MPI_Abort(130)
    sys.exit(status), status not 0        at exit: stdio flushed, MPI_Abort(status)
    sys.exit(0), end of the program       nothing

Without this, the failing rank would wait in MPI_Finalize for ranks that wait for it.  The hooks
look at MPI when something fails, not before: they neither import nor initialise it, and they do
nothing while it is not in use, in a job of one rank, in forked children, and in an interactive
interpreter.  Opt out with COLLECTIVES_ABORT=0 or `abort_on_exception(False)`.

How the exit status is known: Python tells nobody.  So sys.exit raises a subclass of SystemExit
that, when it is destroyed, looks at the stack.  One that was caught dies above the frames of the
program that caught it; one that ended the program dies when every frame is gone.  Not seen are
`raise SystemExit(n)`, `sys.exit(main())` where `main` is the first to import us (sys.exit is
looked up before `main` runs), and an exit that something still refers to.  Who knows better can
call `note_status`.  pytest does both; under mpirun its conftest.py needs

    def pytest_sessionfinish(exitstatus):
        collectives.abort.note_status(exitstatus)

MPI_Abort at exit skips the atexit functions that were registered before our first call.
"""

import atexit
import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from collectives.settings import settings

FORWARDING_S = 0.2  # launchers forward stderr in their own time, and may lose it when they kill


class _State:
    """What the hooks of this process know."""

    enabled: bool | None = None  # None: as COLLECTIVES_ABORT says
    pid = 0                      # process that installed the hooks; others are its children
    hook: Any = None             # our latest sys.excepthook
    reporting = False            # a hook of ours is printing
    status = 0                   # exit status, once the program is known to end with one


_state = _State()


class _Exit(SystemExit):
    """The SystemExit of sys.exit; notes its status if it dies with no frame left on the stack."""

    def __del__(self):
        if sys._getframe().f_back is None:
            note_status(self.code)

    def __reduce__(self):
        return SystemExit, self.args


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"  # as tracebacks show it
_Exit.__module__ = "builtins"


def _exit(status=None, /):
    """Exit the interpreter by raising SystemExit(status)."""
    if threading.current_thread() is threading.main_thread():
        raise _Exit(status)
    raise SystemExit(status)  # ends only the thread, which looks for this very type


def exit_status(code: object) -> int:
    """What the shell sees of SystemExit(code): 0 to 255."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def abort_on_exception(enabled: bool = True) -> None:
    """Choose whether a failure of this rank ends the whole job; overrides COLLECTIVES_ABORT."""
    _state.enabled = bool(enabled)


def install() -> None:
    """Put the hooks in place; imports nothing of MPI.

    Safe to call again: if somebody has replaced sys.excepthook since, ours goes in front of
    theirs and calls it to print.
    """
    if sys.excepthook is not _state.hook:
        _state.hook = sys.excepthook = _main_hook(sys.excepthook)
    if not _state.pid:
        _state.pid = os.getpid()
        threading.excepthook = _thread_hook(threading.excepthook)
        sys.exit = _exit
        atexit.register(end_job_if_failed)


def end_job_if_failed() -> None:
    """At exit: do not return if this process is about to end with a status other than 0."""
    mpi = _job() if _state.status else None
    if mpi is None:
        return
    status, _state.status = _state.status, 0
    _say(mpi, f"exit status {status}: ending the whole job")
    _end_job(mpi, status)


def note_status(code: object) -> None:
    """Say that this process will end with SystemExit(code): for test runners and the like."""
    _state.status = exit_status(code)


def noted_status() -> int:
    """The exit status of this process as far as the hooks have seen it."""
    return _state.status


def _enabled() -> bool:
    if _state.enabled is not None:
        return _state.enabled
    try:
        return settings().abort
    except ValueError:  # reported where the settings are used
        return True


def _interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive or sys.flags.inspect)


def _job() -> Any:
    """mpi4py.MPI if other ranks would wait for this one, else None."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or os.getpid() != _state.pid or _interactive() or not _enabled():
        return None
    if not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() == 1:
        return None
    return mpi


def _main_hook(previous: Callable) -> Callable:
    """sys.excepthook: print as `previous` does, with the rank, and end the job."""

    def excepthook(kind, value, trace):
        status = 130 if issubclass(kind, KeyboardInterrupt) else 1
        mpi = None if _state.reporting else _job()
        if mpi is not None:
            _report(mpi, status, previous, kind, value, trace)
        else:
            if os.getpid() != _state.pid:
                note_status(status)
            previous(kind, value, trace)

    return excepthook


def _thread_hook(previous: Callable) -> Callable:
    """threading.excepthook: the same for threads, where SystemExit ends only the thread."""

    def excepthook(args):
        mpi = None if _state.reporting or args.exc_type is SystemExit else _job()
        if mpi is not None:
            _report(mpi, 1, previous, args)
        else:
            previous(args)

    return excepthook


def _report(mpi: Any, status: int, previous: Callable, *args) -> None:
    _state.reporting = True  # `previous` may call an earlier hook of ours: that one only prints
    text = io.StringIO()
    try:
        with contextlib.redirect_stderr(text):
            previous(*args)
    finally:
        _say(mpi, text.getvalue())
        _end_job(mpi, status)


def _say(mpi: Any, text: str) -> None:
    """Write `text` to stderr in one piece, with the rank before each line."""
    rank = mpi.COMM_WORLD.Get_rank()
    with contextlib.suppress(Exception):  # stderr may be None or closed; the job must end
        sys.stderr.write("".join(f"[rank {rank}] {line}\n" for line in text.splitlines()))


def flush() -> None:
    """Flush stdout and stderr; a closed one is no reason to stop."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _end_job(mpi: Any, status: int) -> None:
    flush()
    time.sleep(FORWARDING_S)
    mpi.COMM_WORLD.Abort(status)
