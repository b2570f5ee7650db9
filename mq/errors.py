"""What can go wrong with a request, as states of affairs. No transport is known here: `status` is only a name.

A door maps `status` to its own code and sends the class name along, so a client raises the same class again.
`retryable` says whether the same request may succeed later without anybody changing it.
"""

from __future__ import annotations


class MqError(Exception):
    """Anything the broker or the client raises on purpose."""

    status = "INTERNAL"
    retryable = False
    went_unanswered = False  # told by a client: an earlier try of the same request had no answer

    @property
    def leaves_open(self) -> bool:
        """Nobody knows whether the request was done. An error of no known class may be anything."""
        return self.retryable or self.went_unanswered or type(self) is MqError


class InvalidArgument(MqError):
    """The request can never succeed as it is."""

    status = "INVALID_ARGUMENT"


class MessageTooLarge(InvalidArgument):
    """A message, or a batch of them, exceeds what the broker takes."""


class ChannelNotFound(MqError):
    """No channel has that name. The first broker's Publish and Subscribe answer FAILED_PRECONDITION instead."""

    status = "NOT_FOUND"


class ChannelExists(MqError):
    """There is a channel of that name already."""

    status = "ALREADY_EXISTS"


class GroupNotFound(MqError):
    """The channel has no group of that name."""

    status = "NOT_FOUND"


class GroupExists(MqError):
    """There is a group of that name already, with other settings."""

    status = "ALREADY_EXISTS"


class ScheduleNotFound(MqError):
    """No delayed publish has that id: it is out already, was cancelled, or never was."""

    status = "NOT_FOUND"


class BackupNotFound(MqError):
    """No backup that began since the start of the broker has that id."""

    status = "NOT_FOUND"


class BackupRefused(MqError):
    """The backup can't be made there, or not now; what is there is as it was."""

    status = "FAILED_PRECONDITION"


class OffsetOutOfRange(MqError):
    """The partition does not hold that offset; valid are start_offset <= offset <= next_offset."""

    status = "OUT_OF_RANGE"

    def __init__(self, message: str, partition: int = 0, start_offset: int = 0, next_offset: int = 0) -> None:
        super().__init__(message)
        self.partition = partition
        self.start_offset = start_offset
        self.next_offset = next_offset


class LeaseLost(MqError):
    """The caller does not hold what it names: the lease ended, or was never its own. Nothing was changed."""

    status = "FAILED_PRECONDITION"


class GroupInUse(MqError):
    """Live members own the group's partitions, and the request would move them."""

    status = "FAILED_PRECONDITION"


class ProposalNotFound(MqError):
    """No rewritten segments wait under that id."""

    status = "NOT_FOUND"


class ProposalRefused(MqError):
    """Rewritten segments would lose or change something that is still live, or are damaged. Nothing was changed."""

    status = "FAILED_PRECONDITION"


class SequenceRefused(MqError):
    """An idempotent publish left a gap, reused a sequence for other content, or came from an unknown producer."""

    status = "FAILED_PRECONDITION"


class ResourceExhausted(MqError):
    """A limit was reached; the message says which. Acks and pulls go on."""

    status = "RESOURCE_EXHAUSTED"
    retryable = True


class Unavailable(MqError):
    """The broker is starting, draining or failed. A publish that gets this may or may not be stored."""

    status = "UNAVAILABLE"
    retryable = True


class DataLoss(MqError):
    """Messages start <= offset < end of one partition were durable once and can't be read any more."""

    status = "DATA_LOSS"

    def __init__(self, message: str, partition: int = 0, start: int = 0, end: int = 0) -> None:
        super().__init__(message)
        self.partition = partition
        self.start = start
        self.end = end


class Unauthenticated(MqError):
    """The caller is nobody the broker knows."""

    status = "UNAUTHENTICATED"


class PermissionDenied(MqError):
    """The caller is known and may not do this."""

    status = "PERMISSION_DENIED"
