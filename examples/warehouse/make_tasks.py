"""Writes tasks.jsonl: 300 tasks, drawn with a seed; each has its item, its stock, its order and its answer."""

import json
import random
from pathlib import Path

ITEMS = ("bolts", "nails", "screws", "hinges", "planks", "ropes", "tiles", "pipes")


def make_task(number: int, rng: random.Random) -> dict[str, object]:
    """Returns one row of the file."""
    item = rng.choice(ITEMS)
    stock = {name: rng.randrange(10, 100) for name in sorted({item, *rng.sample(ITEMS, 3)})}
    kind = ("look", "order", "order if low")[number % 3]
    quantity, below = 0, 0
    prompt = f"How many {item} are in stock?"
    if kind != "look":
        quantity = rng.randrange(10, 60)
        below = 1_000 if kind == "order" else rng.choice((30, 50, 70))
        when = "" if kind == "order" else f" if fewer than {below} are in stock"
        prompt = f"Order {quantity} {item}{when}. How many {item} are in stock then?"
    after = stock[item] + (quantity if stock[item] < below else 0)
    metadata = {"kind": kind, "item": item, "stock": stock, "quantity": quantity, "below": below}
    return {"id": f"w{number}", "prompt": prompt, "answers": [str(after)], "metadata": metadata}


if __name__ == "__main__":
    rng = random.Random(0)
    lines = [json.dumps(make_task(number, rng)) + "\n" for number in range(300)]
    (Path(__file__).parent / "tasks.jsonl").write_text("".join(lines), encoding="utf-8")
