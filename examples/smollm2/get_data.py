"""Writes the word problems of the recipe: MAWPS to train and validate on, SVAMP to test on.

The files are train.jsonl, validation.jsonl and test.json.

    python get_data.py data                   downloads the five files (1 MB)
    python get_data.py data --from FOLDER     takes them from a folder
    python get_data.py data --split-by text   validates on problems that no training problem repeats

Problems that two parts of MAWPS share are kept once; none of them is in SVAMP. Their order is random, but always the
same. MAWPS has many problems that differ in their numbers alone. By default they are divided at random, as in the
published experiment: 37 of its 200 validation problems are training problems but for their numbers, 3 of them but for a
comma ("61,921" and "61921"). With `--split-by text` such problems are in one file, and 15 copies are dropped; 26 of 204
validation problems are still nearly a training problem, with another name or another word.
"""

import argparse
import json
import random
import re
import urllib.request
from collections import Counter
from pathlib import Path

SVAMP = "https://raw.githubusercontent.com/arkilpatel/SVAMP/main/SVAMP.json"
MAWPS = "https://raw.githubusercontent.com/ZubinGou/math-evaluation-harness/main/data/mawps"
VALIDATION = 200
"""Problems of MAWPS that are held out; a few more where a text is kept together."""
PARTS = ("singleop", "addsub", "singleeq", "multiarith")


def main() -> None:
    """Reads the problems, drops what occurs twice, and writes three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write into")
    parser.add_argument("--from", dest="source", type=Path, help="folder with svamp*.json and the parts of MAWPS")
    parser.add_argument(
        "--split-by",
        choices=("problem", "text"),
        default="problem",
        help="what is in train.jsonl or validation.jsonl, never in both: a problem (as published), or a text without "
        "its numbers (default: %(default)s)",
    )
    options = parser.parse_args()
    same, alike = (letters, letters) if options.split_by == "problem" else (plain, without_numbers)
    svamp = json.loads(read(options.source, "svamp", ".json", SVAMP))
    tested = {alike(f"{row['Body']} {row['Question']}") for row in svamp}
    problems: dict[str, dict[str, str]] = {}
    for part in PARTS:
        for line in read(options.source, part, ".jsonl", f"{MAWPS}/{part}.jsonl").splitlines():
            row = json.loads(line)
            problems.setdefault(same(row["input"]), row)
    rows = [row for row in problems.values() if alike(row["input"]) not in tested]
    random.Random(0).shuffle(rows)
    sizes = Counter(alike(row["input"]) for row in rows)  # in the order of the rows
    held_out: set[str] = set()
    for text in sizes:
        if sum(sizes[each] for each in held_out) >= min(VALIDATION, len(rows) // 2):
            break
        held_out.add(text)
    options.folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, wanted in (("train", False), ("validation", True)):
        part_rows = [row for row in rows if (alike(row["input"]) in held_out) == wanted]
        text = "".join(json.dumps(row) + "\n" for row in part_rows)
        (options.folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
        written[name] = len(part_rows)
    (options.folder / "test.json").write_text(json.dumps(svamp), encoding="utf-8")
    print(
        f"{written['train']} problems to train on, {written['validation']} to validate with, {len(svamp)} to test on, "
        f"in {options.folder}; in MAWPS and SVAMP: {len(problems) - len(rows)}"
    )


def letters(text: str) -> str:
    """Reduces a text to its letters and digits; a number with a comma is two numbers."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def plain(text: str) -> str:
    """Reduces a text to its letters and digits; "61,921" and "61921" are the same number."""
    return letters(re.sub(r"(?<=\d),(?=\d)", "", text))


def without_numbers(text: str) -> str:
    """Reduces a text to its letters, with 0 for each number."""
    return letters(re.sub(r"\d[\d,]*(?:\.\d+)?", "0", text))


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
