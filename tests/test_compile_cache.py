"""Compiled functions: one process compiles, the others and later ones load the same code.

Most tests start Python anew, because what matters is what a second process finds on disk.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import collectives
from collectives.kernels.cache import Store

# Functions to compile.  `weighted` is too long to be inlined: callers keep a call to it by name.
FUNCTIONS = '''
import numpy as np
from numba import extending, njit, types
from collectives.kernels import compile

labs = types.ExternalFunction("labs", types.int64(types.int64))
clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.voidptr))

def total(x):
    return x.sum()

def make(weight):
    @njit
    def weighted(x, y):
        result = 0.0
        for i in range(x.size):
            for j in range(x.size):
                if x[i] > x[j]:
                    for k in range(10):
                        result += weight * x[(i * j + k) % x.size]
                else:
                    result -= y * weight
        for i in range(x.size):
            result += x[i] * weight / (y + i + 100)
        return result

    def combine(x, y):
        return weighted(x, y) + weighted(x, y + 1) + weighted(x, 2 * y)
    return combine

def combined(weight):
    return compile.function(make(weight), "float64(float64[::1], float64)", key=str(weight))

def absolute(n):
    return labs(n)

def now(timespec):
    return clock_gettime(1, timespec.ctypes)

def add(a, b):
    return a + b

@extending.intrinsic
def call(typing_context, pointer, a, b):
    def lower(context, builder, signature, args):
        from llvmlite import ir
        i64 = ir.IntType(64)
        target = builder.inttoptr(args[0], ir.FunctionType(i64, [i64, i64]).as_pointer())
        return builder.call(target, args[1:])
    return types.int64(types.intp, types.int64, types.int64), lower

def through(pointer, a, b):
    return call(pointer, a, b)

def guarded(n):
    if n < 0:
        raise ValueError("negative")
    return np.ones(n), 1 // n
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package, which nobody edits while the tests run: that would invalidate."""
    parent = tmp_path_factory.mktemp("package")
    shutil.copytree(Path(collectives.__file__).parent, parent / "collectives",
                    ignore=shutil.ignore_patterns("__pycache__"))
    return parent


@pytest.fixture
def run(tmp_path, package):
    """Run code in a new process; returns the process with `stats` parsed from its last line."""
    def start(code: str, **env) -> subprocess.Popen:
        (tmp_path / "functions.py").write_text(FUNCTIONS)
        command = ("import json\nfrom functions import *\n" + code
                   + "\nprint(json.dumps(compile.stats()))")
        full_env = {**os.environ, "COLLECTIVES_CACHE": str(tmp_path / "cache"),
                    "PYTHONPATH": f"{tmp_path}{os.pathsep}{package}", **env}
        return subprocess.Popen([sys.executable, "-c", command], text=True, cwd=tmp_path,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={k: v for k, v in full_env.items() if v is not None})

    def finish(code: str, **env) -> subprocess.CompletedProcess:
        return _finished(start(code, **env))

    finish.start = start
    return finish


def _finished(process: subprocess.Popen) -> subprocess.CompletedProcess:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    *lines, last = out.splitlines()
    result = subprocess.CompletedProcess(process.args, 0, "\n".join(lines), err)
    result.stats = json.loads(last)
    return result


COMPILED = {"compiled": 1, "loaded": 0}
LOADED = {"compiled": 0, "loaded": 1}
TOTAL = 'f = compile.function(total, "float64(float64[::1])")\nprint(f(np.arange(4.0)))'


def _files(tmp_path) -> list[str]:
    return sorted(os.listdir(tmp_path / "cache" / "mpi-collectives"))


def test_second_process_loads_without_compiling_or_importing_callees(run, tmp_path):
    code = TOTAL + '\nimport sys\nprint("numba.np.arraymath" in sys.modules)'
    first, second = run(code), run(code)
    assert (first.stats, first.stdout) == (COMPILED, "6.0\nTrue")
    assert (second.stats, second.stdout) == (LOADED, "6.0\nFalse")
    assert [re.sub(r"-[0-9a-f]{64}$", "", name) for name in _files(tmp_path)] == ["total"]


def test_closures_compiled_by_different_processes_keep_their_callees(run):
    call = "print(combined({0})(np.arange(4.0), 10.0) / {0})\n"
    one, five = run(call.format(1.0)), run(call.format(5.0))
    both = run(call.format(1.0) + call.format(5.0))
    assert both.stats == {"compiled": 0, "loaded": 2}
    assert float(one.stdout) == pytest.approx(float(five.stdout))
    assert both.stdout.splitlines() == [one.stdout, five.stdout]


def test_key_environment_and_signature_make_different_files(run, tmp_path):
    result = run("""
for key in "a", "b":
    for environment in "x", "y":
        for signature in "int64(int64, int64)", "int32(int32, int32)":
            compile.function(add, signature, key=key, environment=environment)
""")
    assert result.stats == {"compiled": 8, "loaded": 0}
    assert len(_files(tmp_path)) == 8


def test_loaded_code_behaves_like_compiled_code(run):
    code = """
import ctypes
def error(f, *args):
    try:
        f(*args)
    except Exception as e:
        return repr(e).split(" for ")[0]
f = compile.function(guarded, "(int64,)")
print(f(2), error(f, -1), error(f, 0))
for wrong in (np.zeros(3, np.float32),), (np.zeros((2, 2)),), (np.zeros(6)[::2],), (1.0,):
    print(error(compile.function(total, "float64(float64[::1])"), *wrong))
print(compile.function(absolute, "int64(int64)")(-5))
time = np.zeros(2, np.int64)
f = compile.function(now, "int32(int64[::1])")
print(f(time), time[0] > 0)
pointer = compile.address(add, "int64(int64, int64)")
print(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(pointer)(2, 3))
print(compile.function(through, "int64(intp, int64, int64)")(pointer, 20, 22))
"""
    first, second = run(code), run(code)
    assert (first.stats["compiled"], second.stats["loaded"]) == (6, 6)
    assert first.stdout == second.stdout
    assert first.stdout.splitlines() == [
        "(array([1., 1.]), 0) ValueError('negative') "
        "ZeroDivisionError('integer division by zero')",
        *["TypeError('No matching definition"] * 4, "5", "0 True", "5", "42"]


def test_missing_c_function_is_an_error_not_a_crash(run, tmp_path):
    code = """
nowhere = types.ExternalFunction("no_such_function_anywhere", types.int64(types.int64))
def lost(n):
    return nowhere(n)
try:
    compile.function(lost, "int64(int64)")
except RuntimeError as e:
    print(e)
"""
    result = run(code)
    assert "no_such_function_anywhere" in result.stdout
    assert result.stats == {"compiled": 0, "loaded": 0}
    assert _files(tmp_path) == []


def test_code_that_cannot_be_unpickled_is_compiled_anew(run, tmp_path):
    assert run(TOTAL).stats == COMPILED
    name, = _files(tmp_path)
    store = Store(tmp_path / "cache" / "mpi-collectives")
    store.save(name, b"cno_module\nno_name\n.")
    assert run(TOTAL).stats == COMPILED
    assert run(TOTAL).stats == LOADED
    assert _files(tmp_path) == [name]


def test_eight_processes_on_an_empty_cache_compile_once(run, tmp_path):
    processes = [run.start(TOTAL) for _ in range(8)]
    results = [_finished(process) for process in processes]
    assert [result.stdout for result in results] == ["6.0"] * 8
    assert sum(result.stats["compiled"] for result in results) == 1
    assert sum(result.stats["loaded"] for result in results) == 7
    assert len(_files(tmp_path)) == 1  # no lock, no temporary file


def test_changed_source_is_compiled_anew(run, tmp_path, package):
    shutil.copytree(package / "collectives", tmp_path / "collectives",
                    ignore=shutil.ignore_patterns("__pycache__"))
    where = TOTAL + "\nimport collectives\nprint(collectives.__file__)"
    first = run(where)
    assert str(tmp_path) in first.stdout
    assert first.stats == COMPILED
    with open(tmp_path / "collectives" / "kernels" / "__init__.py", "a") as file:
        file.write("# changed\n")
    assert run(where).stats == COMPILED


def test_one_process_builds_once_for_all_threads(run):
    code = """
from threading import Thread
found = []
def build():
    found.append(compile.function(njit(add), "int64(int64, int64)"))
threads = [Thread(target=build) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found), len(set(map(id, found))))
"""
    result = run(code)
    assert (result.stats, result.stdout) == (COMPILED, "8 1")
