"""Device kernels: the host's bytes in the simulator, and assembly for three generations of GPUs.

Both take a while, so they run in the background, in processes of their own: the simulator is chosen
when Numba is imported.  No GPU is needed.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_double, c_longlong
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

if find_spec("numba_cuda") is None or find_spec("cuda") is None:
    pytest.skip("needs numba-cuda: pip install 'mpi-collectives[test]' or [cuda12]",
                allow_module_level=True)

from cuda.bindings import driver

from collectives.kernels import cuda_compile, cuda_launch
from collectives.kernels.codec import Emit
from collectives.kernels.codecs import Int8, TopK
from collectives.kernels.cuda import address_of, device_kernel, handle_of, ptx, unavailable
from tests import cuda_cases

CHECKOUT = Path(__file__).parent.parent
CODECS = range(len(cuda_cases.CODECS))
# The long ones apart, so that two processes end at about the same time.
SHARES = {"assemble": [[0, 1, 2, 3, 4, 11], [5, 6, 7, 8, 9, 10]],
          "simulate": [[0, 1, 2, 3, 4, 11], [5, 6, 7, 8, 9, 10]]}
TIMEOUT_S = 600
REGISTERS, SHARED_NBYTES = 65536, 48 * 1024  # that every GPU since compute capability 7.0 has

every_codec = pytest.mark.parametrize("index", CODECS, ids=lambda i: repr(cuda_cases.CODECS[i]))


def run(what: str, share: list[int]) -> list[dict]:
    """The reports of `tests.cuda_cases`."""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1" if what == "simulate" else "0"}
    done = subprocess.run([sys.executable, "-m", "tests.cuda_cases", what, *map(str, share)],
                          cwd=CHECKOUT, env=environment, capture_output=True, text=True,
                          timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def reports():
    """(what, codec) -> its reports; two processes at a time."""
    with ThreadPoolExecutor(2) as pool:
        futures = {(what, index): future for what, shares in SHARES.items() for share in shares
                   for future in [pool.submit(run, what, share)] for index in share}
        yield lambda what, index: [report for report in futures[what, index].result()
                                   if report["codec"] == index]


@every_codec
def test_assembled_for_three_generations_without_contraction(reports, index):
    found = reports("assemble", index)
    assert len(found) == len(cuda_cases.assembled_of(cuda_cases.CODECS[index])) > 0
    for report in found:
        assert list(report["ptx"]) == ["sm_70", "sm_80", "sm_90"]
        for target, text in report["ptx"].items():
            assert f".target {target}" in text and ".visible .entry" in text
            # Unmarked sums or products might be contracted by the assembler.
            assert not re.search(r"\bfma\.|\b(add|sub|mul)\.f(32|64)|\.ftz|\.approx", text)
            assert "call" not in text and ".local" not in text, report["case"]


@every_codec
def test_threads_of_a_block_find_registers_and_shared_memory(reports, index):
    for report in reports("assemble", index):
        log = report["log"]
        assert "0 bytes spill stores, 0 bytes spill loads" in log
        assert int(re.search(r"Used (\d+) registers", log)[1]) * report["threads"] <= REGISTERS
        assert int((re.search(r"(\d+) bytes smem", log) or [0, 0])[1]) <= SHARED_NBYTES


@every_codec
def test_simulated_kernels_write_the_bytes_of_the_host(reports, index):
    found = reports("simulate", index)
    assert {report["case"] for report in found} == {
        cuda_cases.describe(case) for case in cuda_cases.kernels_of(cuda_cases.CODECS[index])}
    assert not [report for report in found if report["differs"]]


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(reports):
    # That the device has the host's is above: so this is about both.
    codec, x = Int8(stochastic=True), np.linspace(-1, 1, 999, dtype=np.float32)
    wires = []
    for seed in (1, 1, 2):
        wires.append(np.zeros(codec.wire_nbytes(999), np.uint8))
        codec.encode(x, None, wires[-1], seed=seed)
    assert (wires[0] == wires[1]).all() and (wires[0] != wires[2]).any()


def test_numba_contracts_unless_the_linker_is_told(monkeypatch):
    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        cuda_memory.store(dst, 0, parameter * parameter + 1.0)

    from collectives.kernels import cuda_memory
    assert "mul.rn.f64" in cuda_compile.ptx(kernel, (8, 0))
    monkeypatch.setattr(cuda_compile, "_EXACT", ("-lto",))
    with pytest.raises(RuntimeError, match=r"fma\.rn\.f64 in the code of .*kernel.*contracts"):
        cuda_compile.ptx(kernel, (8, 0))


def test_an_unknown_compute_capability_is_named():
    with pytest.raises(RuntimeError, match=r"compute capability 3\.0"):
        ptx(Int8(), Emit.DECODE, True, False, "", "float32", (3, 0))


def test_machine_code_is_kept_on_disk(monkeypatch):
    kernel = device_kernel(Int8(block=16), Emit.DECODE, True, False, "", "float32")
    entry, cubin = cuda_compile.machine_code(kernel.function, (8, 0), kernel.name)
    assert entry.decode() in kernel.ptx((8, 0)) and cubin.startswith(b"\x7fELF")

    def compile_again(*_):
        raise AssertionError("compiled although on disk")

    monkeypatch.setattr(cuda_compile, "_lto_ir", compile_again)
    assert cuda_compile.machine_code(kernel.function, (8, 0), kernel.name) == (entry, cubin)


def test_kernels_differ_by_layout_and_not_by_numbers_told_to_them():
    def name(codec):
        return device_kernel(codec, Emit.WIRE, False, False, "float32", "").name

    assert name(TopK(0.1)) == name(TopK(0.2)) and name(Int8(block=16)) != name(Int8())
    assert name(Int8(stochastic=True, seed=1)) == name(Int8(stochastic=True)) != name(Int8())


def test_a_kernel_that_needs_a_place_for_its_sum_is_refused_as_on_the_host():
    with pytest.raises(ValueError, match="needs feedback"):
        device_kernel(TopK(0.1), Emit.FINAL, True, False, "float32", "float32")


class Driver:
    """Stands in for a GPU of compute capability 9.0 and records what it is asked."""

    CUresult = driver.CUresult
    CUdevice_attribute = driver.CUdevice_attribute

    def __init__(self):
        self.context, self.calls = 0, []

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *given: (driver.CUresult.CUDA_SUCCESS, *self.answer(name, given))

    def answer(self, name, given):
        self.calls.append((name, given))
        if name == "cuCtxSetCurrent":
            self.context = given[0]
            return ()
        if name == "cuDeviceGetAttribute":
            return (9 if "MAJOR" in given[0].name else 0,)
        return ({"cuCtxGetCurrent": self.context, "cuDevicePrimaryCtxRetain": 5,
                 "cuDeviceGetCount": 1, "cuModuleLoadData": 6, "cuModuleGetFunction": 7}
                .get(name, 0),)

    def asked(self, name):
        return [given for called, given in self.calls if called == name]


@pytest.fixture
def gpu(monkeypatch):
    found = Driver()
    monkeypatch.setattr(cuda_launch, "driver", found)
    monkeypatch.setattr(cuda_launch, "_loaded", {})
    for cached in (cuda_launch._initialize, cuda_launch._capability):
        cached.cache_clear()
    yield found
    for cached in (cuda_launch._initialize, cuda_launch._capability):
        cached.cache_clear()


def test_a_launch_loads_once_and_passes_what_the_kernel_takes(gpu):
    kernel = device_kernel(Int8(block=16), Emit.DECODE, True, False, "", "float32")
    for stream in (None, 3):
        kernel.launch(stream, 256, None, 512, None, None, 33, 1, 2**64 - 2, 0.5)
    assert unavailable() == "" and len(gpu.asked("cuModuleLoadData")) == 1
    assert [given for given in gpu.asked("cuLaunchKernel")] == [
        (7, 3, 1, 1, 32, 1, 1, 0, stream,
         ((256, 0, 512, 0, 0, 33, 1, -2, 0.5), (c_longlong,) * 8 + (c_double,)), 0)
        for stream in (0, 3)]
    kernel.launch(None, 256, None, 512, None, None, 0, 1, 0, 0.5)  # nothing to do
    assert len(gpu.asked("cuLaunchKernel")) == 2


def test_another_context_gets_a_module_of_its_own(gpu):
    kernel = device_kernel(Int8(block=16), Emit.DECODE, True, False, "", "float32")
    for context in (11, 12, 11):
        gpu.context = context
        kernel.launch(None, 256, None, 512, None, None, 33, 1, 0, 0.0)
    assert len(gpu.asked("cuModuleLoadData")) == 2 and not gpu.asked("cuCtxSetCurrent")


def test_an_error_of_the_driver_is_named(gpu, monkeypatch):
    kernel = device_kernel(Int8(block=16), Emit.DECODE, True, False, "", "float32")
    monkeypatch.setattr(gpu, "cuLaunchKernel", lambda *given: (
        driver.CUresult.CUDA_ERROR_INVALID_VALUE,), raising=False)
    with pytest.raises(RuntimeError, match="cuLaunchKernel: CUDA_ERROR_INVALID_VALUE"):
        kernel.launch(None, 256, None, 512, None, None, 33, 1, 0, 0.0)


@pytest.mark.skipif(not unavailable(), reason="a GPU is here: bench/gpu_kernels.py checks launches")
def test_without_a_gpu_a_launch_says_so():
    kernel = device_kernel(Int8(), Emit.DECODE, True, False, "", "float32")
    with pytest.raises(RuntimeError, match="no NVIDIA"):
        kernel.launch(None, 256, None, 512, None, None, 8, 1, 0, 0.0)
    assert "no NVIDIA" in unavailable()


class Array:
    def __init__(self, address):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (1,),
                                         "typestr": "<f4", "version": 3}


def test_arrays_and_streams_of_any_framework():
    assert [address_of(x) for x in (Array(4096), 77, None)] == [4096, 77, 0]
    with pytest.raises(TypeError, match="ndarray: expected an array on the device"):
        address_of(np.zeros(3))
    cupy, torch = type("S", (), {"ptr": 7})(), type("S", (), {"cuda_stream": 8})()
    assert [handle_of(s) for s in (cupy, torch, 9, None)] == [7, 8, 9, 0]


def test_importing_the_package_imports_no_cuda():
    code = ("import sys, collectives, collectives.kernels.codecs, collectives.kernels.cuda;"
            "print([name for name in sys.modules"
            " if name.startswith(('cuda.', 'numba_cuda', 'numba.cuda'))])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_without_numba_cuda_the_error_names_the_extras(monkeypatch):
    monkeypatch.setattr("collectives.kernels.cuda.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"mpi-collectives\[cuda12\]"):
        device_kernel(Int8(block=24), Emit.DECODE, True, False, "", "float32")
    assert "mpi-collectives[cuda12]" in unavailable()


# The bench

def bench(code: str, simulate: bool):
    """Run Python beside bench/gpu_kernels.py, as `g`."""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": str(int(simulate))}
    return subprocess.run([sys.executable, "-c", f"import sys; import gpu_kernels as g\n{code}"],
                          cwd=CHECKOUT / "bench", env=environment, capture_output=True, text=True,
                          timeout=TIMEOUT_S)


@pytest.mark.skipif(not unavailable(), reason="a GPU is here, and would be measured")
def test_without_a_gpu_the_bench_says_that_it_measured_nothing(tmp_path):
    done = bench(f"sys.exit(g.main(['--json', {str(tmp_path / 'rows.json')!r}]))", simulate=False)
    assert done.returncode == 0 and done.stdout.startswith("no GPU: nothing was measured (no NVID")
    assert json.loads((tmp_path / "rows.json").read_text()) == []


def test_the_bench_checks_in_the_simulator_and_finds_a_wrong_byte(tmp_path):
    command = ["--codecs", "int8", "--verbs", "encode_residual,decode_add", "--count", "300",
               "--json", str(tmp_path / "rows.json")]
    done = bench(f"assert g.main({command}) == 0\n"
                 "g.run_on_host = lambda codec, verb, arrays: arrays.wire.fill(1)\n"
                 f"sys.exit(g.main({command}))", simulate=True)
    assert "nothing is measured" in done.stdout and done.returncode == 1, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["verb"] for row in rows] == ["encode_residual", "decode_add"]
    assert all(row["wrong"] > 0 for row in rows)


def test_rows_of_the_bench_have_rates_and_ratios():
    # The simulator's events have no times; that every other part of it works is what is tested.
    done = bench("import json\n"
                 "args = g.parse(['--codecs', 'sign', '--verbs', 'fused', '--nbytes', '2048'])\n"
                 "args.count, args.iters = 100, 1\n"
                 "print(json.dumps(g.measure(args.codecs[0], args)))", simulate=True)
    (row,) = json.loads(done.stdout)
    assert row["verb"] == "fused" and row["nbytes"] == 2048 and row["wrong"] == 0
    assert {"codec", "time_us", "gbps", "memcpy_ratio", "wire_nbytes"} <= set(row)
