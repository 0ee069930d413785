"""Credentials are replaced wherever they stand, however they were escaped."""

from __future__ import annotations

import json

from agent_r1_gym.support.secrets import HIDDEN, Secrets


def test_words_of_a_credential_are_hidden_and_short_ones_are_not() -> None:
    secrets = Secrets(["Bearer abcdefg", "en"])
    assert secrets.hide("abcdefg, Bearer abcdefg, Bearer, en") == f"{HIDDEN}, {HIDDEN}, Bearer, en"
    assert "abcdefg" not in repr(secrets)


def test_decoded_json_hides_what_escapes_would_have_carried_through() -> None:
    secrets = Secrets(["abc/def+xyz", "pässwörd"])
    text = r'{"a": ["abc\/def+xyz", 7], "p\u00e4ssw\u00f6rd": {"b": "my p\u00e4ssw\u00f6rd"}, "n": null}'
    assert secrets.hide_in(json.loads(text)) == {"a": [HIDDEN, 7], HIDDEN: {"b": f"my {HIDDEN}"}, "n": None}
