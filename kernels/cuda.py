"""Device kernels: the only way to them.  Mirrors `fused.fused_kernel`.

    kernel = device_kernel(codec, Emit.WIRE, True, True, "float32", "")
    kernel.launch(stream, None, a, incoming, residual, wire, n, 1, seed, codec.parameter)

What a kernel computes is in `codec.Emit`.  Results are those of the host's kernels, bit for bit;
only the payload of a NaN may differ where it is the result of an addition.  One launch each:

    dense codecs           a thread block per block of the wire (`cuda_dense`, `cuda_blocks`)
    sparse, to decode      a thread block per piece of the elements (`cuda_spread`)
    sparse, to encode      one thread block (`cuda_sparse`): for chunks, of some 100,000 elements

Memory must be aligned to its elements: wires of int8, int4, ternary and sign may start anywhere,
those of float16 and bfloat16 at multiples of 2 bytes, those of topk and threshold of 4.

Numba's CUDA target and the bindings of the driver are imported by the first call, not by importing
this module.  They come with the extras `cuda12` and `cuda13`.
"""

from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from collectives.kernels.codec import Codec, Emit

_DRIVERS = {"collectives.kernels.dense": "collectives.kernels.cuda_dense",
            "collectives.kernels.sparse": "collectives.kernels.cuda_sparse"}
_MISSING = ("CUDA kernels need numba-cuda and the CUDA libraries: "
            "pip install 'mpi-collectives[cuda12]' or 'mpi-collectives[cuda13]'")


@dataclass(frozen=True)
class DeviceKernel:
    """A kernel that can be launched, compiled for the current device when it first is.

    function : what Numba compiles
    elements : per thread block; 0 if there is one thread block
    threads : per thread block
    """

    name: str
    function: object
    elements: int
    threads: int

    def launch(self, stream, dst, a, incoming, residual, wire, n: int, divisor: int, seed: int,
               parameter: float) -> None:
        """Queue the kernel on `stream`; nothing if n is 0.

        stream : the driver's handle, an object of CuPy, PyTorch or Numba, or None for the default
        dst .. wire : arrays on the device, addresses, or None where the kernel has none
        n : elements;  divisor : number of ranks for a mean, else 1;  seed : 64 bits
        parameter : of the codec

        Raises
        ------
        RuntimeError
            If there is no driver or no GPU, or the launch fails.
        """
        if n == 0:
            return
        blocks = -(-n // self.elements) if self.elements else 1
        arguments = (*map(address_of, (dst, a, incoming, residual, wire)), int(n), int(divisor),
                     (int(seed) + 2**63) % 2**64 - 2**63, float(parameter))
        if simulated():
            _in_simulator(self.function)[blocks, self.threads](*arguments)
            return
        launcher = import_module("collectives.kernels.cuda_launch")
        loaded = launcher.function(self.name, lambda: _compiler().machine_code(
            self.function, launcher.compute_capability(), self.name))
        launcher.launch(loaded, blocks, self.threads, handle_of(stream), arguments)

    def ptx(self, cc: tuple[int, int]) -> str:
        """Assembly for a compute capability, such as (9, 0); needs no GPU."""
        return _compiler().ptx(self.function, cc)

    def resources(self, cc: tuple[int, int]) -> str:
        """The assembler's log: registers, spills, shared memory; needs no GPU."""
        return _compiler().resources(self.function, cc)


@cache
def device_kernel(codec: Codec | None, emit: Emit, adds: bool, feedback: bool, a: str, dst: str,
                  **sizes) -> DeviceKernel:
    """The kernel for a codec; arguments as for `fused.fused_kernel`.

    sizes : threads per block and the like, for tests; see the `make` of the drivers

    Raises
    ------
    ImportError
        If numba-cuda is not installed.
    ValueError
        For a kernel that the host does not have either.
    """
    emit = Emit(emit)
    feedback = feedback and emit not in (Emit.PARTIAL, Emit.DECODE)
    adds = adds or emit is Emit.DECODE
    codec = codec and codec.layout
    _memory()
    driver = import_module(_DRIVERS[codec.driver if codec else "collectives.kernels.dense"])
    function, elements, threads = driver.make(codec, emit, adds, feedback, a, dst, **sizes)
    name = "-".join(["cuda", _layout_key(codec), emit.name, *["adds"] * adds,
                     *["feedback"] * feedback, f"{a}>{dst}",
                     *(f"{key}={value}" for key, value in sizes.items())])
    return DeviceKernel(name, function, elements, threads)


def ptx(codec: Codec | None, emit: Emit, adds: bool, feedback: bool, a: str, dst: str,
        cc: tuple[int, int]) -> str:
    """Assembly of `device_kernel(...)` for a compute capability; needs no GPU."""
    return device_kernel(codec, emit, adds, feedback, a, dst).ptx(cc)


def unavailable() -> str:
    """Why kernels cannot run on this machine; "" if they can."""
    try:
        if not simulated():
            import_module("collectives.kernels.cuda_launch").compute_capability()
    except (ImportError, RuntimeError) as error:
        return str(error)
    return ""


def simulated() -> bool:
    """True if kernels run in Numba's simulator, on the host's memory."""
    return _memory().SIMULATED


def address_of(array) -> int:
    """Address of the first byte of an array on the device (in the simulator: on the host)."""
    if array is None:
        return 0
    if isinstance(array, int):
        return array
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None and simulated():
        interface = array.__array_interface__
    if interface is None:
        raise TypeError(f"{type(array).__name__}: expected an array on the device or its address")
    return interface["data"][0]


def handle_of(stream) -> int:
    """The driver's handle of a stream."""
    if stream is None:
        return 0
    for attribute in ("ptr", "cuda_stream", "handle"):  # CuPy, PyTorch, Numba and cuda.core
        stream = getattr(stream, attribute, stream)
    return int(getattr(stream, "value", stream) or 0)


def _layout_key(codec: Codec | None) -> str:
    """The codec's name and the fields that its machine code depends on: not numbers told to it."""
    if codec is None:
        return "none"
    values = {field.name: getattr(codec, field.name) for field in fields(codec)}
    return "-".join([codec.name, *(
        name if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items() if value is not None)])


def _memory():
    """The module that imports Numba's CUDA target first; Numba's own old one does not do."""
    if find_spec("numba_cuda") is None:
        raise ImportError(_MISSING)
    try:
        return import_module("collectives.kernels.cuda_memory")
    except ImportError as error:
        raise ImportError(f"{_MISSING} ({error})") from error


def _compiler():
    try:
        return import_module("collectives.kernels.cuda_compile")
    except ImportError as error:
        raise ImportError(f"{_MISSING} ({error})") from error


@cache
def _in_simulator(function):
    from numba import cuda
    return cuda.jit(function)
