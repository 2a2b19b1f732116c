"""What the driver tells Refit's loader in an SGLang worker, and what the worker answers.

SGLang hands a custom loader a list of (name, tensor) and nothing else, so an order is a tensor of bytes, JSON inside. SGLang
ends the worker's process when a loader raises, and never tells what other ranks than the first did: each rank therefore
leaves its answer as a file in the job's private directory.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import pickle
from typing import Any

from .._errors import CorruptError, Error, InternalError, UnsupportedError, make

NAME = "refit"  # the one (name, tensor) pair
MAX_ANSWER, MAX_MESSAGE = 1 << 16, 4000
_FIELDS = ("peer", "stage", "bucket", "tensor", "need", "have")


def encode(order: dict[str, Any]) -> str:
    """Base64 of what ``update_weights_from_tensor`` unpickles for one rank: ``[("refit", torch.ByteTensor([…]))]``. Written
    without torch: of all globals that SGLang's unpickler admits it names that constructor alone."""
    numbers = pickle.dumps(list(json.dumps(order).encode()), 2)[2:-1]  # without the mark of the protocol and the stop
    name = NAME.encode()
    return base64.b64encode(b"\x80\x02]X" + len(name).to_bytes(4, "little") + name + b"ctorch\nByteTensor\n(" + numbers + b"tR\x86a.").decode()


def decode(named_tensors: Any) -> dict[str, Any]:
    """An order from what SGLang hands to the loader."""
    found = [tensor for name, tensor in named_tensors if name == NAME]
    if len(found) != 1:
        raise CorruptError("the payload is no order of Refit")
    return json.loads(bytes(found[0].tolist()))


def directory(address: str) -> pathlib.Path:
    """Where answers lie: beside the coordinator's socket, in the job's private directory."""
    if not address.startswith("ipc://"):
        raise UnsupportedError(f"the coordinator's address '{address}' has no directory on this host for the workers' answers")
    return pathlib.Path(address.removeprefix("ipc://")).parent


def _path(order: dict[str, Any]) -> pathlib.Path:
    return directory(order["address"]) / f"sglang-{order['replica']}.{order['rank']}.{order['number']}.json"


def answer(order: dict[str, Any], failed: BaseException | None) -> None:
    """Leaves this rank's answer: whole, or not at all."""
    said: dict[str, Any] = {"ok": failed is None}
    if failed is not None:
        ours = isinstance(failed, Error)
        text = failed.message if isinstance(failed, Error) else f"{type(failed).__name__}: {failed}"
        said |= {"code": failed.code if isinstance(failed, Error) else "internal", "message": text[:MAX_MESSAGE], "fields": {f: getattr(failed, f, "") for f in _FIELDS} if ours else {}}
    path = _path(order)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(said))
    os.replace(part, path)


def read_answer(order: dict[str, Any], peer: str) -> None:
    """Takes a rank's answer away; raises what it says. The answer must be there: SGLang's own comes after it."""
    who = f"{peer} rank {order['rank']}"
    path = _path(order)
    try:
        said = json.loads(path.read_bytes()[: MAX_ANSWER + 1])
        path.unlink()
        ok = said["ok"]
    except FileNotFoundError:
        raise InternalError("the server answered and this rank did not: was it started with --custom-weight-loader refit.sglang.load?", peer=who, stage=order["do"]) from None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise CorruptError(f"its answer cannot be read: {type(e).__name__}: {e}", peer=who, stage=order["do"]) from None
    if ok is True:
        return
    fields = {k: v for k, v in said.get("fields", {}).items() if k in _FIELDS}
    try:
        raise make(said["code"], said["message"], "", fields | {"peer": who, "stage": order["do"]}, None)
    except KeyError:
        raise CorruptError(f"its answer has no known code: {str(said)[:200]}", peer=who, stage=order["do"]) from None
