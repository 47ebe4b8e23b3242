"""Numbers as single tokens of a base: texts stay what they were, and the rows of numbers begin in their order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from rtcontrol.agents.tool import Tools
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.base import adopt_base
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.finetune.run import Job, finetune
from rtcontrol.models.train.number_tokens import number_ids, with_number_tokens
from rtcontrol.models.train.seen_vocabulary import seen_by
from rtcontrol.models.train.vocabulary import add_st_tokens, build_tokenizer
from rtcontrol.training.model_size import from_base
from tests.models.small import Oracle, build, law, prompt_of, shown, tool
from tests.models.train.finetune.rows import qwen_base, write

# As its rule says, written anew: a mark with a digit or a letter behind it is a part of the number.
ALONE = re.compile(r"(?:(?<= )|^)(?!-0)-?(?:[1-9]?[0-9]|1[0-9][0-9]|200)(?=[ ;)]|[,:](?![^\W_])|$)")
WORDS = st.sampled_from(["x", "y", "-12", "140", "0.7", "-1.25", "200", "201", "-0", "12.5.3", "v12", "a_3", "2026-11",
                         "1234", "ü", "<function>", "é9", "٣", "½", ",", ":", '"', "{", "\n", " "])  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=30), st.lists(WORDS, max_size=8).map(" ".join), st.lists(WORDS, max_size=8).map("".join)
)


def sentence_piece() -> Tokenizer:
    """As Gemma's: a space is a letter, and all text is one piece."""
    letters = [*"▁abcdefghijklmnopqrstuvwxyz0123456789-.,:", *(f"<0x{byte:02X}>" for byte in range(256))]
    joined = [("▁", "x"), ("▁", "y"), ("▁", "a"), ("▁a", "t"), ("▁", "-")]
    pieces = [*letters, *(a + b for a, b in joined)]
    made = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, joined, byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made


def qwen_like() -> Tokenizer:
    """As Qwen's: byte pairs behind a pattern that cuts numbers into digits."""
    made = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    pattern = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    pieces = [
        pre_tokenizers.Split(pattern, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence(pieces), decoders.ByteLevel()
    return made


MADE = {"sentence pieces": sentence_piece, "byte pairs": qwen_like}
PAIRS = {kind: (made(), with_number_tokens(made())) for kind, made in MADE.items()}


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("kind", MADE)
@law(400)
@given(text=TEXTS)
def test_every_text_is_written_and_read_as_before_and_lone_numbers_are_one_token(kind: str, text: str) -> None:
    before, after = PAIRS[kind]
    made = ids(after, text)
    assert after.decode(made) == before.decode(ids(before, text))
    own = {i for i in made if i >= before.get_vocab_size()}
    if not re.search(r"\d", text):
        assert made == ids(before, text)
    assert all(re.fullmatch(r"[Ġ▁]?-?\d+(\.\d+)?", after.id_to_token(i)) for i in own)
    for number in ALONE.findall(text):
        assert any(after.id_to_token(i).lstrip("Ġ▁") == number for i in made), number


@pytest.mark.parametrize("kind", MADE)
def test_names_dates_versions_and_long_numbers_keep_the_tokens_that_they_had(kind: str) -> None:
    before, after = PAIRS[kind]
    kept = (
        "v12|a_3|12.5.3|1234|x 201|3.14|12th|2026-11-28|at 12:30|COVID-19|10/11/2026|12,345.6|1.5e-9|v1-12|10,0|½ of ٣"
    )
    for text in kept.split("|"):
        assert ids(after, text) == ids(before, text), text
    for text in ("10, 0", "x: 10,", "(10)", "10;0", "y 10"):
        assert "10" in {after.id_to_token(i).lstrip("Ġ▁") for i in ids(after, text)}, text
    for text in ("-12", " -12", " 0.7", " 200", " -1.25"):
        assert len(ids(after, text)) == 1, text


def test_the_true_tokenizer_of_qwen_takes_them_too(data: Path) -> None:
    before = Tokenizer.from_file(str(data / "qwen2_tokenizer" / "tokenizer.json"))
    after = with_number_tokens(before)
    text = 'x -12, y 140; "minimum": 0.4 of 2026 and v12: don\'t\n\n  go'
    assert after.decode(ids(after, text)) == text
    assert [after.id_to_token(i) for i in ids(after, text) if i >= 151_646] == ["Ġ-12", "Ġ140", "Ġ0.4"]
    plain = 'Call {"name": "set_light", "arguments": {}} now; wait\n'
    assert ids(after, plain) == ids(before, plain)


def test_a_tokenizer_that_cannot_be_given_numbers_is_refused() -> None:
    whole = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    bytes_alone = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    known = build_tokenizer(["go"], ["10", "20"])
    prepended = sentence_piece()
    prepended.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    control = sentence_piece()
    control.add_special_tokens(["§"])
    more = ((prepended, "a space before every text"), (control, "the text '§' as control"))
    refused = (*more, (whole, "WordLevel"), (bytes_alone, "cuts text in a way"), (known, "as tokens already"))
    for tokenizer, message in refused:
        with pytest.raises(UserError, match=message) as error:
            with_number_tokens(tokenizer)
        assert "--numbers" in error.value.remedy


def test_ids_are_the_same_in_every_process() -> None:
    code = "from tests.models.train.test_number_tokens import *; print(STTokenizer(PAIRS['byte pairs'][1]).digest())"
    made = [
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
        for seed in ("1", "2")
    ]
    assert made[0].stdout and made[0].stdout == made[1].stdout, made[0].stderr


def test_the_rows_of_numbers_are_among_those_that_are_trained(tmp_path: Path, data: Path) -> None:
    base = adopt_base(qwen_base(tmp_path / "plain", data, kind="qwen3"), tmp_path / "base", numbers=True).folder
    own = number_ids(Tokenizer.from_file(str(base / "tokenizer.json")))
    learner = from_base(str(base), Tools([tool("go", v=["left", "right"])]), False)
    seen = seen_by(learner.model)
    assert seen is not None and {*own} <= {*seen.ids[: seen.trained].tolist()}
    asked = {
        "instruction": "go",
        "observation": "x -12",
        "history": [],
        "tools": [tool("go", v=["left"])],
        "call": {"name": "go", "arguments": {"v": "left"}},
    }
    rows = write(tmp_path / "rows.jsonl", [asked] * 4)
    recipe = FinetuneRecipe(
        rank=2, vocabulary="rows", embedding_rate=0.1, warmup=0.0, steps=2, groups=2, device_groups=2, dtype="fp32"
    )
    finetune(Job(str(base), (rows,), tmp_path / "run", recipe))
    before, after = (load_file(f / "model.safetensors") for f in (base, tmp_path / "run" / "model"))
    moved = (before["model.embed_tokens.weight"] != after["model.embed_tokens.weight"]).any(-1).nonzero().flatten()
    assert next(i for i, text in own.items() if text == "Ġ-12") in moved.tolist()


def test_a_base_with_numbers_decides_like_the_reference_and_its_numbers_stand_in_their_order(
    tmp_path: Path, data: Path
) -> None:
    plain = qwen_base(tmp_path / "plain", data)
    given = Tokenizer.from_file(str(plain / "tokenizer.json"))
    made = adopt_base(plain, tmp_path / "out", numbers=True)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    own = number_ids(tokenizer)
    assert own and not number_ids(given)
    assert min(own) >= 151_665 and max(own) < made.tokenizer.special_id("<content>")
    weight = load_file(tmp_path / "out" / "model.safetensors")["model.embed_tokens.weight"].float()
    lengths = weight[list(own)].norm(dim=1)
    assert torch.allclose(lengths, weight[: min(own)].norm(dim=1).median().expand(len(own)), rtol=0.02)
    row = {text.lstrip("Ġ"): weight[i] for i, text in own.items() if text.startswith("Ġ")}

    def near(a: str, b: str) -> float:
        return float(torch.nn.functional.cosine_similarity(row[a], row[b], 0))

    assert near("50", "52") > near("50", "60") > near("50", "-150")
    assert near("0.50", "50") > near("0.50", "80")
    tools = [tool("go", v=[-12, 3, 140]), tool("stop")]
    oracle = Oracle.load(tmp_path / "out")
    decider = build(tmp_path / "out", tools, dtype="fp32")
    expected = oracle.decide(decider.plan, prompt_of(decider, "x -12 y 140", "go to 3"))
    assert oracle.margin < 1e-3 or shown(decider.decide("x -12 y 140", "go to 3")) == expected


def test_gemmas_own_tokenizer_takes_them_too() -> None:
    path = os.environ.get("RTCONTROL_GEMMA")
    if not path:
        pytest.skip("RTCONTROL_GEMMA names no GGUF file of Gemma 3 270M")
    from rtcontrol.models.train.gguf_file import read_gguf

    before = read_gguf(Path(path), lambda name, done, total: None).tokenizer
    after = with_number_tokens(before)
    add_st_tokens(after, ST_TOKENS)
    known = STTokenizer(after)
    assert [known.decode([i]) for i in known.encode("x -12 y 140 hover at 0.7")] == [
        "x", " -12", " y", " 140", " hover", " at", " 0.7",
    ]  # fmt: skip
    plain = "Please turn the light in the kitchen on, and don't wait."
    assert known.encode(plain) == ids(before, plain)
    for control in ("<start_of_turn>", "<end_of_turn>", "<0x0A>", "<unused3>", "<arg1>"):
        assert not {*known.encode(control)} & {known.special_id(name) for name in known.specials if name[0] == "<"}
        assert known.decode(known.encode(control)) == control
