"""Ranks from launchers' variables, as their manuals and runs give them; what contradicts itself is refused by name."""

import unittest

import refit
from refit import launch
from refit.launch import Place, place

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "6", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "3735879681"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "3"}


class Launchers(unittest.TestCase):
    def test_each_alone(self):
        for env, want in (
            (TORCHRUN, Place(5, 8, 1, 4, "none-29400-2", "torchrun")),
            (SLURM, Place(3, 6, 1, 2, "71-0", "slurm")),
            (OPENMPI, Place(1, 2, 1, 2, "3735879681", "openmpi")),
            (HYDRA, Place(2, 3, 2, 3, "", "pmi")),
            ({"RANK": "1", "WORLD_SIZE": "2"}, Place(1, 2, None, None, "", "env")),
            ({"RANK": "0", "WORLD_SIZE": "2", "RAY_JOB_ID": "01000000"}, Place(0, 2, None, None, "ray-01000000", "env")),
            ({}, Place(0, 1, 0, 1, "", "alone")),
            # A batch script outside of srun is the only process of its job.
            ({"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "71"}, Place(0, 1, 0, 1, "", "alone")),
        ):
            self.assertEqual(place(env), want)

    def test_one_inside_of_another(self):
        one_task_a_node = SLURM | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
        self.assertEqual(place(one_task_a_node | TORCHRUN).rank, 5)
        self.assertEqual(place(OPENMPI | TORCHRUN).launcher, "torchrun")
        self.assertEqual(place(one_task_a_node | OPENMPI).launcher, "openmpi")  # mpirun's helpers are Slurm tasks
        self.assertEqual(place(one_task_a_node | HYDRA).rank, 2)
        # A raylet that srun started leaves its variables in every process of Ray.
        in_ray = one_task_a_node | OPENMPI | {"RAY_JOB_ID": "01000000"}
        self.assertEqual(place(in_ray).launcher, "alone")
        self.assertEqual(place(in_ray | {"RANK": "3", "WORLD_SIZE": "4"}).rank, 3)
        # A driver under torchrun hands its variables on to its actors.
        of_driver = in_ray | {"TORCHELASTIC_RUN_ID": "a", "RANK": "0", "WORLD_SIZE": "1"}
        with self.assertRaisesRegex(refit.InvalidError, "REFIT_LAUNCHER"):
            place(of_driver)
        self.assertEqual(place(of_driver, launcher="torchrun").launcher, "torchrun")

    def test_srun_with_pmi2_tells_its_job_by_slurm(self):
        step = {"PMI_RANK": "0", "PMI_SIZE": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}
        self.assertEqual(place(step).job, "7-1")

    def test_by_hand_and_agreeing(self):
        self.assertEqual(place(SLURM | {"RANK": "3", "WORLD_SIZE": "6"}).launcher, "slurm")

    def test_contradictions_name_both_variables(self):
        for env, first, second in (
            (SLURM | {"RANK": "2", "WORLD_SIZE": "6"}, "SLURM_PROCID is 3", "RANK is 2"),
            (SLURM | {"RANK": "3", "WORLD_SIZE": "12"}, "SLURM_STEP_NUM_TASKS is 6", "WORLD_SIZE is 12"),
            (OPENMPI | {"RANK": "0", "WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK is 1", "RANK is 0"),
            (OPENMPI | HYDRA, "OMPI_COMM_WORLD_RANK is 1", "PMI_RANK is 2"),
            (HYDRA | {"RANK": "2", "WORLD_SIZE": "4"}, "PMI_SIZE is 3", "WORLD_SIZE is 4"),
            ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2", "WORLD_SIZE is 2"),
        ):
            with self.assertRaisesRegex(refit.MismatchError, f"{first}.* {second}"):
                place(env)
        both = SLURM | {"RANK": "2", "WORLD_SIZE": "6"}
        self.assertEqual(place(both, launcher="env").rank, 2)
        self.assertEqual(place(both | {"REFIT_LAUNCHER": "slurm"}).rank, 3)

    def test_halves_and_nonsense_are_named(self):
        for env, what in (
            ({"RANK": "1"}, "WORLD_SIZE is not set"),
            ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set and RANK is not"),
            ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}, "RANK is not set"),
            ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE is not set"),
            ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}, "SLURM_PROCID is not set"),
            ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1'"),
            ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
            ({"RANK": "1e3", "WORLD_SIZE": "2"}, "RANK is '1e3'"),
            (TORCHRUN | {"LOCAL_RANK": "4"}, "local_rank 4"),
            (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "local_world 9"),
            ({"REFIT_LAUNCHER": "pigeon"}, "REFIT_LAUNCHER"),
            ({"REFIT_LAUNCHER": "pmi", "RANK": "0", "WORLD_SIZE": "2"}, "PMI_RANK is not set"),
        ):
            with self.assertRaisesRegex(refit.InvalidError, what, msg=str(env)):
                place(env)

    def test_tasks_of_a_node(self):
        for text, node, want in (("2(x3),1", 3, 1), ("2(x3),1", 2, 2), ("4", 0, 4), ("4", 1, None), ("x", 0, None), ("1(x999999)", 999998, 1), ("1(x1000000)", 0, None), ("", 0, None)):
            env = {"SLURM_STEP_TASKS_PER_NODE": text, "SLURM_NODEID": str(node)}
            self.assertEqual(launch._slurm_local_world(env), want, text)


if __name__ == "__main__":
    unittest.main()
