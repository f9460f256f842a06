"""The exceptions that are ours; bad arguments are ValueError and TypeError."""


class MPIError(RuntimeError):
    """An MPI call made by the executor failed; the message names verb, rank, step and code."""


class MismatchError(RuntimeError):
    """Ranks made different calls (found with COLLECTIVES_CHECK=1), raised on every rank."""


class StallError(TimeoutError):
    """A wait took longer than its limit; the message names the call and who has not arrived."""
