"""Lending arrays and viewing Refit's memory, without any framework but NumPy."""

import unittest

import ml_dtypes
import numpy as np
import refit
from refit import _arrays, _native


def place(lent):
    return lent.address, lent.bytes


class FakeJax:
    """A JAX array to the eye: its buffer could be written, and must not be."""

    __module__ = "jaxlib._jax"

    def __init__(self, array):
        self.array = array
        self.dtype, self.shape = array.dtype, array.shape

    def __dlpack__(self, **how):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Lending(unittest.TestCase):
    def test_takes_what_has_memory(self):
        for array in (np.zeros((3, 4), np.float32), np.zeros((0, 4)), np.zeros(()), np.zeros(5, bool), memoryview(bytearray(8)), bytearray(8)):
            address, count = place(_arrays.lend(array, writable=True))
            self.assertEqual(count, memoryview(array).nbytes)
            if isinstance(array, np.ndarray) and array.size:
                self.assertEqual(address, array.ctypes.data)

    def test_bf16_and_fp8_of_ml_dtypes(self):
        for dtype, name in ((ml_dtypes.bfloat16, "bf16"), (ml_dtypes.float8_e4m3fn, "f8_e4m3"), (ml_dtypes.float8_e5m2, "f8_e5m2")):
            array = np.zeros((2, 3), dtype)
            self.assertEqual(place(_arrays.lend(array, writable=True)), (array.ctypes.data, array.nbytes))
            self.assertEqual(_arrays.dtype_name(array), name)

    def test_read_only_memory_is_only_read(self):
        array = np.zeros(4, np.float32)
        array.flags.writeable = False
        self.assertEqual(_arrays.lend(array, writable=False).bytes, 16)
        self.assertEqual(_arrays.lend(b"abc", writable=False).bytes, 3)
        for frozen in (array, b"abc", memoryview(b"abc")):
            with self.assertRaises(refit.InvalidError):
                _arrays.lend(frozen, writable=True)

    def test_never_writes_into_jax(self):
        array = FakeJax(np.zeros(4, np.float32))
        self.assertEqual(_arrays.lend(array, writable=False).bytes, 16)
        with self.assertRaisesRegex(refit.InvalidError, "immutable"):
            _arrays.lend(array, writable=True)
        with self.assertRaisesRegex(refit.InvalidError, r"memory\['w'\].*immutable"):
            _arrays.lend_all({"w": array}, writable=True)

    def test_refusals(self):
        for bad in (np.zeros((4, 4))[:, :2], np.zeros((4, 4)).T, [1, 2], object()):
            with self.assertRaises(refit.InvalidError):
                _arrays.lend(bad, writable=True)
        with self.assertRaises(refit.UnsupportedError):
            _arrays.dtype_name(np.zeros(2, np.complex64))


class Views(unittest.TestCase):
    def tensor(self, array, dtype, box=None, offset=0, strides=None):
        shape = list(array.shape)
        layout = refit.Layout.from_json(
            {
                "tensors": {"t": {"shape": shape, "dtype": dtype}},
                "ranks": [
                    {
                        "rank": 0,
                        "buffers": {"b": {"bytes": array.nbytes}},
                        "holdings": [{"tensor": "t", "box": box or [[0, n] for n in shape], "buffer": "b", "offset": offset, "strides": strides or list(array.strides)}],
                    }
                ],
            }
        )
        memory = memoryview(array.view(np.uint8).reshape(-1))
        return _arrays.tensors(layout._native.rank(0), [("b", memory)])[0]

    def test_aliases_its_memory(self):
        array = np.arange(12, dtype=np.int32).reshape(3, 4)
        t = self.tensor(array, "i32")
        np.testing.assert_array_equal(t.numpy(), array)
        np.testing.assert_array_equal(np.from_dlpack(t), array)
        np.from_dlpack(t)[1, 2] = 77
        self.assertEqual(array[1, 2], 77)
        t.assign(np.full((3, 4), 5, np.int32))
        self.assertTrue((array == 5).all())

    def test_strides_of_any_sign(self):
        array = np.arange(12, dtype=np.float64).reshape(3, 4)
        t = self.tensor(array, "f64", offset=2 * 32, strides=[-32, 8])
        np.testing.assert_array_equal(t.numpy(), array[::-1])
        np.testing.assert_array_equal(np.from_dlpack(t), array[::-1])

    def test_bits_of_bf16(self):
        array = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(2, 3)
        t = self.tensor(array, "bf16")
        self.assertEqual(t.numpy().dtype, np.uint16)
        np.testing.assert_array_equal(t.numpy().view(ml_dtypes.bfloat16), array)
        t.assign(np.full((2, 3), 1.5, ml_dtypes.bfloat16))
        self.assertTrue((array == 1.5).all())
        t.assign(np.full((2, 3), 0x4000, np.uint16))
        self.assertTrue((array == 2).all())

    def test_what_does_not_fit_is_named(self):
        t = self.tensor(np.zeros((3, 4), np.float32), "f32")
        for bad in (np.zeros((4, 3), np.float32), np.zeros((3, 4), np.float16), np.zeros((3, 4), np.uint32)):
            with self.assertRaises(refit.InvalidError) as e:
                t.assign(bad)
            self.assertEqual(e.exception.tensor, "t")

    def test_no_view_reaches_outside(self):
        memory = memoryview(bytearray(16))
        for offset, shape, strides in ((0, [5], [4]), (8, [4], [4]), (0, [2], [-4]), (0, [4], [3])):
            with self.assertRaises(refit.InvalidError):
                _native.view(memory, offset, shape, strides, "f32")
        self.assertEqual(np.from_dlpack(_native.view(memory, 0, [0, 3], [12, 4], "f32")).shape, (0, 3))


if __name__ == "__main__":
    unittest.main()
