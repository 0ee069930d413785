"""Writes the word problems of the recipe: MAWPS to train and validate on, SVAMP to test on.

The files are train.jsonl, validation.jsonl and test.json.

    python get_data.py data                 downloads the five files (1 MB)
    python get_data.py data --from FOLDER   takes them from a folder

Problems that two parts of MAWPS share are kept once; none of them is in SVAMP. Their order is random, but always the
same.
"""

import argparse
import json
import random
import re
import urllib.request
from pathlib import Path

SVAMP = "https://raw.githubusercontent.com/arkilpatel/SVAMP/main/SVAMP.json"
MAWPS = "https://raw.githubusercontent.com/ZubinGou/math-evaluation-harness/main/data/mawps"
VALIDATION = 200
"""Problems of MAWPS that are held out."""
PARTS = ("singleop", "addsub", "singleeq", "multiarith")


def main() -> None:
    """Reads the problems, drops what occurs twice, and writes two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write into")
    parser.add_argument("--from", dest="source", type=Path, help="folder with svamp*.json and the parts of MAWPS")
    options = parser.parse_args()
    svamp = json.loads(read(options.source, "svamp", ".json", SVAMP))
    tested = {letters(f"{row['Body']} {row['Question']}") for row in svamp}
    problems: dict[str, dict[str, object]] = {}
    for part in PARTS:
        for line in read(options.source, part, ".jsonl", f"{MAWPS}/{part}.jsonl").splitlines():
            row = json.loads(line)
            problems.setdefault(letters(row["input"]), row)
    shared = tested & problems.keys()
    rows = [row for text, row in problems.items() if text not in shared]
    random.Random(0).shuffle(rows)
    options.folder.mkdir(parents=True, exist_ok=True)
    held_out = min(VALIDATION, len(rows) // 2)
    for name, part in (("validation", rows[:held_out]), ("train", rows[held_out:])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (options.folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (options.folder / "test.json").write_text(json.dumps(svamp), encoding="utf-8")
    print(
        f"{len(rows) - held_out} problems to train on, {held_out} to validate with, {len(svamp)} to test on, in "
        f"{options.folder}; in MAWPS and SVAMP: {len(shared)}"
    )


def letters(text: str) -> str:
    """Reduces a text to what makes it the same problem."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def read(folder: Path | None, name: str, suffix: str, url: str) -> str:
    """Reads the file of a name in a folder, or at its address."""
    if folder is None:
        with urllib.request.urlopen(url) as response:
            return response.read().decode()
    files = sorted(path for path in folder.iterdir() if path.name.lower().startswith(name) and path.suffix == suffix)
    if len(files) != 1:
        raise SystemExit(f"{folder} must hold one file {name}*{suffix}; it holds {len(files)}")
    return files[0].read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
