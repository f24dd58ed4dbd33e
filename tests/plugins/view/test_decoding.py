"""Token ids as text: characters that several tokens share are one piece."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from hermes_plugins.view.present import Decoder
from hermes_queue.errors import ConfigurationError


class OctetTokenizer:
    """A tokenizer whose ids are octets of UTF-8; like the real one, it shows halves as U+FFFD."""

    @classmethod
    def from_file(cls, path: str) -> OctetTokenizer:
        if not path.endswith("tokenizer.json"):
            raise Exception("expected value at line 1")
        return cls()

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return bytes(ids).decode(errors="replace")

    def id_to_token(self, number: int) -> str | None:
        if not 0 <= number < 1 << 32:
            raise OverflowError("number too large to fit in target type")
        return str(number) if number < 256 else None


@pytest.fixture
def decoder(monkeypatch, tmp_path) -> Decoder:
    library = ModuleType("tokenizers")
    vars(library).update(vars(SimpleNamespace(Tokenizer=OctetTokenizer)))
    monkeypatch.setitem(sys.modules, "tokenizers", library)
    return Decoder(tmp_path / "tokenizer.json")


def test_ids_that_share_a_character_are_one_piece(decoder):
    assert decoder.pieces(list("a😀é".encode())) == [("a", 1), ("😀", 4), ("é", 2)]


def test_ids_that_are_no_text_are_shown_each_id_once(decoder):
    pieces = decoder.pieces([0x80] * 40 + [0x61])
    assert sum(count for _, count in pieces) == 41
    assert pieces[-1][0].endswith("a")


def test_an_id_that_the_tokenizer_does_not_know_is_named(decoder):
    ids = [0xF0, 300, 0x61, -1, 2**40]
    shown = ["\ufffd", "⟨id 300⟩", "a", "⟨id -1⟩", "⟨id 1099511627776⟩"]
    assert decoder.pieces(ids) == [(text, 1) for text in shown]


def test_controls_among_tokens_are_signs(decoder):
    assert decoder.pieces(list(b"\x1b[2J"))[0] == ("␛", 1)


def test_a_file_that_holds_no_tokenizer_is_an_error_of_configuration(decoder, tmp_path):
    with pytest.raises(ConfigurationError, match="no tokenizer file"):
        Decoder(tmp_path / "config.txt")


def test_without_the_package_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigurationError, match="pip install tokenizers"):
        Decoder(tmp_path / "tokenizer.json")
