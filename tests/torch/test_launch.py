"""Real torchrun: every rank calls, rank 0 holds the coordinator, ranks meet in torch's stores."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent


class Torchrun(unittest.TestCase):
    def run_under(self, *arguments, environment=None):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *arguments]
        return subprocess.run(command, cwd=HERE, env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}), capture_output=True, text=True, timeout=240)

    def ranks(self, when, environment=None):
        done = self.run_under("spmd_rank.py", when, environment=environment)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        # Two ranks write to one pipe: their lines may come without a break between them.
        return sorted((json.loads(x + "}") for x in done.stdout.replace("\n", "").split("}") if x), key=lambda x: x["rank"])

    def test_every_rank_calls(self):
        for when in ("early", "late"):
            found = self.ranks(when)
            self.assertEqual([(x["rank"], x["launcher"], x["local"], x["stale"]) for x in found], [(0, "torchrun", 2, False), (1, "torchrun", 2, False)])
            self.assertEqual(found[0]["job"], found[1]["job"])
            for x in found:
                self.assertGreater(x["compared"], 50_000)
                self.assertRegex(x["error"], r"MismatchError.*sync_weights\(8\), rank 1 calls sync_weights\(9\)")

    def test_inside_of_a_slurm_task(self):
        """One task a node, torchrun in it: Slurm's numbers are the agent's."""
        slurm = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_ID": "9"}
        self.assertEqual([x["launcher"] for x in self.ranks("late", slurm)], ["torchrun", "torchrun"])


if __name__ == "__main__":
    unittest.main()
