"""Which rank this process is, as its launcher tells it: torchrun, Slurm, MPI, Ray, or RANK and WORLD_SIZE set by hand.

``python -m refit.launch`` prints what it finds.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from typing import Mapping

from ._errors import InvalidError, MismatchError

LAUNCHERS = ("torchrun", "openmpi", "pmi", "slurm", "env")


@dataclass(frozen=True)
class Place:
    """rank of world; local_rank of local_world on this host (None where the launcher does not say). job: what tells this
    run from others of the same user, a restart included ("" where nothing does). launcher: one of LAUNCHERS, ``given``, or
    ``alone`` (no launcher: rank 0 of 1)."""

    rank: int
    world: int
    local_rank: int | None = None
    local_world: int | None = None
    job: str = ""
    launcher: str = "given"

    def __post_init__(self) -> None:
        for what, at, of in (("rank", self.rank, self.world), ("local_rank", self.local_rank, self.local_world)):
            if at is not None and (at < 0 or (of is not None and at >= of)):
                raise InvalidError(f"{what} {at} is not in [0, {of}) ({self.launcher})")
        if self.local_world is not None and self.local_world > self.world:
            raise InvalidError(f"local_world {self.local_world} is more than world {self.world} ({self.launcher})")


@dataclass(frozen=True)
class _Names:
    """Variables of a launcher: what makes it known, then its four numbers, then what names the job."""

    sign: str
    rank: str
    world: str
    local_rank: str
    local_world: str
    job: tuple[str, ...]


# Inner first. A batch script outside of srun is no Slurm task, though it has a SLURM_PROCID: a step's number makes one. A
# torchrun agent may be a Slurm or MPI task, and mpirun starts its helpers as Slurm tasks.
_NAMES = {
    "torchrun": _Names("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")),
    "openmpi": _Names("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", ("PMIX_NAMESPACE",)),
    "pmi": _Names("PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_JOBID",)),
    "slurm": _Names("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")),
    "env": _Names("RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ()),
}  # fmt: skip
_RAY = "RAY_JOB_ID"  # in every process that a Ray raylet started


def _number(env: Mapping[str, str], name: str, least: int = 0) -> int | None:
    text = env.get(name, "") if name else ""
    if not text:
        return None
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
        raise InvalidError(f"{name} is '{text}', which is no {'rank' if least == 0 else 'number of ranks'}")
    return int(text)


def _world(env: Mapping[str, str], launcher: str) -> tuple[str, int | None]:
    """The variable that tells it, and what it says."""
    if launcher == "slurm" and not env.get("SLURM_STEP_NUM_TASKS"):
        return "SLURM_NTASKS", _number(env, "SLURM_NTASKS", 1)
    name = _NAMES[launcher].world
    return name, _number(env, name, 1)


def _slurm_local_world(env: Mapping[str, str]) -> int | None:
    """Of this node, from a list such as ``2(x3),1``."""
    text, node = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or "", _number(env, "SLURM_NODEID")
    if not text or node is None:
        return None
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if found is None or len(counts) > node:
            break
        counts += [int(found[1])] * min(int(found[2] or 1), node + 1)
    return counts[node] if node < len(counts) else None


def _told(env: Mapping[str, str], launcher: str) -> Place:
    """What one launcher's variables say; InvalidError naming a variable that is missing or no number."""
    names = _NAMES[launcher]
    rank = _number(env, names.rank)
    world_name, world = _world(env, launcher)
    for name, value in ((names.rank, rank), (world_name, world)):
        if value is None:
            raise InvalidError(f"{name} is not set, though {names.sign if name != names.sign else world_name} is ({launcher})")
    assert rank is not None and world is not None
    if rank >= world:
        raise MismatchError(f"{names.rank} is {rank} and {world_name} is {world} ({launcher})")
    local_world = _slurm_local_world(env) if launcher == "slurm" else _number(env, names.local_world, 1)
    job = "-".join(env[n] for n in names.job if env.get(n))
    if launcher == "pmi" and not job and env.get("SLURM_STEP_ID"):  # srun --mpi=pmi2 tells no PMI_JOBID
        job = "-".join(env[n] for n in _NAMES["slurm"].job if env.get(n))
    if launcher == "env" and _RAY in env:
        job = "ray-" + env[_RAY]
    return Place(rank, world, _number(env, names.local_rank), local_world, job, launcher)


def place(environ: Mapping[str, str] | None = None, *, launcher: str | None = None) -> Place:
    """Where this process stands. launcher: whose variables count, where several launchers left theirs (default: the
    variable REFIT_LAUNCHER, else the innermost).

    torchrun's count before MPI's, those before Slurm's, since each is started by the next one. RANK and WORLD_SIZE without
    torchrun may come from anybody: MismatchError naming both variables where another launcher's say otherwise. In a process of
    Ray the variables of Slurm and MPI are those of its raylet and do not count; RANK and WORLD_SIZE, which worker groups set, do; with torchrun's among them
    (a driver hands its own on) InvalidError asks for REFIT_LAUNCHER.
    """
    env = os.environ if environ is None else environ
    asked = launcher or env.get("REFIT_LAUNCHER") or None
    if asked is not None:
        if asked not in LAUNCHERS:
            raise InvalidError(f"launcher (REFIT_LAUNCHER) must be one of {', '.join(LAUNCHERS)}, not '{asked}'")
        return _told(env, asked)
    if "RANK" in env or "TORCHELASTIC_RUN_ID" not in env:
        known = [k for k in LAUNCHERS if env.get(_NAMES[k].sign)]
    else:
        known = ["torchrun"]  # half of its variables: _told() says which one lacks
    if _RAY in env:
        if "torchrun" in known:
            raise InvalidError("TORCHELASTIC_RUN_ID is set in a process of Ray, which may have it from its driver: say whose count with REFIT_LAUNCHER=torchrun or env, or unset torchrun's variables")
        known = [k for k in known if k == "env"]
    if "torchrun" in known:
        return _told(env, "torchrun")
    if not known:
        if env.get("WORLD_SIZE"):
            raise InvalidError("WORLD_SIZE is set and RANK is not (env)")
        return Place(0, 1, 0, 1, launcher="alone")
    first = _told(env, known[0])
    for other in known[1:]:
        if other == "slurm":  # mpirun and Hydra start their helpers as Slurm tasks: the tasks' numbers are the helpers'
            continue
        second = _told(env, other)
        for a, b, mine, its in ((_NAMES[known[0]].rank, _NAMES[other].rank, first.rank, second.rank), (_world(env, known[0])[0], _world(env, other)[0], first.world, second.world)):
            if mine != its:
                raise MismatchError(f"{a} is {mine} ({known[0]}) and {b} is {its} ({other}): unset one, or say whose count: REFIT_LAUNCHER={known[0]} or {other}")
    return first


def main() -> int:
    print(json.dumps(asdict(place())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
