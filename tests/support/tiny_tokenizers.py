"""Small tokenizers, as files: trained on some words, in a moment."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END, PAD = "<|endoftext|>", "<pad>"
WORDS = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen jugs", "naïve café"] * 20


def byte_level(path: Path, *, entries: int = 400) -> Path:
    """Writes byte-level BPE, which loses nothing, and pads and truncates as its file asks for."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(WORDS, trainer)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=6, pad_id=1, pad_token=PAD)
    tokenizer.save(str(path))
    return path


def word_piece(path: Path) -> Path:
    """Writes WordPiece with [UNK], and a template with [CLS] and [SEP]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        WORDS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(path))
    return path


def lossy(path: Path) -> Path:
    """Writes BPE of characters, which drops those that it does not know."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.train_from_iterator(WORDS, trainers.BpeTrainer(vocab_size=100, special_tokens=[END], show_progress=False))
    tokenizer.save(str(path))
    return path


def wide(path: Path, largest: int) -> Path:
    """Writes words of which one has the id `largest`."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "z": largest}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return path


def without_unknown(
    path: Path, kind: str, unknown: str | None, *, byte_fallback: bool, byte_level: bool, lacks: int | None = None
) -> Path:
    """Writes a tokenizer of that model, which knows a and b alone (or all bytes but `lacks`, which Latin-1 can print):
    its unknown token is none (None), one of the model ("known"), one that was added beside the model ("added"), or only
    a name ("named")."""
    tokens = ["a", "b", *(["[UNK]"] if unknown == "known" else [])]
    if byte_fallback:
        tokens += [f"<0x{byte:02X}>" for byte in range(256) if byte != lacks]
    if byte_level:
        tokens += sorted({*pre_tokenizers.ByteLevel.alphabet()} - {*tokens, chr(lacks) if lacks else ""})
    ids = {token: id for id, token in enumerate(tokens)}
    name = None if unknown is None else "[UNK]"
    model = {
        "BPE": lambda: models.BPE(ids, [], unk_token=name, byte_fallback=byte_fallback),
        "Unigram": lambda: models.Unigram([(one, -1.0) for one in tokens], ids.get("[UNK]"), byte_fallback),
        "WordLevel": lambda: models.WordLevel(ids, unk_token=name or "[UNK]"),
        "WordPiece": lambda: models.WordPiece(ids, unk_token=name or "[UNK]"),
    }[kind]()
    tokenizer = Tokenizer(model)
    plain = pre_tokenizers.Whitespace()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if byte_level else plain
    if unknown == "added":
        tokenizer.add_special_tokens(["[UNK]"])
    tokenizer.save(str(path))
    return path
