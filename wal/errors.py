"""What can go wrong with a log. A torn tail is not here: recovery keeps a copy, cuts and reports it."""

from __future__ import annotations


class WalError(Exception):
    """Anything this package raises on purpose."""


class CorruptSegment(WalError):
    """Bytes that were once durable can't be read back; names the file, the place and what to do."""

    def __init__(
        self, path: str, position: int, reason: str, hint: str = "", offsets: tuple[int, int] | None = None
    ) -> None:
        super().__init__(f"{path}, byte {position}: {reason}" + (f" ({hint})" if hint else ""))
        self.path = path
        self.position = position
        self.reason = reason
        self.hint = hint
        self.offsets = offsets  # start and end of what is lost, where a partition was read; end 0: not known


class UnsupportedVersion(WalError):
    """The directory was written by a format that this code does not know."""


class RecordTooLarge(WalError):
    """One record exceeds what a frame may hold; nothing was appended."""


class LogLocked(WalError):
    """Another process owns the directory."""


class LogClosed(WalError):
    """The log was closed."""


class LogFailed(WalError):
    """A sync or close failed: what is on disk is unknown, so this log answers nothing more until it is opened anew."""


class LogBusy(WalError):
    """The commit queue is full; nothing was appended, the same call may succeed soon."""


class DiskFull(WalError):
    """Free space is below the soft mark; nothing was appended, only essential records are taken."""


class InstallRefused(WalError):
    """Rewritten segments would lose or change something that is still live; the log is as it was."""


class NoSuchProposal(InstallRefused):
    """Nothing of that id waits to be installed."""


class BackupRefused(WalError):
    """The directory is no place for this backup, or holds none that could be restored; nothing was changed."""
