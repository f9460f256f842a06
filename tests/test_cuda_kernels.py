"""Device kernels: the host's bytes in the simulator, and assembly for three generations of GPUs.

The simulator is chosen when Numba is imported, so it runs in processes of its own.  No GPU is
needed.
"""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

if find_spec("numba_cuda") is None or find_spec("cuda") is None:
    pytest.skip("needs numba-cuda: pip install 'mpi-collectives[cuda12]'",
                allow_module_level=True)

from collectives.kernels import cuda_compile
from collectives.kernels.codec import Emit
from collectives.kernels.codecs import Int8, TopK
from collectives.kernels.cuda import device_kernel, ptx, unavailable
from tests import cuda_cases

CHECKOUT = Path(__file__).parent.parent
TIMEOUT_S = 600
REGISTERS, SHARED_NBYTES = 65536, 48 * 1024  # that every GPU since compute capability 7.0 has

every_codec = pytest.mark.parametrize("index, codec", [*enumerate(cuda_cases.CODECS)],
                                      ids=[repr(codec) for codec in cuda_cases.CODECS])


def simulated(index: int) -> list[dict]:
    """The reports of `tests.cuda_cases`, from a process of its own."""
    done = subprocess.run([sys.executable, "-m", "tests.cuda_cases", str(index)], cwd=CHECKOUT,
                          env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True,
                          text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@every_codec
def test_simulated_kernels_write_the_bytes_of_the_host(index, codec):
    found = simulated(index)
    assert {report["case"] for report in found} == {
        cuda_cases.describe(case) for case in cuda_cases.kernels_of(codec)}
    assert not [report for report in found if report["differs"]]


@every_codec
def test_assembled_for_three_generations_without_contraction(index, codec):
    for case in cuda_cases.assembled_of(codec):
        kernel = device_kernel(codec, *case)
        for cc in cuda_cases.CAPABILITIES:
            check_assembly(kernel.ptx(cc), "sm_{}{}".format(*cc))
        check_resources(kernel.resources(cuda_cases.CAPABILITIES[0]), kernel.threads)


def check_assembly(text: str, target: str) -> None:
    assert f".target {target}" in text and ".visible .entry" in text
    # Sums and products without a mark, such as .rn, might be contracted by the assembler.
    assert not re.search(r"\bfma\.|\b(add|sub|mul)\.f(32|64)|\.ftz|\.approx", text)
    assert "call" not in text and ".local" not in text


def check_resources(log: str, threads: int) -> None:
    assert "0 bytes spill stores, 0 bytes spill loads" in log
    assert int(re.search(r"Used (\d+) registers", log)[1]) * threads <= REGISTERS
    assert int((re.search(r"(\d+) bytes smem", log) or [0, 0])[1]) <= SHARED_NBYTES


@pytest.mark.parametrize("line", [
    "fma.rn.f32 %f1, %f2, %f3, %f4;", "mul.f32 %f1, %f2, %f3;", "add.f64 %d1, %d2, %d3;",
    "div.approx.f32 %f1, %f2, %f3;", "call.uni (r), f, (a);", "st.local.u32 [%rd1], %r1;"])
def test_the_check_of_assembly_rejects(line):
    text = ".target sm_80\n.visible .entry kernel() {\n" + line
    with pytest.raises(AssertionError):
        check_assembly(text, "sm_80")
    check_assembly(text.replace(line, "mul.rn.f32 %f1, %f2, %f3;"), "sm_80")


@pytest.mark.parametrize("log", [
    "8 bytes spill stores, 0 bytes spill loads\nUsed 32 registers, 0 bytes smem",
    "0 bytes spill stores, 0 bytes spill loads\nUsed 200 registers, 0 bytes smem",
    "0 bytes spill stores, 0 bytes spill loads\nUsed 32 registers, 50000 bytes smem"])
def test_the_check_of_resources_rejects(log):
    with pytest.raises(AssertionError):
        check_resources(log, 512)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others():
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
