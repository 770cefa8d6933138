"""
A lock on a folder of checkpoints, which keeps two trainings from removing each other's
files.

The lock is an operating system lock on a file in the folder. The lock ends when its
process ends, for any reason. It also works between hosts if the file system's locks do
(NFS, Lustre with `flock`, GPFS, CephFS). The file names the process and its host. On a
file system without locks, only the content of the file shows whether the folder is
locked.
"""

import json
import os
import socket
from pathlib import Path

NAME = ".lock"
"""The name of the lock file in the folder."""


class LockedError(Exception):
    """
    Raised if another process has the lock. The message names the process and says what
    to do.
    """


class FolderLock:
    """
    A lock on a folder. It creates the folder if necessary, and lasts until `release`.
    Raises LockedError if another process has the lock, or OSError if the folder cannot
    be written to.
    """

    def __init__(self, folder):
        self.folder, self.path = Path(folder), Path(folder) / NAME
        self._is_new = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._handle = None
        while self._handle is None:
            self._handle = self._opened()

    def _opened(self):
        """
        Returns the handle of the locked file, or None if the file was removed in the
        meantime.
        """
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take(handle)
            if not _is_at(handle, self.path):
                os.close(handle)
                return None
            own = {"host": socket.gethostname(), "pid": os.getpid()}
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(own).encode(), 0)
            os.fsync(handle)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _take(self, handle):
        import fcntl

        try:
            # Unlike those of `flock`, these locks are not shared by processes that are
            # forked, such as workers that load data and end later.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            host, pid = _holder(handle)
            raise LockedError(
                f"process {pid} of host {host} trains with checkpoints in {self.folder} "
                f"already; wait until it ends, or choose another folder"
            ) from error
        except OSError:  # this file system has no locks
            host, pid = _holder(handle)
            is_gone = host == socket.gethostname() and not _runs(pid)
            if host and not is_gone:
                raise LockedError(
                    f"process {pid} of host {host} trains with checkpoints in "
                    f"{self.folder}, or was ended before it could say that it does not any "
                    f"more: then remove {self.path}"
                ) from None

    def release(self):
        """
        Releases the lock and removes its file. Also removes the folder if the lock
        created it and it is empty.
        """
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            if _is_at(handle, self.path):
                self.path.unlink()
            if self._is_new and not any(self.folder.iterdir()):
                self.folder.rmdir()
        except OSError:
            pass  # such as a folder that is gone: there is nothing to give back
        finally:
            os.close(handle)


def _is_at(handle, path):
    """Whether the open file `handle` is still the file at `path`."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)


def _holder(handle):
    """
    Returns the host and the process id in a lock file, or two empty strings if the file
    names no process.
    """
    try:
        said = json.loads(os.pread(handle, 4096, 0))
        return str(said["host"]), int(said["pid"])
    except (ValueError, KeyError, TypeError):
        return "", ""


def _runs(pid):
    """Whether a process with id `pid` runs on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True
