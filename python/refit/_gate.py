"""The gate between the thread that receives versions and the thread that runs a model."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Callable

from ._errors import DeadlineError, Error, InvalidError
from .members import VersionInfo

log = logging.getLogger("refit")


class Gate:
    """Between the receiver's thread, which runs the protocol, and the worker's thread, which runs the model: while the
    worker stands in the gate no forward pass runs, and only it touches the model."""

    def __init__(self, load: Callable[[VersionInfo], None]) -> None:
        self._load = load
        self._changed = threading.Condition()
        self._wanted = self._held = self._released = self._closed = False
        self._version: VersionInfo | None = None
        self._failed: BaseException | None = None

    def _until(self, ready: Callable[[], Any], timeout_s: float, what: str) -> None:
        if not self._changed.wait_for(ready, max(0.0, timeout_s)):
            raise DeadlineError(f"{what} within {timeout_s:.1f} s")

    # -- the receiver's thread: methods of refit.Engine

    def pause(self, timeout_s: float) -> None:
        with self._changed:
            self._wanted, self._released, self._version, self._failed = True, False, None, None
            self._changed.notify_all()
            self._until(lambda: self._held or self._closed, timeout_s, "the engine did not come into the gate")
            if self._closed:
                raise Error("the worker shut its receiver down")

    def installed(self, version: VersionInfo) -> None:
        with self._changed:
            if not self._held:
                raise Error("the worker left the gate before the weights were there")
            self._version = version
            self._changed.notify_all()
            # No deadline of its own: the worker answers when its load ends, however it ends, or leaves the gate by its own.
            self._changed.wait_for(lambda: self._version is None or not self._held)
            if self._version is not None:
                self._version = None
                raise Error("the worker left the gate before it loaded")
            if self._failed is not None:
                raise self._failed

    def resume(self) -> None:
        with self._changed:
            self._wanted, self._released = False, True
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = self._released = True
            self._changed.notify_all()

    # -- the worker's thread

    def await_round(self, timeout_s: float) -> None:
        """Until a version is staged, verified and decided."""
        with self._changed:
            self._until(lambda: self._wanted, timeout_s, "no version was decided for this rank")

    def hold(self, timeout_s: float) -> VersionInfo:
        """Stands in the gate until it is opened; loads meanwhile. What was installed."""
        deadline = time.monotonic() + timeout_s
        installed = None
        with self._changed:
            if not self._wanted:
                raise InvalidError("no version was decided for this rank: wait for one first")
            self._held = True
            self._changed.notify_all()
            try:
                while not self._released:
                    self._until(lambda: self._released or self._version is not None, deadline - time.monotonic(), "the round did not end")
                    if self._version is None:
                        continue
                    version, failed = self._version, None
                    self._changed.release()
                    try:
                        self._load(version)
                    except BaseException as e:  # noqa: BLE001 - told to both sides
                        log.exception("loading version %d failed", version.number)
                        failed = e
                    finally:
                        self._changed.acquire()
                    self._version, self._failed = None, failed
                    self._changed.notify_all()
                    if failed is not None:
                        raise Error(f"loading version {version.number} failed, this rank is fenced: {failed}")
                    installed = version
            finally:
                self._held = False
                self._changed.notify_all()
        if installed is None:
            raise Error("the round ended without an installation on this rank; its former weights serve on")
        return installed
