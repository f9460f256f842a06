"""Bytes by name, in one directory that any number of processes use at once.

    offset      content
    0           magic, 8 bytes
    8           SHA-256 of the payload, 32 bytes
    40          payload

A file that is not exactly this counts as missing and is replaced.  Files are written under another
name and renamed, so a reader sees all of a file or none.  What is missing is claimed under a file
lock: one process makes it while the others wait for the file, not for the lock.  A lock dies with
its process.  Its holder removes the file when the payload can be read, which is safe because
whoever locks looks for the payload again.

The directory is `mpi-collectives` in COLLECTIVES_CACHE, or in XDG_CACHE_HOME, or in ~/.cache.
One that cannot be written is still read; new files then go to a private temporary directory.
"""

import hashlib
import logging
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, lru_cache
from pathlib import Path

from collectives.settings import settings

try:
    import fcntl
except ImportError:  # not a POSIX system: every process compiles for itself
    fcntl = None

MAGIC = b"collnb1\n"
PATIENCE_S = 120.0
POLL_S = 0.02

_LOG = logging.getLogger("collectives")


class Store:
    """The files in `preferred`, and in `fallback` where `preferred` cannot be written.

    Either may be None.  Problems with the disk never raise; the first is logged as a warning.
    """

    def __init__(self, preferred: Path | None, fallback: Path | None = None):
        self.preferred = preferred
        self.fallback = fallback
        self._warned = self._warned_of_damage = False

    @cached_property
    def directory(self) -> Path | None:
        """Where new files go; None if nowhere."""
        try:
            return _usable(self.preferred)
        except OSError as error:
            reason = error
        try:
            directory = _private(self.fallback)
        except OSError:
            directory = None
        self._warn(f"cannot store compiled functions ({reason}); "
                   f"using {directory or 'no directory'} instead")
        return directory

    def load(self, name: str) -> bytes | None:
        """The payload stored as `name`, or None."""
        for directory in self._readable():
            try:
                return _checked((directory / name).read_bytes())
            except OSError:
                continue
            except ValueError:
                self._warn_of_damage(directory)
        return None

    def _readable(self) -> Iterator[Path]:
        if self.preferred is not None:
            yield self.preferred
        if self.fallback is not None and _is_private(self.fallback):
            yield self.fallback

    def save(self, name: str, payload: bytes) -> None:
        """Store `payload` as `name`, replacing what is there."""
        if self.directory is None:
            return
        temporary = self.directory / f".{secrets.token_hex(8)}.tmp"
        try:
            try:
                with open(temporary, "xb") as file:
                    file.write(MAGIC + hashlib.sha256(payload).digest() + payload)
                os.replace(temporary, self.directory / name)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            self._warn(f"cannot store a compiled function ({error})")

    @contextmanager
    def claim(self, name: str) -> Iterator[bytes | None]:
        """Yield the payload of `name`, or None to the one process that should make and save it.

        The others wait meanwhile, up to PATIENCE_S; then they get None too.  So does everyone
        where files cannot be locked.
        """
        with ExitStack() as stack:
            payload = self.load(name)
            if payload is None and fcntl is not None and self.directory is not None:
                lock = stack.enter_context(_lock_file(self.directory / f"{name}.lock"))
                payload = self._wait(name, lock)
            yield payload

    def _wait(self, name: str, lock: int | None) -> bytes | None:
        """Wait for the lock or for the payload, whichever comes first."""
        deadline = time.monotonic() + PATIENCE_S
        while not _locked(lock) and time.monotonic() < deadline:
            time.sleep(POLL_S)
            payload = self.load(name)
            if payload is not None:
                return payload
        return self.load(name)

    def _warn_of_damage(self, directory: Path) -> None:
        if not self._warned_of_damage:
            self._warned_of_damage = True
            _LOG.warning("%s holds damaged files: they are compiled anew and replaced", directory)

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning("%s: compiling will be repeated; set COLLECTIVES_CACHE to a directory "
                         "that can be written", problem)


@lru_cache(maxsize=1)
def store() -> Store:
    """The store of this process."""
    return Store(_user_directory(), _temporary_directory())


def cache_directory() -> Path | None:
    """Where compiled functions are stored; None if no directory can be written."""
    return store().directory


def _user_directory() -> Path | None:
    given = settings().cache
    if given:
        return Path(os.path.expanduser(given)).absolute() / "mpi-collectives"
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(os.path.expanduser("~/.cache"))
    return base / "mpi-collectives" if base.is_absolute() else None


def _temporary_directory() -> Path | None:
    try:
        return Path(tempfile.gettempdir()) / f"mpi-collectives-{os.getuid()}"
    except (OSError, AttributeError):
        return None


def _usable(directory: Path | None) -> Path:
    """`directory`, made if need be; OSError if a file in it cannot be written."""
    if directory is None:
        raise FileNotFoundError("no home directory")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory):
        return directory


def _private(directory: Path | None) -> Path:
    """Like `_usable`, for a directory that nobody else may write: we execute what we read."""
    if directory is None:
        raise FileNotFoundError("no temporary directory")
    directory.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(directory):
        raise PermissionError(f"{directory} is open to others")
    return _usable(directory)


def _is_private(directory: Path) -> bool:
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return (stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            and not found.st_mode & 0o077)


def _checked(content: bytes) -> bytes:
    """The payload in a file's content; ValueError if damaged."""
    magic, digest, payload = content[:8], content[8:40], content[40:]
    if magic != MAGIC or digest != hashlib.sha256(payload).digest():
        raise ValueError("not a complete file of ours")
    return payload


@contextmanager
def _lock_file(path: Path) -> Iterator[int | None]:
    """An open file to lock, removed at the end if then locked; None if there can be none."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield None
        return
    try:
        yield file
    finally:
        if _locked(file):
            with suppress(OSError):
                path.unlink()
        os.close(file)


def _locked(file: int | None) -> bool:
    """True if the lock is ours, or if nothing can be locked here; False if another has it."""
    if file is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
