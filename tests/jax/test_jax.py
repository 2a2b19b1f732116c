"""JAX arrays: lent as they lie, never written."""

import unittest

import jax
import jax.numpy as jnp
import numpy as np
import refit
from refit import _arrays

FAST = {"stall_timeout_s": 10, "total_timeout_s": 30, "join_timeout_s": 30}


def place(lent):
    return lent.address, lent.bytes


class Arrays(unittest.TestCase):
    def test_lent_without_a_copy(self):
        for dtype in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float32, jnp.float16, jnp.int32, jnp.bool_):
            array = jnp.arange(6).reshape(2, 3).astype(dtype)
            self.assertEqual(place(_arrays.lend(array, writable=False)), (array.unsafe_buffer_pointer(), array.nbytes))

    def test_never_written(self):
        array = jnp.zeros(4, jnp.float32)
        with self.assertRaisesRegex(refit.InvalidError, "immutable"):
            _arrays.lend(array, writable=True)
        layout = refit.Layout.from_arrays({"w": array})
        with refit.Coordinator(1, **FAST) as c, self.assertRaisesRegex(refit.InvalidError, r"memory\['w'\]"):
            refit.Receiver(c.address, layout, memory={"w": array})
        self.assertTrue((array == 0).all())

    def test_a_job_from_jax_to_numpy(self):
        for transport in ("shm", "tcp"):
            weights = {"a": jnp.arange(24, dtype=jnp.float32).reshape(4, 6), "b": jax.random.normal(jax.random.key(1), (3, 5)).astype(jnp.bfloat16)}
            with refit.Coordinator(1, transport=transport, **FAST) as c, refit.Publisher.from_arrays(c.address, weights) as p:
                with refit.Receiver(c.address, p.layout) as r:
                    r.start()
                    p.publish(1)
                    c.init_communicator()
                    c.sync_weights()
                    for name, array in weights.items():
                        held = r.tensor(name).numpy()
                        np.testing.assert_array_equal(held, _arrays.bits(np.asarray(array)))
                        # and on to JAX, as a copy: what it owns must not change under it
                        again = jnp.array(held.view(np.asarray(array).dtype))
                        self.assertTrue((again == array).all())
                    # tcp sends from JAX' own memory; shm cannot read it and says that it copied.
                    self.assertEqual(p.report().snapshot_bytes > 0, transport == "shm")


if __name__ == "__main__":
    unittest.main()
