"""Numba kernels: reductions now, codecs later.  They know no ranks and no MPI."""
