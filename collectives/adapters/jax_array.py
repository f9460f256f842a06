"""JAX arrays: immutable, so they are read by value and every result is a new array.

The result lives on JAX's default device.  Its buffer is handed over, not copied, where JAX can
(see `FreshLeaf`).
"""

import jax
import jax.numpy as jnp
import numpy as np

from collectives.adapters.leaf import FreshLeaf, Leaf, unsupported
from collectives.dtypes import carried, name_of


class JaxLeaf(Leaf):
    """See the module docstring."""

    __slots__ = ()
    framework = "jax"
    immutable = True

    @property
    def writable(self) -> bool:
        return False

    def empty(self, shape=None) -> Leaf:
        like = np.dtype(self.owner.dtype)
        shape = self.shape if shape is None else shape
        return FreshLeaf("jax", self.dtype, shape, lambda array: jnp.asarray(array.view(like)))


def adapt(x) -> Leaf:
    """The leaf of a concrete, fully addressable jax.Array."""
    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            f"cannot reduce the traced JAX value {x}: expected a concrete array; call this outside "
            "jit, grad and vmap, or through jax.pure_callback")
    if not isinstance(x, jax.Array):
        raise unsupported(x)
    dtype = name_of(x.dtype)
    if not x.is_fully_addressable:
        raise TypeError("cannot reduce a JAX array that spans processes: expected a local array")
    return JaxLeaf(x, dtype, carried(np.asarray(x), dtype))
