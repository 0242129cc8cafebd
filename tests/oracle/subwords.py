"""Writes subwords/: small tokenizer.json files in the forms of published families, and what transformers makes of texts.

The tokenizers are trained here, on the sentences below. `subwords/golden.json.gz` has 1,000 texts of many scripts and,
for each tokenizer and text: the tokens (`plain`), those with what the file's post-processor adds (`special`), the text
of the latter without and with special tokens (`skipped`, `kept`; null where it is the text itself).
`tests/train/subwords.rs` reads them.

Any Python with transformers will do (made with transformers 5.24.0 and tokenizers 0.23.3). Run with `--check`
to compare with the files instead of writing them; tokenizers are then those of the files.
"""

import argparse
import gzip
import json
import random
import sys
from pathlib import Path

# Behind the standard library: transformers may load torch, which wants its `profile` and not the script of that name.
sys.path.append(sys.path.pop(0))

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).parent / "subwords"
GOLDEN = FOLDER / "golden.json.gz"
COUNT = 1000
VOCABULARY = 900

SENTENCES = [
    "The quick brown fox jumps over the lazy dog. It's what they'll say, we've heard; I'D rather not.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Straße, Äpfel, naïve café, señor, Ångström.",
    "Portez ce vieux whisky au juge blond qui fume; l'été, où ça? « Voilà » — dit-il…",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Привет, мир! Ёлка і їжак.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Καλημέρα κόσμε, πώς είσαι;",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. السَّلَامُ عَلَيْكُمْ ١٢٣",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם עוֹלָם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। नमस्ते दुनिया १२३",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน สวัสดีชาวโลก",
    "我能吞下玻璃而不伤身体。你好，世界！天地玄黃，宇宙洪荒。",
    "いろはにほへと ちりぬるを わがよたれそ つねならむ。こんにちは世界、カタカナ ｶﾀｶﾅ",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 안녕하세요 세계",
    "க் யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்",
    "აბგდ გამარჯობა მსოფლიო. Բարեւ աշխարհ։ ሰላም ልዑል። မင်္ဂလာပါ ខ្មែរ ສະບາຍດີ བོད་ཡིག",
    "def main(argv: list[str]) -> int:\n    for i, x in enumerate(argv):\n\t\tprint(f\"{i:>4}: {x!r}\")\n    return 0\n",
    "fn main() { let x = vec![1u8, 2, 3]; println!(\"{:?}\", x.iter().map(|y| y + 1).collect::<Vec<_>>()); } // ok",
    "{\"key\": [1, 2.5e-3, null, true], \"url\": \"https://example.org/a?b=c&d=%20#e\"}\r\n<p class='x'>&amp;</p>",
    "Pi is 3.14159265358979, 1,234,567.89 is a number, and so are 0xDEADBEEF, 10^100, ½, ⅷ, ² and 五.",
    "🙂 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 ❤️ 1️⃣ ☃ 🧑🏿‍🚀 … ∑∫√∞ ≠ ≤ → ⇒ ♞ ©®™",
]
ODD = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\n \n", "a\n\n\nb", "  a", "a  ", "\u00a0", "\u3000", "\u200b",
    "\u0000", "\u0001\u0002", "\u001b[31mred\u001b[0m", "\u007f", "\u0085", "\ufeff", "\ufffd", "\ufffd\ufffd", "\uffff",
    "\u0301", "e\u0301", "\u0301\u0301\u0301a", "A\u030a \u212b \u00c5", "\u200d", "\u200d\u200d", "\ufe0f", "\u202e abc \u202c",
    "\U0010ffff", "\U000e0001", "𝕬𝖇𝖈 𝟙𝟚𝟛", "ﬁ ﬀ ŀ Ǆ", "ｆｕｌｌ ｗｉｄｔｈ", "\u1112\u1161\u11ab", "각\u11a8", "▁", "▁▁a ▁b", "Ġ", "ĠaĊ", "<0x41>",
    "<0xE4><0xBD>", "'S 'T 'LL 'Re 'VE", "don't can’t", "x" * 60, " " * 33 + "x", "\n" * 17, "1" * 20, "=" * 40, "a\u0000b",
]  # fmt: skip
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(regex, special, normalizer=None):
    """BPE on bytes, as in Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=normalizer is None))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    split = pre_tokenizers.Split(Regex(regex), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(special), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens(special)
    return tokenizer


def around(tokenizer, first=None, last=None):
    """Puts special tokens around texts."""
    single = " ".join(filter(None, [first, "$A", last]))
    named = [(name, tokenizer.token_to_id(name)) for name in (first, last) if name]
    return processors.TemplateProcessing(single=single, pair=f"{single} $B:1", special_tokens=named)


def llama_3():
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = byte_level(LLAMA_3, special)
    template = around(tokenizer, "<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return tokenizer


def qwen():
    tokenizer = byte_level(QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizers.NFC())
    # Tokens that are added, but not special.
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def sentence_pieces(special, spaces):
    """BPE on characters with bytes for those that are not known, as SentencePiece makes it."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 256, limit_alphabet=300, show_progress=False)
    trained.train_from_iterator(SENTENCES, trainer)
    model = json.loads(trained.to_str())["model"]
    learned = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    tokens = [*special, *BYTES, *spaces, *(token for token in learned if token not in spaces)]
    # Runs of spaces are tokens, and merged from shorter ones.
    merges = [(spaces[0] * part, spaces[0] * (len(run) - part)) for run in spaces[1:] for part in range(1, len(run))]
    merges += [tuple(pair) for pair in model["merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens(special)
    return tokenizer


SPACES = ["▁" * count for count in (1, 2, 3, 4)]


def llama_2():
    tokenizer = sentence_pieces(["<unk>", "<s>", "</s>"], SPACES)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = around(tokenizer, "<s>")
    return tokenizer


def mistral():
    tokenizer = sentence_pieces(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], SPACES)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = around(tokenizer, "<s>")
    return tokenizer


def gemma():
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = sentence_pieces(special, SPACES)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = around(tokenizer, "<bos>")
    return tokenizer


def unigram():
    special = ["<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.Unigram())
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = around(tokenizer, None, "</s>")
    return tokenizer


FORMS = {
    "llama-3": llama_3, "qwen": qwen, "llama-2": llama_2, "mistral": mistral, "gemma": gemma, "unigram": unigram,
}  # fmt: skip
SPECIAL = [
    "<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<s>", "</s>", "[INST]", "<bos>",
    "<start_of_turn>", "<unk>", "<pad>", "<|im_start", "|>", "<",
]  # fmt: skip
RANGES = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F),
    (0xE00, 0xE5B), (0x1100, 0x11FF), (0x2000, 0x206F), (0x2190, 0x22FF), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF),
]  # fmt: skip


def texts():
    """The texts: those that are odd, the sentences, parts of these joined, and characters of many blocks."""
    generator = random.Random(7)
    found = [*ODD, *SENTENCES]
    joints = ["", " ", "  ", "\n", "\n\n", "\t", ", ", "   \n", "\u200d"]
    while len(found) < COUNT:
        parts = []
        for _ in range(generator.randint(1, 4)):
            kind = generator.random()
            if kind < 0.55:
                sentence = generator.choice(SENTENCES)
                start = generator.randrange(len(sentence))
                parts.append(sentence[start : start + generator.randint(1, 30)])
            elif kind < 0.7:
                parts.append(generator.choice(SPECIAL))
            elif kind < 0.8:
                parts.append(generator.choice(ODD))
            else:
                first, last = generator.choice(RANGES)
                parts.append("".join(chr(generator.randint(first, last)) for _ in range(generator.randint(1, 5))))
        found.append("".join(part + generator.choice(joints) for part in parts))
    return found


def golden(name, texts):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / f"{name}.json"))
    columns = {"plain": [], "special": [], "skipped": [], "kept": []}
    for text in texts:
        plain, special = (tokenizer(text, add_special_tokens=added)["input_ids"] for added in (False, True))
        decoded = [tokenizer.decode(special, skip_special_tokens=skipped) for skipped in (True, False)]
        skipped, kept = (None if found == text else found for found in decoded)
        for column, value in zip(columns.values(), (plain, special, skipped, kept)):
            column.append(value)
    print(f"{name}: {len(tokenizer)} tokens, {sum(map(len, columns['plain']))} for all texts", flush=True)
    return columns


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if not arguments.check:
        for name, form in FORMS.items():
            # Without indentation: the files are read by programs alone.
            text = json.dumps(json.loads(form().to_str()), ensure_ascii=False, separators=(",", ":"))
            (FOLDER / f"{name}.json").write_text(text + "\n")
    all_texts = texts()
    found = {"texts": all_texts, "tokenizers": {name: golden(name, all_texts) for name in FORMS}}
    if not arguments.check:
        text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        GOLDEN.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    elif json.loads(gzip.decompress(GOLDEN.read_bytes())) != found:
        raise SystemExit(f"{GOLDEN.name} differs")


if __name__ == "__main__":
    main()
