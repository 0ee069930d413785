"""Writes 300 questions of the training set of HotpotQA: 220 to train on, 30 to validate with, 50 to test on.

    python get_data.py data                 downloads HotpotQA's training set (566 MB)
    python get_data.py data --from FOLDER   takes them from the JSON files in a folder

The files are train.json, validation.json and test.json, in HotpotQA's own format; questions.json names the questions.
"""

import argparse
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HOTPOTQA = "http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_train_v1.1.json"
QUESTIONS = Path(__file__).with_name("questions.json")


def main() -> None:
    """Finds the questions, and writes a file per split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write into")
    parser.add_argument("--from", dest="source", type=Path, help="folder with JSON files that hold the questions")
    options = parser.parse_args()
    splits: dict[str, list[str]] = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    wanted = {name for ids in splits.values() for name in ids}
    found = {row["_id"]: row for row in rows(options.source) if row["_id"] in wanted}
    if missing := wanted - found.keys():
        raise SystemExit(f"{len(missing)} of {len(wanted)} questions are not there, such as {min(missing)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for split, ids in splits.items():
        text = json.dumps([found[name] for name in ids], ensure_ascii=False)
        (options.folder / f"{split}.json").write_text(text, encoding="utf-8")
    counts = ", ".join(f"{len(ids)} {split}" for split, ids in splits.items())
    print(f"{counts} questions in {options.folder}")


def rows(folder: Path | None) -> Iterator[dict[str, object]]:
    """Reads HotpotQA's rows: of the files named hotpot*.json in a folder, or of the training set at its address."""
    if folder is None:
        try:
            with urllib.request.urlopen(HOTPOTQA, timeout=60) as response:
                yield from json.load(response)
        except OSError as error:
            raise SystemExit(
                f"cannot download HotpotQA's training set (566 MB) from {HOTPOTQA}: {error}. Download it on a machine "
                "with a network, and name its folder here: --from FOLDER"
            ) from error
        return
    files = sorted(folder.glob("hotpot*.json"))
    if not files:
        raise SystemExit(f"{folder} has no file hotpot*.json, such as {HOTPOTQA.rpartition('/')[2]}")
    for path in files:
        yield from json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
