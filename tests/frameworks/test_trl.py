"""examples/trl_grpo.py: the real TRL and a real vLLM engine on a CPU; after each step both have the same weights."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lora"), str(ROOT / "tests/vllm")]


class Grpo(unittest.TestCase):
    def setUp(self):
        import models
        import support

        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        models.base().save_pretrained(self.folder / "model")
        support._words(self.folder / "model", models.SMALL["vocab_size"])
        self.site = support.installed(pathlib.Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).parent)  # the build folder

    def run_example(self, *options):
        out = self.folder / "out.json"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(self.site), os.environ["PYTHONPATH"]])}
        done = subprocess.run([sys.executable, ROOT / "examples/trl_grpo.py", self.folder / "model", "--steps", "3", "--out", out, *options], env=environment, cwd=self.folder, capture_output=True, text=True, timeout=420)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        return json.loads(out.read_text())

    def test_every_weight_and_an_adapter(self):
        for options in ((), ("--lora",)):
            with self.subTest(options):
                told = self.run_example(*options)
                self.assertEqual(told["engine"], told["trainer"])
                self.assertEqual(told["versions"], sorted(set(told["versions"])))
                self.assertGreaterEqual(len(told["versions"]), 3)
                self.assertEqual(len(told["rewards"]), 3)


if __name__ == "__main__":
    unittest.main()
