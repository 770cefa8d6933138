"""
A lock on a folder of checkpoints, so that two trainings do not remove each other's parts.

The lock is the operating system's, on a file in the folder: it ends with the process that
holds it, however that ends, and reaches other hosts where the file system's locks do (NFS,
Lustre with `flock`, GPFS, CephFS). The file says which process of which host it is. On a file
system without locks that text alone decides.
"""

import json
import os
import socket
from pathlib import Path

NAME = ".lock"
"""The file in the folder."""


class LockedError(Exception):
    """Another process holds the lock; the message says which, and what to do."""


class FolderLock:
    """
    Holds the lock on a folder, which is made if needed, until `release`. Raises LockedError,
    or OSError for a folder that cannot be written to.
    """

    def __init__(self, folder):
        self.folder, self.path = Path(folder), Path(folder) / NAME
        self._is_new = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._handle = None
        while self._handle is None:
            self._handle = self._opened()

    def _opened(self):
        """Returns the locked file; None if it was removed meanwhile."""
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
        """Gives the lock back, and removes the file, and a folder that is empty as before."""
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
    """Whether an open file is the one at a path still."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)


def _holder(handle):
    """Returns the host and the process that a lock file names; empty texts if none."""
    try:
        said = json.loads(os.pread(handle, 4096, 0))
        return str(said["host"]), int(said["pid"])
    except (ValueError, KeyError, TypeError):
        return "", ""


def _runs(pid):
    """Whether there is a process of that number on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True
