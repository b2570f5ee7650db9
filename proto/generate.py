"""Generates mq/pb and wal/pb from the .proto files; `make proto` runs it with the pinned grpcio-tools.

Every file is compiled under a virtual path (`-Imq/pb=proto`), so the generated modules import each other as
`mq.pb.…` and live in the package they belong to. Beside them goes GENERATED.sha256, in the form that
`sha256sum -c` reads: the digests of the sources and of the code made from them. tests/test_proto.py compares it
with the tree, so a stale or hand-edited file shows without a generator at hand.

    python proto/generate.py [OUT]      OUT: another root to write to, instead of the repository
"""

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIGESTS = "GENERATED.sha256"
# package -> the .proto files that belong to it, and whether each declares services
PACKAGES = {
    "mq": {"mq.proto": True, "raw.proto": False},
    "wal": {"wal.proto": False},
}


def generate(package: str, out: Path) -> None:
    """Compiles the .proto files of one package into OUT/package/pb and records their digests there."""
    from grpc_tools import protoc

    sources = [ROOT / "proto" / name for name in PACKAGES[package] if (ROOT / "proto" / name).exists()]
    folder = out / package / "pb"
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*_pb2*.py*"):
        stale.unlink()
    for source in sources:
        arguments = ["protoc", f"-I{package}/pb={ROOT / 'proto'}", f"--python_out={out}", f"--pyi_out={out}"]
        if PACKAGES[package][source.name]:
            arguments.append(f"--grpc_python_out={out}")
        if protoc.main([*arguments, str(source)]):
            sys.exit(f"protoc failed on {source.relative_to(ROOT)}")
    made = sorted(folder.glob("*_pb2*.py*"))
    lines = [f"{digest(path)}  {path.relative_to(ROOT).as_posix()}\n" for path in sources]
    lines += [f"{digest(path)}  {path.relative_to(out).as_posix()}\n" for path in made]
    (folder / DIGESTS).write_text("".join(lines))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    for name in PACKAGES:
        generate(name, target)
