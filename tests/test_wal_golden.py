"""The bytes of format 1, pinned in both directions.

`tests/golden/wal-v1/` is a whole log directory: every record type, a snapshot run, sealed segments with their
indexes, a rewritten one with gaps and offset deltas, a live one, a clean stop. Today's writer makes exactly these
bytes, today's reader reads exactly these records from them, for ever.

Should the first test fail, the format has changed. If that is meant, follow the ritual in wal/FORMAT.md: raise the
version, keep this directory and its reading test as they are, and make a new one beside it:

    make golden VERSION=2
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # run as a script, it finds its neighbours too

from dictdisk import DictDisk
from google.protobuf import json_format
from walsample import DIRECTORY, NOW_US, SMALL, one_of_each, open_log, published, put

from wal.chain import walk_chain
from wal.frame import Frame
from wal.manifest import read_manifest
from wal.record import Published, Unknown
from wal.rewrite import Kept, rewrite
from wal.verify import verify

GOLDEN = Path(__file__).parent / "golden" / "wal-v1"
RECORDS = "records.json"  # beside the files: what they say


def written() -> dict[str, bytes]:
    """The files that today's writer makes of the records, with all that is random or of the moment held still."""
    disk = DictDisk()
    log = open_log(disk)
    put(log, one_of_each(), together=3)
    log.rotate()
    put(log, [published(11, b"eight", b"nine"), published(13, b"ten"), published(2, channel=2), published(14)])
    log.rotate()
    put(log, [published(15, b"live")])
    manifest = log.manifest
    entry = manifest.segments[-2]

    def kept() -> Iterator[Kept]:
        for at, item in walk_chain(disk, DIRECTORY, manifest):
            if at is entry and isinstance(item, Frame):
                record = Published.FromString(item.payload)
                if record.base_offset == 11:
                    record = published(11, b"nine", offset_deltas=[1])
                if record.base_offset != 13:
                    yield Kept(item.type, item.sequence, record.SerializeToString())

    made = rewrite(
        disk, DIRECTORY, manifest, entry, kept(), salt=b"rewrites", take=disk.create,
        last_sequence=entry.last_sequence,
    )  # fmt: skip
    log.run_between_groups(lambda writer: writer.replace_segments([entry.name(".wal")], [made]))
    log.pump()
    log._reader.read(1, 0, 0, 1 << 20, log.synced)
    log.close()
    zeros = {"LOCK", "spare", "reserve", "reserve-1"}
    files = {path.removeprefix(f"{DIRECTORY}/"): bytes(data) for path, data in disk.files.items()}
    return {name: data.rstrip(b"\0") if name == LIVE else data for name, data in files.items() if name not in zeros}


LIVE = "00000000000000000030-0.wal"  # preallocated: what follows its frames is left out here, and is zeros


def told(files: dict[str, bytes]) -> list[list[object]]:
    """Sequence, type and content of every record that today's reader finds in the files."""
    disk = DictDisk({f"{DIRECTORY}/{name}": data for name, data in files.items()})
    disk.files[f"{DIRECTORY}/{LIVE}"].extend(bytes(SMALL.segment_bytes))
    manifest = read_manifest(disk, DIRECTORY)
    assert manifest is not None
    log = open_log(disk)
    assert log.report.was_clean
    out: list[list[object]] = []
    for sequence, record in log._reader.replay(0):
        if isinstance(record, Unknown):
            out.append([sequence, record.type, record.payload.hex()])
        else:
            out.append([sequence, type(record).__name__, json_format.MessageToDict(record)])
    log.close()
    return out


def golden() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in GOLDEN.iterdir() if path.name != RECORDS}


def test_todays_writer_makes_exactly_these_bytes():
    now, then = written(), golden()
    assert sorted(now) == sorted(then)
    for name, data in now.items():
        assert data == then[name], f"{name} is written otherwise than in {GOLDEN}"


def test_todays_reader_reads_exactly_these_records():
    assert told(golden()) == json.loads((GOLDEN / RECORDS).read_text())


def test_the_golden_log_holds_what_it_should():
    names = {name for _, name, _ in json.loads((GOLDEN / RECORDS).read_text())}
    assert names == {type(record).__name__ for record in one_of_each()} - {"Unknown"} | {4000}
    files = golden()
    assert [name for name in files if name.endswith("-1.wal")], "a rewritten segment"
    assert {"MANIFEST", "watermark", LIVE} < set(files)
    disk = DictDisk({f"{DIRECTORY}/{name}": data for name, data in files.items()})
    report = verify(DIRECTORY, disk=disk)
    # the sample's one Damaged record, and the offsets that its records leave out, are what they are
    assert all("damage found" in d.reason or "offsets" in d.reason for d in report.damage)


@pytest.mark.parametrize("offset", [11, 12])
def test_a_rewritten_segment_is_read_by_offset(offset):
    disk = DictDisk({f"{DIRECTORY}/{name}": data for name, data in golden().items()})
    log = open_log(disk)
    found = log._reader.read(1, 0, offset, 1 << 20, log.synced)
    assert [(r.base_offset, list(r.offset_deltas)) for r in found] == [(11, [1]), (14, []), (15, [])]
    assert found[0].min_timestamp_us == NOW_US


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)  # never over an old one
    files = written()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    rows = ",\n".join(json.dumps(row, sort_keys=True) for row in told(files))
    (folder / RECORDS).write_text(f"[\n{rows}\n]\n")


if __name__ == "__main__":
    main()
