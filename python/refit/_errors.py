"""Errors: one class per code, each also of the kind that training loops catch."""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """Whatever goes wrong in Refit.

    code: what the caller can do about it (``invalid``, ``unsupported``, ``mismatch``, ``corrupt``, ``timeout``,
    ``peer_lost``, ``exhausted``, ``busy``, ``cancelled``, ``internal``). message: without the fields. peer
    (``target:0.2``), stage (``transfer``), bucket and tensor say where; empty when they do not apply. need and have
    are bytes unless the message names another unit, or None. report: of a round that did not commit, else None.
    """

    code = "internal"
    message: str = ""
    peer: str = ""
    stage: str = ""
    bucket: str = ""
    tensor: str = ""
    need: int | None = None
    have: int | None = None
    report: Any = None

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        for name, value in fields.items():
            if name not in ("peer", "stage", "bucket", "tensor", "need", "have", "report", "line"):
                raise TypeError(f"an error has no field '{name}'")
            setattr(self, name, value)

    def __str__(self) -> str:
        line = getattr(self, "line", "")
        if line:
            return line
        where = [f"{k}={v}" for k in ("peer", "stage", "bucket", "tensor", "need", "have") if (v := getattr(self, k)) not in ("", None)]
        return f"{self.code}: {self.message}" + (f" [{' '.join(where)}]" if where else "")

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes everything but the report, whose class is native."""
        return (type(self), self.args, {k: v for k, v in self.__dict__.items() if k != "report"})

    @property
    def retryable(self) -> bool:
        """True when the same call may succeed later without any change by the caller."""
        return self.code in ("timeout", "peer_lost", "busy", "cancelled")


class InvalidError(Error, ValueError):
    """The input or option is wrong: fix it."""

    code = "invalid"


class UnsupportedError(Error, NotImplementedError):
    """Right in itself, not possible here: choose another way."""

    code = "unsupported"


class MismatchError(Error, RuntimeError):
    """Two sides disagree: layout, digest, version, epoch."""

    code = "mismatch"


class CorruptError(Error, RuntimeError):
    """Bytes are not what they claim to be."""

    code = "corrupt"


class DeadlineError(Error, TimeoutError):
    """A deadline passed."""

    code = "timeout"


class PeerLostError(Error, RuntimeError):
    """A named peer died or left."""

    code = "peer_lost"


class ExhaustedError(Error, RuntimeError):
    """A budget, limit or disk is full: need and have are set."""

    code = "exhausted"


class BusyError(Error, RuntimeError):
    """Another operation holds the resource: try again."""

    code = "busy"


class CancelledError(Error, RuntimeError):
    """Aborted on request, or by the first error of a round."""

    code = "cancelled"


class InternalError(Error, RuntimeError):
    """Refit's own mistake."""

    code = "internal"


_CLASSES = {
    c.code: c
    for c in (InvalidError, UnsupportedError, MismatchError, CorruptError, DeadlineError, PeerLostError, ExhaustedError, BusyError, CancelledError, InternalError)
}


def of_code(code: str, message: str, **fields: Any) -> Error:
    """The exception of a code that another process told of."""
    return _CLASSES.get(code, InternalError)(message, **fields)


def make(code: str, message: str, line: str, fields: dict[str, Any], report: Any) -> Error:
    """The exception that the native part raises."""
    return _CLASSES[code](message, line=line, report=report, **fields)
