"""One file of the model disk: what the machine sees of it, what the platter holds, and what is between the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

SECTOR_BYTES = 512

Choose = Callable[[int], int]  # of n unsynced versions, which reached the platter; 0: none


@dataclass(slots=True, eq=False)
class Inode:
    """A file or directory: what the machine sees, what the platter holds, and what is on its way there."""

    cache: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: dict[int, list[bytes]] = field(default_factory=dict)  # by sector: unsynced contents before the present one
    sizes: list[int] = field(default_factory=list)  # that it had since the last sync, the present one last
    is_directory: bool = False

    def copy(self) -> Inode:
        dirty = {sector: list(contents) for sector, contents in self.dirty.items()}
        return Inode(bytearray(self.cache), bytearray(self.durable), dirty, list(self.sizes), self.is_directory)

    def put(self, data: bytes, position: int) -> None:
        end = position + len(data)
        self.resize(max(end, len(self.cache)))
        for sector in range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            self._touch(sector)
        self.cache[position:end] = data

    def resize(self, size: int) -> None:
        before = len(self.cache)
        if size == before:
            return
        self.sizes.append(size)
        if size > before:
            self.cache += bytes(size - before)
            return
        for sector in [sector for sector in self.dirty if sector * SECTOR_BYTES >= size]:
            self._touch(sector)
        if size % SECTOR_BYTES:  # the rest of the last sector is zeroed, also where it was durable
            self._touch(size // SECTOR_BYTES)
        del self.cache[size:]

    def _touch(self, sector: int) -> None:
        if sector not in self.dirty:
            self.dirty[sector] = []
        elif content := self._sector(sector):
            self.dirty[sector].append(content)

    def _sector(self, sector: int) -> bytes:
        return bytes(self.cache[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES])

    def flush(self) -> None:
        """What is dirty becomes durable, and nothing else: what a failed sync forgot stays lost."""
        if self.sizes:
            del self.durable[min(self.sizes) :]
            self.durable += bytes(len(self.cache) - len(self.durable))
        for sector in self.dirty:
            content = self._sector(sector)
            start = sector * SECTOR_BYTES
            self.durable += bytes(max(0, start - len(self.durable)))
            self.durable[start : start + len(content)] = content
        self.forget()

    def destroy(self) -> None:
        """The platter takes nothing where it was written last, nor gives back what was there."""
        for sector in self.dirty:
            for content in (self.cache, self.durable):
                part = content[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]
                content[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES] = bytes(len(part))

    def forget(self) -> None:
        self.dirty.clear()
        self.sizes.clear()

    def after_crash(self, choose: Choose) -> Inode:
        """What is left of it: of each sector, and of the size, the durable version or one that came after it."""
        content = bytearray(self.durable)
        if self.sizes:
            size = [len(self.durable), *self.sizes][choose(len(self.sizes))]
            content = content[:size] + bytes(max(0, size - len(content)))
        for sector, before in self.dirty.items():
            versions = [version for version in (*before, self._sector(sector)) if version]
            chosen = choose(len(versions))
            start = sector * SECTOR_BYTES
            room = min(SECTOR_BYTES, len(content) - start)
            if chosen and room > 0:
                content[start : start + room] = versions[chosen - 1].ljust(SECTOR_BYTES, b"\0")[:room]
        return Inode(content, bytearray(content), is_directory=self.is_directory)


def chance(rng: Random, share: float) -> Choose:
    """Each thing reached the platter with this likelihood, more often in its last version than in one before."""

    def choose(versions: int) -> int:
        if rng.random() >= share:
            return 0
        return versions if rng.random() < 0.5 else rng.randint(1, versions)

    return choose
