"""Under mpirun: ranks agree on the outcome of each test, and none waits for ever.

A test that fails on one rank fails on all, so that all start the next one together.  A test that
is still running after --test-seconds shows what each rank is doing and ends the job: that is how
a rank shows that waits in a collective for one that has failed.
"""

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import pytest
from mpi4py import MPI

from collectives.memory import Pool

TEXT_NBYTES = 300
OWN_FAILURE = "failed on this rank"  # heads the reports that test_mpi_suite.py shows

# Not everything on every number of ranks: kernels, plans and checks of arguments depend on neither
# that nor the MPI library.  5 and 7 are there for schedules; under Open MPI two numbers of ranks
# say whether compressed messages arrive.  EVERYTHING runs all.
EVERYTHING = os.environ.get("TEST_EVERYTHING") == "1"  # `tests` is not there to be imported yet
SIZE = MPI.COMM_WORLD.size
_REPORTS = ["test_compression_reports.py", "test_compression_steps.py"]
collect_ignore = []
if not EVERYTHING:
    if SIZE > 4:
        collect_ignore += _REPORTS
    if SIZE in (5, 7):
        collect_ignore += ["test_compression.py", "test_arguments.py", "test_frameworks.py"]
    if "Open MPI" in MPI.Get_library_version() and SIZE not in (2, 8):
        collect_ignore += ["test_compression.py", *_REPORTS]

_comm = MPI.COMM_WORLD.Dup()  # ours alone: never meets the messages of a test


def pytest_addoption(parser):
    parser.addoption("--test-seconds", type=float, default=100, help="time limit of each test")


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.mpi)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    return (yield from _together(item, "setup"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    return (yield from _together(item, "call"))


def _together(item, phase: str):
    """Run one phase of a test, then raise on every rank what happened on any."""
    failure: list[BaseException] = []
    with _time_limit(item, failure):
        try:
            result = yield
        except BaseException as error:
            failure.append(error)
        outcomes = _exchange(_outcome(failure))
    if any(outcomes):
        _start_afresh()
    if failure:
        if not isinstance(failure[0], pytest.skip.Exception):
            item.add_report_section(phase, "rank", f"{OWN_FAILURE}, {_comm.rank} of {_comm.size}")
        raise failure[0]
    others = {rank: text for rank, text in enumerate(outcomes) if text}
    if others:
        lines = [f"rank {rank}: {text}" for rank, text in others.items()]
        pytest.fail("failed on other ranks\n" + "\n".join(lines), pytrace=False)
    return result


def _start_afresh() -> None:
    """Ranks may have left a failed test between different calls: no later call may meet those."""
    module = sys.modules.get("collectives.world")
    if module is not None:
        module._world.clear()  # the next call makes a new communicator


def _outcome(failure: list[BaseException]) -> str:
    """Empty for success."""
    return f"{type(failure[0]).__name__}: {failure[0]}" if failure else ""


def _exchange(text: str) -> list[str]:
    """The texts of all ranks; asleep while it waits."""
    mine = np.zeros(TEXT_NBYTES, np.uint8)
    encoded = text.encode()[:TEXT_NBYTES]
    mine[:len(encoded)] = np.frombuffer(encoded, np.uint8)
    everyone = np.empty((_comm.size, TEXT_NBYTES), np.uint8)
    request, pause = _comm.Iallgather(mine, everyone), 1e-5
    while not request.Test():
        time.sleep(pause)
        pause = min(2 * pause, 2e-3)
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in everyone]


@contextmanager
def _time_limit(item, failure: list[BaseException]) -> Iterator[None]:
    """End the job, saying why, if the body takes longer than --test-seconds."""
    seconds = item.config.getoption("--test-seconds")
    capture = item.config.pluginmanager.getplugin("capturemanager")

    def end():
        capture.suspend_global_capture(in_=True)
        print(f"\n{OWN_FAILURE}, {_comm.rank} of {_comm.size}: {item.nodeid} "
              f"takes longer than {seconds} s", file=sys.stderr, flush=True)
        for error in failure:
            traceback.print_exception(error)
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        time.sleep(1)  # for the other ranks to say what they do
        MPI.COMM_WORLD.Abort(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.fixture
def engines_of_its_own():
    """For tests that change how calls are lowered: none runs as an earlier call was, nor later."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    import collectives
    collectives.world().lanes.mine().repeats = Pool()


@pytest.fixture
def set_segment(engines_of_its_own, monkeypatch):
    """Function that sets the bytes per message."""
    return lambda nbytes: monkeypatch.setattr("collectives.tuning.DEFAULT_SEGMENT", nbytes)


@pytest.fixture
def small_segments(set_segment):
    """Messages of 256 bytes, so that small tensors are cut into many blocks."""
    set_segment(256)


# With many ranks "both" has all there is, and time is short.
CHANNELS = ["shared memory", "MPI", "both"] if SIZE <= 4 else ["both"]


@pytest.fixture(params=CHANNELS)
def channel(request, engines_of_its_own, monkeypatch):
    """How messages travel on one host; "both": as if each half of the ranks had its own host."""
    import collectives
    world = collectives.world()
    if request.param == "both":
        monkeypatch.setattr(world.engines, "shared", _two_hosts(world))
    elif request.param == "MPI":
        monkeypatch.setattr(world.engines.shared, "ranks", ())


@lru_cache(maxsize=1)
def _two_hosts(world):
    """Made once for each communicator, like its own: tables of earlier calls refer to it."""
    from collectives.mailbox import SharedMemory
    halves = np.array_split(np.arange(world.size), 2)
    mine = next(half for half in halves if world.rank in half)
    return SharedMemory(world._comm, mine.tolist())
