"""Writes the word problems of the recipe: MAWPS to train and validate on, SVAMP to test on.

The files are train.jsonl, validation.jsonl and test.json.

    python get_data.py data                 downloads the five files (1 MB)
    python get_data.py data --from FOLDER   takes them from a folder

Problems that two parts of MAWPS share are kept once; none of them is in SVAMP. Their order is random, but always the
same. The folder `irrelevant` has the same problems, half of those to train on and all of those to validate with after a
sentence of another problem that has a number: the numbers of MAWPS are nearly always needed, those of SVAMP often not.
"""

import argparse
import json
import random
import re
import urllib.request
from pathlib import Path

from agent_r1_gym.data.official.svamp import official

SVAMP = "https://raw.githubusercontent.com/arkilpatel/SVAMP/main/SVAMP.json"
MAWPS = "https://raw.githubusercontent.com/ZubinGou/math-evaluation-harness/main/data/mawps"
VALIDATION = 200
"""Problems of MAWPS that are held out."""
Row = dict[str, object]
NOT_ALONE = (
    "He",
    "She",
    "They",
    "It",
    "Her",
    "His",
    "Their",
    "If",
    "Then",
    "Each",
    "After",
    "When",
    "So",
    "But",
    "This",
)
"""Words that begin a sentence which leans on another."""
PARTS = ("singleop", "addsub", "singleeq", "multiarith")


def main() -> None:
    """Reads the problems, drops what occurs twice, and writes two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write into")
    parser.add_argument("--from", dest="source", type=Path, help="folder with svamp*.json and the parts of MAWPS")
    options = parser.parse_args()
    svamp: list[Row] = json.loads(read(options.source, "svamp", ".json", SVAMP))
    tested = {letters(f"{row['Body']} {row['Question']}") for row in svamp}
    problems: dict[str, Row] = {}
    for part in PARTS:
        for line in read(options.source, part, ".jsonl", f"{MAWPS}/{part}.jsonl").splitlines():
            row = json.loads(line)
            problems.setdefault(letters(row["input"]), row)
    shared = tested & problems.keys()
    rows = [row for text, row in problems.items() if text not in shared]
    random.Random(0).shuffle(rows)
    options.folder.mkdir(parents=True, exist_ok=True)
    held_out = min(VALIDATION, len(rows) // 2)
    train, validation = rows[held_out:], rows[:held_out]
    write(options.folder, train, validation, svamp)
    statements = [sentence for row in train for sentence in sentences_with_a_number(str(row["input"]))]
    write(
        options.folder / "irrelevant",
        with_irrelevant(train, statements, share=0.5),
        with_irrelevant(validation, statements, share=1.0),
        svamp,
    )
    print(
        f"{len(rows) - held_out} problems to train on, {held_out} to validate with, {len(svamp)} to test on, in "
        f"{options.folder}; in MAWPS and SVAMP: {len(shared)}"
    )


def write(folder: Path, train: list[Row], validation: list[Row], svamp: list[Row]) -> None:
    """Writes the three files of a data set."""
    folder.mkdir(exist_ok=True)
    for name, part in (("validation", validation), ("train", train)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    (folder / "test.json").write_text(json.dumps(svamp), encoding="utf-8")


def with_irrelevant(rows: list[Row], statements: list[str], *, share: float) -> list[Row]:
    """Puts a statement with a number before a share of the problems; it is never one of the problem itself."""
    random_ = random.Random(0)
    changed = []
    for row in rows:
        others = [each for each in random_.sample(statements, min(9, len(statements))) if each not in str(row["input"])]
        if others and random_.random() < share:
            known = official(row, {})  # the way to the answer, which the new number must not change
            changed.append({**known, "question": f"{others[0]} {known['question']}"})
        else:
            changed.append(row)
    return changed


def sentences_with_a_number(text: str) -> list[str]:
    """Lists the sentences of a problem that state a number and can stand alone."""
    text = re.sub(r"\b(Mrs?)\.", r"\1", text)
    found = (sentence.strip() for sentence in re.findall(r"(?:[^.!?]|(?<=\d)\.(?=\d))+[.!?]", text))
    alone = (sentence for sentence in found if sentence.endswith(".") and sentence.split()[0] not in NOT_ALONE)
    return [sentence for sentence in alone if re.search(r"\d", sentence)]


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
