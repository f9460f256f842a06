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
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

if find_spec("numba_cuda") is None or find_spec("cuda") is None:
    pytest.skip("needs numba-cuda: pip install 'mpi-collectives[test]' or [cuda12]",
                allow_module_level=True)

from collectives.kernels import cuda_compile
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
    assert len(found) == len(cuda_cases.kernels_of(cuda_cases.CODECS[index]))
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
            "print([m for m in sys.modules if m.split('.')[0] in ('cuda', 'numba_cuda')"
            " or m.startswith('numba.cuda')])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_without_numba_cuda_the_error_names_the_extras(monkeypatch):
    monkeypatch.setattr("collectives.kernels.cuda.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"mpi-collectives\[cuda12\]"):
        device_kernel(Int8(block=24), Emit.DECODE, True, False, "", "float32")
    assert "mpi-collectives[cuda12]" in unavailable()
