"""The type stub of the native module says what the module has."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import refit


class Stubs(unittest.TestCase):
    def test_up_to_date(self):
        kept = pathlib.Path(refit.__file__).parent / "_native.pyi"
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder) / "_native.pyi"
            subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "refit._native", "-o", made], check=True)
            self.assertEqual(kept.read_text(), made.read_text(), f"remake it: python -m nanobind.stubgen -m refit._native -o python/refit/_native.pyi")


if __name__ == "__main__":
    unittest.main()
