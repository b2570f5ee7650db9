"""What only a look into messages tells: their sizes, their keys, how well they compress. Imports no pyspark.

By default a worker looks into one frame of a hundred, and into the first of each channel of a segment, so that a quiet
channel is seen too. Whether a frame is one of those is a matter of its sequence, so two audits see the same ones.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal.spark.read import decode

ONE_OF = 100
_MOST_KEYS = 50_000  # held at a time
_KEY_BYTES = 64  # a longer one is told by its beginning and its digest
_MIX, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
_CHOSEN_BELOW = (1 << 64) // ONE_OF


class _Channel:
    def __init__(self) -> None:
        self.frames = self.messages = self.keyed = self.value_bytes = 0
        self.batch_bytes = self.compressed_bytes = self.malformed = 0
        self.sizes: Counter[int] = Counter()  # by the number of bits of the size
        self.keys: Counter[bytes] = Counter()
        self.waiting: list[bytes] = []  # batches, to be decoded together


class Sample:
    """Looks into some of the batches of a segment, or (`deep`) into all."""

    def __init__(self, deep: bool) -> None:
        self._deep = deep
        self._channels: dict[int, _Channel] = {}
        self._waiting_bytes = 0
        self._keys = 0
        self._codec = pa.Codec("zstd")

    def wants(self, channel_id: int, sequence: int) -> bool:
        return self._deep or (sequence * _MIX & _MASK) < _CHOSEN_BELOW or channel_id not in self._channels

    def add(self, channel_id: int, batch: bytes) -> None:
        channel = self._channels.get(channel_id)
        if channel is None:
            channel = self._channels[channel_id] = _Channel()
        channel.frames += 1
        channel.batch_bytes += len(batch)
        channel.compressed_bytes += min(len(batch), self._codec.compress(batch).size)
        channel.waiting.append(batch)
        self._waiting_bytes += len(batch)
        if self._waiting_bytes >= decode.CHUNK_BYTES // 4:
            self._look()

    def is_large(self) -> bool:
        return self._keys > _MOST_KEYS

    def take_large(self) -> dict[str, list[Any]]:
        """The keys so far; forgotten here, and add up elsewhere."""
        self._look()
        found = [(number, *pair) for number, channel in self._channels.items() for pair in channel.keys.items()]
        for channel in self._channels.values():
            channel.keys.clear()
        self._keys = 0
        return {"keys": found}

    def take(self) -> dict[str, list[Any]]:
        large = self.take_large()
        channels = self._channels.items()
        return {
            **large,
            "samples": [
                (number, each.frames, each.messages, each.keyed, each.value_bytes, each.batch_bytes,
                 each.compressed_bytes, each.malformed)
                for number, each in channels
            ],
            "sizes": [(number, bits, count) for number, each in channels for bits, count in each.sizes.items()],
        }  # fmt: skip

    def _look(self) -> None:
        self._waiting_bytes = 0
        for channel in self._channels.values():
            if channel.waiting:
                self._look_into(channel)

    def _look_into(self, channel: _Channel) -> None:
        found = decode.decode(channel.waiting, ("key", "size"))
        channel.waiting = []
        channel.malformed += len(found.malformed)
        sizes = found.columns["size"].to_numpy(zero_copy_only=False)
        channel.messages += len(sizes)
        channel.value_bytes += int(sizes.sum(dtype=np.int64))
        _, bits = np.frexp(sizes.astype(np.float64))
        channel.sizes.update({int(at): int(count) for at, count in enumerate(np.bincount(bits)) if count})
        keys = found.columns["key"]
        channel.keyed += len(keys) - keys.null_count
        before = len(channel.keys)
        for pair in pc.value_counts(pc.drop_null(keys)).to_pylist():
            channel.keys[_short(pair["values"])] += pair["counts"]
        self._keys += len(channel.keys) - before


def _short(key: bytes) -> bytes:
    if len(key) <= _KEY_BYTES:
        return key
    return key[:24] + b"..." + blake2b(key, digest_size=16).hexdigest().encode()
