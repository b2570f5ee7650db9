"""The generated protobuf code is what the .proto files say."""

import hashlib
import importlib
import subprocess
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from wal.pb import wal_pb2

PACKAGES = ["mq", "wal"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_generated_code_is_neither_stale_nor_edited(root: Path, package: str) -> None:
    recorded = {}
    for line in (root / package / "pb" / "GENERATED.sha256").read_text().splitlines():
        digest, name = line.split("  ")
        recorded[name] = digest
    present = {f"{package}/pb/{path.name}" for path in (root / package / "pb").glob("*_pb2*.py*")}
    assert present == {name for name in recorded if not name.startswith("proto/")}, "run make proto"
    changed = [n for n, digest in recorded.items() if hashlib.sha256((root / n).read_bytes()).hexdigest() != digest]
    assert changed == [], "run make proto"


def test_every_proto_file_has_generated_code(root: Path) -> None:
    recorded = "".join((root / package / "pb" / "GENERATED.sha256").read_text() for package in PACKAGES)
    assert [path.name for path in (root / "proto").glob("*.proto") if f"  proto/{path.name}\n" not in recorded] == []


@pytest.mark.toolchain
def test_the_generator_makes_the_committed_code(root: Path, tmp_path: Path) -> None:
    python = root / ".venv-proto" / "bin" / "python"
    if not (root / ".venv-proto" / ".installed").exists():
        pytest.skip("the generator is not installed here (make proto installs it)")
    subprocess.run([python, root / "proto" / "generate.py", tmp_path], check=True, capture_output=True)
    for package in PACKAGES:
        assert generated_in(tmp_path / package / "pb") == generated_in(root / package / "pb")


def test_a_batch_message_is_the_same_in_the_api_and_in_the_log(root: Path) -> None:
    if not (root / "mq" / "pb" / "mq_pb2.py").exists():
        pytest.skip("proto/mq.proto does not exist yet")
    mq_pb2 = importlib.import_module("mq.pb.mq_pb2")
    for name in ("Batch", "BatchMessage"):
        api, log = mq_pb2.DESCRIPTOR.message_types_by_name[name], wal_pb2.DESCRIPTOR.message_types_by_name[name]
        assert shape_of(api) == shape_of(log)


def generated_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in [*folder.glob("*_pb2*.py*"), folder / "GENERATED.sha256"]}


def shape_of(message: Descriptor) -> dict[int, tuple[object, ...]]:
    """The fields of a message by number, with the shape of those that are messages themselves."""

    def describe(field: FieldDescriptor) -> tuple[object, ...]:
        nested = shape_of(field.message_type) if field.message_type else None
        return field.name, field.type, field.is_repeated, field.has_presence, nested

    return {field.number: describe(field) for field in message.fields}
