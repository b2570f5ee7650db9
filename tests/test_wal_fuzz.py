"""Hostile bytes: mutated files through every reader. No error but ours, no record that was not written, bounded work.

Work is counted in bytes read, not in seconds. Blind mutations (flips, cuts, splices, copies) can't make a record, so
every frame that comes out must be one that went in. Informed ones know the salt and fix the CRCs: they may make
records, but never a crash, a hang, or a read beyond the file.

Each case prints its seed where it fails. `MQ_FUZZ_INPUTS` sets how many inputs there are in all.
"""

import contextlib
import os
import random
import struct

import pytest
from damage import sample
from dictdisk import DictDisk
from loguru import logger
from torture import seed_of_run, sized
from walsample import DIRECTORY, open_log

from wal.chain import open_entry, walk_entry
from wal.errors import WalError
from wal.frame import Frame, Salt, crc32c, encode, extend_crc32c, find_head, scan
from wal.index import SegmentIndex, build_index, summary_bytes, unpack_summary
from wal.manifest import MANIFEST, Manifest, read_manifest
from wal.record import CLASS_OF
from wal.segment import SEGMENT_HEADER_BYTES, SegmentHeader
from wal.tail import kept, survey
from wal.verify import verify
from wal.watermark import WATERMARK, Mark, read_mark

INPUTS = int(os.environ.get("MQ_FUZZ_INPUTS", "200000"))
INTERESTING = [0, 1, 0x7F, 0xFF, 2**16, 2**24, 2**26, 2**26 + 1, 2**31 - 1, 2**31, 2**32 - 36, 2**32 - 1]


@pytest.fixture(autouse=True)
def _quiet():
    logger.disable("wal")
    yield
    logger.enable("wal")


class Corpus:
    """A good log to start from."""

    def __init__(self) -> None:
        self.sample = sample(is_clean=True)
        self.manifest = read_manifest(self.sample.disk(), DIRECTORY)
        assert self.manifest is not None
        self.entries = {f"{DIRECTORY}/{e.name('.wal')}": e for e in self.manifest.segments}
        self.paths = list(self.entries)
        self.sidecars = [path for path in self.sample.files if path.endswith(".idx")]
        self.frames = {}
        for path, entry in self.entries.items():
            with open_entry(self.sample.disk(), DIRECTORY, self.manifest, entry) as segment:
                items = list(segment.walk(entry.first_sequence, is_dense=entry.is_dense))
            self.frames[path] = {(f.type, f.sequence, f.durable, f.payload) for f in items}

    def segment(self, rng):
        path = rng.choice(self.paths)
        data = self.sample.files[path]
        return path, self.entries[path], data if len(data) < 700 else data[:700]


@pytest.fixture(scope="module")
def corpus():
    return Corpus()


def mutated(rng: random.Random, data: bytes) -> bytes:
    """One to four changes that know nothing of the format."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        size = rng.choice((1, 2, 4, 8, 36, 64, rng.randrange(1, 200)))
        match rng.randrange(8):
            case 0 | 1 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                out[at : at + size] = bytes(len(out[at : at + size]))
            case 3:
                out[at : at + 4] = struct.pack("<I", rng.choice(INTERESTING))
            case 4:
                del out[at : at + size]
            case 5:
                out[at:at] = out[rng.randrange(len(out) + 1) :][:size]
            case 6:
                out[at : at + size] = rng.randbytes(size)
            case _:
                del out[at:]
    return bytes(out)


def informed(rng: random.Random, data: bytes, salt: bytes) -> bytes:
    """Frames and headers with the right salt and the right CRCs, and nonsense in them, put anywhere."""
    salted = Salt.of(salt)
    out = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        type_ = rng.choice([*CLASS_OF, 0, 4000, 2**32 - 1])
        sequence = rng.choice([0, 1, rng.randrange(20), 2**63, 2**64 - 1])
        payload = rng.choice([b"", rng.randbytes(rng.randrange(30)), bytes(data[rng.randrange(len(data)) :][:60])])
        header, _ = encode(salted, type_, sequence, rng.choice([0, sequence, 2**64 - 1]), [payload])
        if rng.random() < 0.4:  # a length that its own check vouches for
            checked = struct.pack("<IIQQ", rng.choice([*INTERESTING, len(data) // 2, len(data)]), type_, sequence, 0)
            header = header[:4] + struct.pack("<II", salted.sync, extend_crc32c(salted.crc, checked)) + checked
        at = rng.choice([SEGMENT_HEADER_BYTES, rng.randrange(len(out) + 1), len(out)])
        if rng.random() < 0.5:
            out[at:at] = header + payload
        else:
            out[at : at + len(header) + len(payload)] = header + payload
    return bytes(out)


def only_ours(corpus, path, items):
    for item in items:
        if isinstance(item, Frame):
            assert (item.type, item.sequence, item.durable, item.payload) in corpus.frames[path], "invented"


def disk_with(corpus, path, data):
    return DictDisk({path: data})


def in_bounds(disk, *sizes):
    assert disk.bytes_read <= 30 * sum(sizes) + 5000, "more was read than a multiple of the file"


# ---------------------------------------------------------------- one input through one reader


def fuzz_scan(rng, corpus):
    path, entry, data = corpus.segment(rng)
    data = mutated(rng, data)
    salt = Salt.of(entry.salt_bytes)
    only_ours(corpus, path, scan(data, salt, SEGMENT_HEADER_BYTES))
    head = find_head(data, salt, rng.randrange(len(data) + 1))
    assert head is None or head.position < len(data)
    with contextlib.suppress(WalError):
        SegmentHeader.unpack(data, path)


def fuzz_walk(rng, corpus):
    path, entry, data = corpus.segment(rng)
    data = mutated(rng, data)
    disk = disk_with(corpus, path, data)
    with open_entry(disk, DIRECTORY, corpus.manifest, entry) as segment:
        items = list(walk_entry(segment, entry))
    only_ours(corpus, path, items)
    sequences = [item.sequence for item in items if isinstance(item, Frame)]
    assert sequences == sorted(set(sequences))
    in_bounds(disk, len(data))


def fuzz_informed(rng, corpus):
    path, entry, data = corpus.segment(rng)
    data = informed(rng, data, entry.salt_bytes)
    disk = disk_with(corpus, path, data)
    with open_entry(disk, DIRECTORY, corpus.manifest, entry) as segment:
        index = build_index(walk_entry(segment, entry))
        SegmentIndex.unpack(index.pack(entry.salt_bytes, entry.size), entry.salt_bytes, entry.size)
        mark = Mark(rng.randrange(30), entry.first_sequence, entry.generation, rng.randrange(900))
        list(kept(segment, entry, survey(segment, entry, mark)))
    in_bounds(disk, 6 * len(data))


def fuzz_survey(rng, corpus):
    path, entry, data = corpus.segment(rng)
    data = mutated(rng, data)
    disk = disk_with(corpus, path, data)
    mark = Mark(rng.randrange(30), entry.first_sequence, entry.generation, rng.randrange(900), rng.random() < 0.3)
    with open_entry(disk, DIRECTORY, corpus.manifest, entry) as segment:
        tail = survey(segment, entry, rng.choice([None, mark]))
        only_ours(corpus, path, kept(segment, entry, tail))
    in_bounds(disk, 4 * len(data))


def fuzz_index(rng, corpus):
    path = rng.choice(corpus.sidecars)
    good = corpus.sample.files[path]
    data = mutated(rng, good)
    if rng.random() < 0.3:  # with good CRCs
        size = summary_bytes(data)
        if 0 < size <= len(data):
            data = _with_crc(data[: size - 4]) + _with_crc(data[size:-4])
    salt, size = good[8:16], int.from_bytes(good[16:24], "little")
    SegmentIndex.unpack(data, salt, size)
    unpack_summary(data[: summary_bytes(data)], salt, size)


def fuzz_manifest(rng, corpus):
    data = mutated(rng, corpus.sample.files[f"{DIRECTORY}/{MANIFEST}"])
    if rng.random() < 0.5:
        body = data.partition(b"\n")[2]
        data = f"mq-wal-manifest 1 {crc32c(body):08x}\n".encode() + body
    with contextlib.suppress(WalError):
        Manifest.unpack(data, "x")


def fuzz_watermark(rng, corpus):
    path = f"{DIRECTORY}/{WATERMARK}"
    disk = DictDisk({path: mutated(rng, corpus.sample.files[path])})
    good = corpus.sample
    mark = read_mark(disk, DIRECTORY, corpus.manifest.log_uuid)
    assert mark is None or mark.sequence <= max(good.records), "a mark was invented"


def fuzz_directory(rng, corpus):
    """Several files at once, through verify, open, replay and reads."""
    disk = corpus.sample.disk()
    total = sum(map(len, disk.files.values()))
    for path in rng.sample(list(disk.files), rng.randrange(1, 4)):
        if path in corpus.entries and rng.random() < 0.5:
            disk.files[path] = bytearray(informed(rng, corpus.sample.files[path], corpus.entries[path].salt_bytes))
        else:
            disk.files[path] = bytearray(mutated(rng, corpus.sample.files[path]))
    try:
        verify(DIRECTORY, disk=disk)
        log = open_log(disk)
    except WalError:
        return
    list(log.replay())
    for offset in (0, 7):
        try:
            log._reader.read(1, 0, offset, 1 << 20, log.synced)
            log._reader.read_sequence(offset, log.synced)
        except WalError:
            pass
    log.close()
    in_bounds(disk, 20 * total)


def _with_crc(data):
    return data + struct.pack("<I", crc32c(data))


SHARES = {
    fuzz_scan: 0.30, fuzz_walk: 0.10, fuzz_informed: 0.05, fuzz_survey: 0.06, fuzz_index: 0.20, fuzz_manifest: 0.09,
    fuzz_watermark: 0.195, fuzz_directory: 0.005,
}  # fmt: skip


def run(reader, corpus, inputs, seed):
    for number in range(inputs):
        rng = random.Random(seed * 1_000_000_007 + number)
        try:
            reader(rng, corpus)
        except Exception as error:
            error.add_note(f"{reader.__name__}, seed {seed}, input {number}")
            raise


@pytest.mark.parametrize("reader", SHARES, ids=lambda reader: reader.__name__)
def test_hostile_bytes_raise_nothing_but_our_errors_and_invent_nothing(reader, corpus):
    run(reader, corpus, int(INPUTS * SHARES[reader]), seed=1)


@pytest.mark.torture
@pytest.mark.shows("T5", "every reader of the log, on mutated bytes")
@pytest.mark.parametrize("reader", SHARES, ids=lambda reader: reader.__name__)
def test_ten_million_hostile_inputs(reader, corpus, figures):
    inputs = int(sized(INPUTS, 10_000_000) * SHARES[reader])
    figures |= {"seed": seed_of_run(), "inputs": inputs}
    run(reader, corpus, inputs, figures["seed"])


def test_the_shares_make_a_whole():
    assert sum(SHARES.values()) == pytest.approx(1)


def test_a_reader_that_believes_lengths_would_be_caught(corpus):
    """The planted bug: a scan that checks no CRC returns records that nobody wrote."""

    def careless(rng, corpus):
        path, _, data = corpus.segment(rng)
        data = mutated(rng, data)
        at = SEGMENT_HEADER_BYTES
        while at + 36 <= len(data):
            _, _, _, length, type_, sequence, durable = struct.unpack_from("<IIIIIQQ", data, at)
            only_ours(corpus, path, [Frame(at, type_, sequence, durable, 0, data[at + 36 : at + 36 + length])])
            at += 36 + length

    with pytest.raises(AssertionError, match="invented"):
        run(careless, corpus, 100, seed=1)
