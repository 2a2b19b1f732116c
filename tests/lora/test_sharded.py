"""PEFT under FSDP2, two ranks of torchrun, one job: what arrives in the engine's shards is PEFT's merge of the whole model.

A product of a slice of B's rows may be rounded otherwise than the same rows of the whole product: the bound is that of the dtype."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent
BOUND = {"float32": 1e-6, "bfloat16": 2**-8}  # of a tensor's largest value


class Sharded(unittest.TestCase):
    def test_versions(self):
        for dtype, bound in BOUND.items():
            with self.subTest(dtype):
                command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "fsdp_rank.py", dtype]
                done = subprocess.run(command, cwd=HERE, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300)
                self.assertEqual(done.returncode, 0, done.stderr[-3000:])
                ranks = [json.loads(x + "}") for x in done.stdout.replace("\n", "").split("}") if x]
                self.assertEqual(sorted(x["rank"] for x in ranks), [0, 1])
                for x in ranks:
                    print(dtype, x, flush=True)
                    self.assertEqual(x["written"], [])
                    self.assertGreater(x["sharded"], 40)
                    self.assertGreater(x["compared"], 70_000)
                    self.assertGreater(x["equal"], 0.95 * x["compared"])
                    self.assertLessEqual(x["worst"], bound)


if __name__ == "__main__":
    unittest.main()
