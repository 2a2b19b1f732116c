"""The type stub of the native module says what the module has."""

import ast
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


class Examples(unittest.TestCase):
    def test_they_parse(self):
        """Those that need a GPU or a framework that does not install here are checked no further."""
        examples = sorted((pathlib.Path(__file__).parents[3] / "examples").glob("*.py"))
        self.assertGreater(len(examples), 3)
        for path in examples:
            ast.parse(path.read_text(), str(path))


if __name__ == "__main__":
    unittest.main()
