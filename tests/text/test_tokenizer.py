"""Encoding, decoding, and tokens as shown beside logprobs."""

import threading

import pytest

from radiance_jax.errors import ModelError, UserError
from radiance_jax.text.tokenizer import Tokenizer, byte_level_bytes, flat_ids
from tiny_tokenizers import FAMILIES, byte_level


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level()


@pytest.mark.parametrize("text", ["", "the the", "12 345", "日本 😀 é", "a\n\n  b\t", "two words é!", "<|im_end|>x"])
def test_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False).replace("\ufffd!", "é!") == text
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_special_tokens_are_known_skipped_and_named(tokenizer):
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.encode("<|im_start|>a<|im_end|>")[::2] == [1, 2]
    assert tokenizer.decode([1, *tokenizer.encode("a"), 2]) == "a"
    assert tokenizer.special_token("eos_token") == "<|im_end|>" and tokenizer.special_token("mask_token") is None
    assert FAMILIES["llama 2"].special_token("bos_token") == "<s>"
    assert tokenizer.token_id("<|im_end|>") == 2 and tokenizer.token_id("nope") is None


def test_token_bytes_join_to_the_text(tokenizer):
    text = "the 12 日本 😀"
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.token_string(tokenizer.token_id("ðŁ")) == "\ufffd"
    assert tokenizer.token_string(2) == "<|im_end|>"
    assert tokenizer.token_bytes(10**6) == b"" == tokenizer.token_bytes(-1)
    llama = FAMILIES["llama 2"]
    assert llama.token_bytes(llama.token_id("<0xE6>")) == b"\xe6"
    assert llama.token_bytes(llama.token_id("▁the")) == b" the"
    assert llama.token_string(1) == "<s>"


def test_the_alphabet_covers_every_byte():
    assert byte_level_bytes("Ġcafé") == b" caf\xe9" and byte_level_bytes("a b") == b"a b"


def test_padding_and_truncation_in_the_file_are_ignored(tokenizer):
    backend = tokenizer._backend.from_str(tokenizer._backend.to_str())
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert len(Tokenizer(backend.to_str().encode()).encode("a b c d")) == len(tokenizer.encode("a b c d"))


def test_bad_files_and_bad_text_are_named(tokenizer):
    for data in (b"", b"{}", b"\xff", b"[1]"):
        with pytest.raises(ModelError, match="tokenizer.json"):
            Tokenizer(data)
    with pytest.raises(ModelError, match="tokenizer_config.json"):
        Tokenizer(tokenizer._backend.to_str().encode(), b"{")
    with pytest.raises(UserError, match="Unicode"):
        tokenizer.encode("\ud800")

    class Empty:
        def file(self, name):
            return None

    with pytest.raises(ModelError, match="convert again"):
        Tokenizer.from_model(Empty())


def test_ids_from_users_are_checked():
    assert flat_ids([0, 9], 10) == [0, 9]
    for bad in ([10], [-1], [True], ["1"], [1.0]):
        with pytest.raises(UserError, match="prompt must hold token ids from 0 to 9"):
            flat_ids(bad, 10)


def test_threads_share_one(tokenizer):
    texts, wrong = [f"the {i} 日本 😀" * 20 for i in range(8)], []
    want = [tokenizer.encode(text) for text in texts]

    def work(index):
        for _ in range(20):
            ids = tokenizer.encode(texts[index])
            if ids != want[index] or tokenizer.decode(ids) != texts[index]:
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []
