"""Which launcher started us, from the environment alone.  No MPI."""

import pytest

from collectives.launcher import Launcher, check_before_init, check_world, detect, library_name

HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "2", "PMI_FD": "9", "MPI_LOCALRANKID": "0",
         "MPI_LOCALNRANKS": "2"}
PRRTE = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2",
         "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
         "PRTE_LAUNCHED": "1"}
BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4",
                "SLURM_LOCALID": "0", "SLURM_NPROCS": "4"}
SRUN = {**BATCH_SCRIPT, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}
INTERACTIVE_STEP = {**BATCH_SCRIPT, "SLURM_STEP_NUM_TASKS": "1"}
HYDRA_DAEMON = {**SRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}

CASES = [
    ({}, None),
    (HYDRA, Launcher("MPICH's mpirun (Hydra)", 4, 2, 0, 2, "PMI_SIZE")),
    ({**HYDRA, "I_MPI_HYDRA_TOPOLIB": "hwloc"},
     Launcher("Intel MPI's mpirun (Hydra)", 4, 2, 0, 2, "PMI_SIZE")),
    (PRRTE, Launcher("Open MPI's mpirun (PRRTE)", 4, 2, 0, 2, "OMPI_COMM_WORLD_SIZE")),
    ({k: v for k, v in PRRTE.items() if k != "PRTE_LAUNCHED"},
     Launcher("Open MPI's mpirun", 4, 2, 0, 2, "OMPI_COMM_WORLD_SIZE")),
    ({"MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_LOCAL_RANK": "1",
      "MV2_COMM_WORLD_LOCAL_SIZE": "2"},
     Launcher("MVAPICH's mpirun_rsh", 4, 3, 1, 2, "MV2_COMM_WORLD_SIZE")),
    (SRUN, Launcher("Slurm's srun", 4, 2, 0, None, "SLURM_STEP_NUM_TASKS")),
    ({**SRUN, "PMI_SIZE": "4", "PMI_RANK": "2"},
     Launcher("Slurm's srun", 4, 2, 0, None, "SLURM_STEP_NUM_TASKS")),
    ({**SRUN, "SLURM_PTY_PORT": "40001"}, None),
    (BATCH_SCRIPT, None),
    (INTERACTIVE_STEP, Launcher("Slurm's srun", 1, 0, 0, None, "SLURM_STEP_NUM_TASKS")),
    ({**HYDRA_DAEMON, **HYDRA}, Launcher("MPICH's mpirun (Hydra)", 4, 2, 0, 2, "PMI_SIZE")),
    ({"PMI_SIZE": "4", "PMI_RANK": "2"}, Launcher("a PMI launcher", 4, 2, None, None, "PMI_SIZE")),
    ({"PMIX_RANK": "3"}, Launcher("a PMIx launcher", None, 3, None, None, "PMIX_RANK")),
    ({"PMI_SIZE": "many", "PMI_RANK": "0"}, None),
]


@pytest.mark.parametrize("environ, want", CASES)
def test_the_launcher_is_known_by_its_variables(environ, want):
    assert detect(environ) == want


@pytest.mark.parametrize("environ", [HYDRA, PRRTE, SRUN, {"PMIX_RANK": "3"}])
def test_many_processes_in_a_world_of_one_are_refused_with_both_names(environ):
    launcher = detect(environ)
    with pytest.raises(RuntimeError) as caught:
        check_world(launcher, 1, "Some MPI 1.2")
    for part in (launcher.name, "Some MPI 1.2", launcher.variable):
        assert part in str(caught.value)


@pytest.mark.parametrize("environ, world_size", [
    ({}, 1), (HYDRA, 4), (HYDRA, 2), (BATCH_SCRIPT, 1), (INTERACTIVE_STEP, 1),
    ({**HYDRA, "PMI_SIZE": "1", "PMI_RANK": "0"}, 1), ({"PMIX_RANK": "0"}, 1),
])
def test_a_world_that_may_be_right_is_accepted(environ, world_size):
    check_world(detect(environ), world_size, "Some MPI 1.2")


def test_srun_is_told_about_its_interfaces():
    with pytest.raises(RuntimeError, match="--mpi=pmix"):
        check_world(detect(SRUN), 1, "Open MPI v5.0.11")


@pytest.mark.parametrize("text, name", [
    ("MPICH Version:      5.0.2\nMPICH Release date: some day", "MPICH 5.0.2"),
    ("Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: 5", "Open MPI v5.0.11"),
    ("Intel(R) MPI Library 2021.10 for Linux* OS\n\0",
     "Intel(R) MPI Library 2021.10 for Linux* OS"),
])
def test_library_name_is_name_and_version(text, name):
    assert library_name(text) == name


def test_mpich_that_cannot_start_under_open_mpi_is_refused_before_it_tries():
    text = "MPICH Version:      5.0.2\nMPICH configure: --with-pm=hydra"
    with pytest.raises(RuntimeError, match="MPICH 5"):
        check_before_init(detect(PRRTE), text)


@pytest.mark.parametrize("environ, text", [
    (HYDRA, "MPICH Version: 5.0.2"), ({}, "MPICH Version: 5.0.2"), (PRRTE, "Open MPI v5.0.11, x"),
    (PRRTE, "MPICH Version: 5.0.2\nMPICH configure: --with-pmix=/usr"),
])
def test_what_may_start_may_try(environ, text):
    check_before_init(detect(environ), text)
