"""Directories that nobody but this user can read or write."""

from __future__ import annotations

import os
import pathlib
import stat
import tempfile

from ._errors import InvalidError


def check_private(folder: pathlib.Path) -> None:
    """InvalidError where another user could have put something there, or can."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise InvalidError(f"must be a directory of user {os.geteuid()} with mode 0700; it has owner {found.st_uid} and mode {stat.filemode(found.st_mode)}", peer=str(folder))


def make_private(folder: pathlib.Path) -> None:
    """One level: the mode of mkdir() is not that of the parents it makes."""
    folder.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)


def home() -> pathlib.Path:
    """This user's directory for what the processes of one host tell each other; not made here."""
    return pathlib.Path(tempfile.gettempdir()) / f"refit-{os.getuid()}"
