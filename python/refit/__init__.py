"""Refit moves the newest weights of a model from the processes that train it to the processes that serve it.

In the layout that each side keeps, all or nothing, proven. The names below are the whole API; each is documented where
it is defined. No framework is needed: arrays come and go by DLPack and the buffer protocol.
"""

from . import _native
from ._nixl import name_library
from ._arrays import Parameter, Tensor
from ._errors import (
    BusyError,
    CancelledError,
    CorruptError,
    DeadlineError,
    Error,
    ExhaustedError,
    InternalError,
    InvalidError,
    MismatchError,
    PeerLostError,
    UnsupportedError,
)
from .coordinator import Coordinator, SyncReport, VersionInfo, WeightSynchronizer
from .layout import Holding, Layout, Plan
from .members import Engine, MemberReport, Publisher, Receiver
from .seam import Instance, Shard, serve
from .synchronizers import Decision, SyncMetrics, create_weight_synchronizer

name_library()
__version__: str = _native.version
__all__ = [
    "BusyError",
    "CancelledError",
    "Coordinator",
    "CorruptError",
    "DeadlineError",
    "Decision",
    "Engine",
    "Error",
    "ExhaustedError",
    "Holding",
    "Instance",
    "InternalError",
    "InvalidError",
    "Layout",
    "MemberReport",
    "MismatchError",
    "Parameter",
    "PeerLostError",
    "Plan",
    "Publisher",
    "Receiver",
    "Shard",
    "SyncMetrics",
    "SyncReport",
    "Tensor",
    "UnsupportedError",
    "VersionInfo",
    "WeightSynchronizer",
    "create_weight_synchronizer",
    "serve",
]
