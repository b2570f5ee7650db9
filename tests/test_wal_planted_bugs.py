"""Logs that are broken on purpose. A harness that does not catch them would prove nothing about the real one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from logowner import Violation
from modeldisk import ModelDisk, Unsynced
from powercut import search

import wal.manifest
import wal.recovery
import wal.upkeep
import wal.writer
from wal.disk import Disk, write_all
from wal.live import Live
from wal.recovery import _Opening
from wal.segment import SealedWriter
from wal.tail import Tail
from wal.watermark import Mark
from wal.writer import Rotation, Writer

Plant = Callable[[pytest.MonkeyPatch], None]


def no_sync_before_the_callback(patch: pytest.MonkeyPatch) -> None:
    """The live segment is never synced; all else is."""

    def sync(self: Writer) -> None:
        self.synced = self.written
        self.synced_bytes += self._unsynced_bytes
        self._unsynced_bytes = 0
        self._wants_sync = False

    patch.setattr(Writer, "_sync_live", sync)


def no_directory_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelDisk, "sync_directory", lambda self, path: self._step("sync_directory", path))


def no_sync_of_the_parents_of_a_new_directory(patch: pytest.MonkeyPatch) -> None:
    whole = ModelDisk.sync_directory
    patch.setattr(ModelDisk, "sync_directory", lambda self, path: None if path in "/data" else whole(self, path))


def callback_before_sync(patch: pytest.MonkeyPatch) -> None:
    whole = Writer.sync

    def sync(self: Writer) -> None:
        self.on_marks(self.written, self.written)
        whole(self)

    patch.setattr(Writer, "sync", sync)


def callback_after_the_write(patch: pytest.MonkeyPatch) -> None:
    whole = Writer._flush

    def flush(self: Writer, *arguments: Any) -> None:
        whole(self, *arguments)
        self.on_marks(self.written, self.written)

    patch.setattr(Writer, "_flush", flush)


def frames_of_the_next_segment_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    """The manifest names the new segment only when the writer is idle again."""

    def rotate(self: Writer, rotation: Rotation) -> None:
        sealed = self._seal()
        live = self._start_segment(rotation, sealed)
        self.manifest = self.manifest.with_segments([*self.manifest.segments[:-1], sealed, live.entry])
        self._reader.seal(self.manifest, sealed, self._live.index)
        self._live = live
        self._reader.go_live(self.manifest, live.index, live.position)

    whole = Writer.tend

    def tend(self: Writer, *, is_idle: bool) -> None:
        self.manifest = self._swap(self.manifest)
        whole(self, is_idle=is_idle)

    patch.setattr(Writer, "_rotate", rotate)
    patch.setattr(Writer, "tend", tend)


def frames_of_the_next_segment_before_the_seal(patch: pytest.MonkeyPatch) -> None:
    """The seal is written, and synced only with what comes next: here, never."""

    def sync(self: Writer) -> None:
        self.synced = self.written
        self.synced_bytes += self._unsynced_bytes
        self._unsynced_bytes = 0
        self._wants_sync = False

    whole = Writer._seal

    def seal(self: Writer) -> object:
        self.sync()
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Writer, "_sync_live", sync)
            return whole(self)

    patch.setattr(Writer, "_seal", seal)


def tail_not_synced(patch: pytest.MonkeyPatch) -> None:
    """What a killed owner left in the cache is read and served, as many logs do it."""
    whole = _Opening._write_again

    def write_again(self: _Opening, *arguments: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "disk", Unsynced(self.disk))
            whole(self, *arguments)

    patch.setattr(_Opening, "_write_again", write_again)


def copy_not_synced(patch: pytest.MonkeyPatch) -> None:
    whole = SealedWriter.seal

    def seal(self: SealedWriter) -> int:
        self.disk = Unsynced(self.disk)
        return whole(self)

    patch.setattr(SealedWriter, "seal", seal)


def watermark_before_sync(patch: pytest.MonkeyPatch) -> None:
    whole = Writer.sync

    def sync(self: Writer) -> None:
        live = self._live
        self._watermark.write(Mark(self.written, live.entry.first_sequence, live.entry.generation, live.position))
        whole(self)

    patch.setattr(Writer, "sync", sync)


def manifest_not_synced_before_its_rename(patch: pytest.MonkeyPatch) -> None:
    def write_file(disk: Disk, path: str, data: bytes) -> None:
        if os.path.basename(path) in disk.list(os.path.dirname(path)):
            disk.unlink(path)
        fd = disk.create(path)
        write_all(disk, fd, [data], 0)
        disk.close(fd)

    patch.setattr(wal.manifest, "write_file", write_file)


def manifest_swapped_without_directory_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wal.writer, "swap_manifest", _swap_without_directory_sync)


def _swap_without_directory_sync(disk: Disk, directory: str, manifest: wal.manifest.Manifest) -> wal.manifest.Manifest:
    manifest = replace(manifest, edition=manifest.edition + 1)
    path = os.path.join(directory, wal.manifest.MANIFEST)
    wal.manifest.write_file(disk, path + ".new", manifest.pack())
    disk.rename(path + ".new", path)
    return manifest


def new_segment_without_a_durable_name(patch: pytest.MonkeyPatch) -> None:
    """The manifest's own directory sync would cover it, were it not for a cut between the two names."""
    whole = wal.writer.start_segment

    def start(disk: Disk, *arguments: object, **named: object) -> Live:
        return whole(Unsynced(disk), *arguments, **named)  # type: ignore[arg-type]

    patch.setattr(wal.writer, "start_segment", start)


def names_that_a_killed_owner_left_are_not_made_durable(patch: pytest.MonkeyPatch) -> None:
    """It died between the manifest's rename and the sync of the directory; the next one reads it and is content."""
    patch.setattr(_Opening, "_renew_names", lambda self: None)


def rewritten_segments_installed_without_sync(patch: pytest.MonkeyPatch) -> None:
    whole = wal.upkeep.place
    patch.setattr(wal.upkeep, "place", lambda disk, *arguments: whole(Unsynced(disk), *arguments))


def torn_tail_not_cut(patch: pytest.MonkeyPatch) -> None:
    """A tear is taken for the end of the log and written over, and what lies behind it comes back."""
    whole = wal.tail.survey

    def survey(*arguments: object) -> Tail:
        tail = whole(*arguments)  # type: ignore[arg-type]
        tail.torn = None
        return tail

    patch.setattr(wal.recovery, "survey", survey)


BUGS: list[Plant] = [
    no_sync_before_the_callback,
    no_directory_sync,
    no_sync_of_the_parents_of_a_new_directory,
    callback_before_sync,
    callback_after_the_write,
    frames_of_the_next_segment_before_the_manifest,
    frames_of_the_next_segment_before_the_seal,
    tail_not_synced,
    copy_not_synced,
    watermark_before_sync,
    manifest_not_synced_before_its_rename,
    manifest_swapped_without_directory_sync,
    new_segment_without_a_durable_name,
    names_that_a_killed_owner_left_are_not_made_durable,
    rewritten_segments_installed_without_sync,
    torn_tail_not_cut,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation) as caught:
        search(seed=3, states=20_000)
    print(caught.value)
