"""Writes the single-turn rows of BFCL v4 that the experiment uses, and their accepted calls.

    python get_data.py data                 takes them from the package bfcl-eval, which pip downloads (2 MB)
    python get_data.py data --from FOLDER   takes them from a folder, or from its folder bfcl

The rows of other versions are refused, as scores would not compare.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "bfcl-eval==2026.3.23"
CATEGORIES = ("simple_python", "multiple", "parallel", "irrelevance")
"""Categories whose rows decide which functions are held out; "parallel" is not played."""
SHA256 = {
    "BFCL_v4_simple_python.json": "82dd63ba502eb252",
    "possible_answer/BFCL_v4_simple_python.json": "90cd5bc653690ee8",
    "BFCL_v4_multiple.json": "aef168155ebd74b7",
    "possible_answer/BFCL_v4_multiple.json": "244e00ce9395df94",
    "BFCL_v4_parallel.json": "19f51a82eff42e5d",
    "possible_answer/BFCL_v4_parallel.json": "8a6aa19c1adddc6a",
    "BFCL_v4_irrelevance.json": "2b6ed4c2e992cdcf",
}
"""First digits of the SHA-256 of each file."""


def main() -> None:
    """Finds the files, and copies them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write into")
    parser.add_argument("--from", dest="source", type=Path, help="folder with the files, under either name")
    options = parser.parse_args()
    files = downloaded() if options.source is None else {name: found(options.source, name) for name in SHA256}
    for name, content in files.items():
        if not hashlib.sha256(content).hexdigest().startswith(SHA256[name]):
            raise SystemExit(f"{name} is of another version than {PACKAGE}")
    for name, content in files.items():
        path = options.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    print(f"{len(files)} files of BFCL v4 in {options.folder}")


def downloaded() -> dict[str, bytes]:
    """Reads the files from the package, without installing it."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        if subprocess.run([sys.executable, *words], check=False).returncode:
            raise SystemExit(
                f"pip cannot download {PACKAGE} from the package index (its message is above). On a machine that can, "
                f"`pip download --no-deps {PACKAGE}` and unzip the wheel; then name the data here: "
                "--from FOLDER/bfcl_eval/data"
            )
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as package:
            return {name: package.read(f"bfcl_eval/data/{name}") for name in SHA256}


def found(folder: Path, name: str) -> bytes:
    """Reads a file of a folder, where it has its own name or that of a copy, `bfcl_v4_CATEGORY[_answers].jsonl`."""
    parent, _, own = name.rpartition("/")
    copy = own.removesuffix(".json").lower() + ("_answers.jsonl" if parent else ".jsonl")
    for path in (folder / name, folder / copy, folder / "bfcl" / name, folder / "bfcl" / copy):
        if path.is_file():
            return path.read_bytes()
    raise SystemExit(f"{folder} has neither {name} nor {copy}")


if __name__ == "__main__":
    main()
