"""Writes the tokenizer goldens: token ids as Hugging Face tokenizers give them.

  pip install tokenizers==0.23.3 gguf==0.19.0
  python tests/golden/tokenizer/make_golden.py [--models FOLDER] [--llama-cpp FOLDER]

Run at the root of the repository.
  tiny-KIND.gguf, tiny-KIND.json  a small vocabulary for each pre-tokenizer, trained here on the
                  system's Python library, and its ids: tests that always run.
  sweep.json      digests of pieces, and of NFC, of texts around every interesting character.
                  Ids alone would not do: a wrong cut shows only where some merge crosses it.
  NAME.json       ids for real vocabularies, too big to commit: with --models the folder that holds
                  smollm2-135m.gguf and qwen2.5-coder-0.5b.gguf (scripts/fetch_model.sh), with
                  --llama-cpp llama.cpp's models/ folder inside the llama-cpp-python sdist, whose
                  own .inp and .out files must agree as well.
"""
import argparse
import glob
import hashlib
import itertools
import json
import pathlib
import struct
import sys

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import trainers

HERE = pathlib.Path('tests/golden/tokenizer')
COMMAND = 'python tests/golden/tokenizer/make_golden.py'
NUM_MERGES = 1500
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

CONTROL_TOKENS = ['<|endoftext|>', '<|im_start|>', '<|im_end|>', '<|begin_of_text|>', '<|eot_id|>']
# One is the beginning of another: the longest must win.
USER_TOKENS = ['<tool', '<tool_call>', '</tool_call>', '\n\n\n\n\n', 'e\u0301e']

# The published Split patterns of Qwen2 and Llama 3.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def pre_tokenizer(kind):
    byte_level = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    plain_bytes = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    return {
        'gpt-2': byte_level,
        'smollm': pre.Sequence([pre.Digits(individual_digits=True), byte_level]),
        'qwen2': pre.Sequence([pre.Split(Regex(SPLIT % ''), 'isolated'), plain_bytes]),
        'llama-bpe': pre.Sequence([pre.Split(Regex(SPLIT % '{1,3}'), 'isolated'), plain_bytes]),
    }[kind]


class Vocab:
    def __init__(self, kind, tokens, types, merges):
        self.kind, self.tokens, self.types, self.merges = kind, tokens, types, merges

    @staticmethod
    def read(path):
        fields = gguf.GGUFReader(path).fields
        get = {key: lambda key=key: fields['tokenizer.ggml.' + key].contents()
               for key in ('pre', 'tokens', 'token_type', 'merges')}
        return Vocab(get['pre'](), get['tokens'](), get['token_type'](), get['merges']())

    def write(self, path):
        writer = gguf.GGUFWriter(path, 'llama')
        writer.add_tokenizer_model('gpt2')
        writer.add_tokenizer_pre(self.kind)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_merges(self.merges)
        writer.add_bos_token_id(self.tokens.index('<|begin_of_text|>'))
        writer.add_eos_token_id(self.tokens.index('<|im_end|>'))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()

    def reference(self):
        result = Tokenizer(models.BPE(
            vocab={token: i for i, token in enumerate(self.tokens)},
            merges=[tuple(merge.split(' ')) for merge in self.merges],
            ignore_merges=self.kind == 'llama-bpe'))
        if self.kind == 'qwen2':
            result.normalizer = normalizers.NFC()
        result.pre_tokenizer = pre_tokenizer(self.kind)
        result.decoder = decoders.ByteLevel()
        for wanted, is_special in ((CONTROL, True), (USER_DEFINED, False)):
            added = [AddedToken(token, special=is_special, normalized=False)
                     for token, kind in zip(self.tokens, self.types) if kind == wanted]
            (result.add_special_tokens if is_special else result.add_tokens)(added)
        return result


def train(kind):
    alphabet = sorted(pre.ByteLevel.alphabet())
    if kind == 'smollm':  # as SmolLM2's vocabulary, this one lacks some bytes
        alphabet = [c for c in alphabet if c not in ('\u0104', '\u00f1')]  # bytes 04 and F1
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(kind)
    files = sorted(glob.glob('/usr/lib/python3.11/[a-m]*.py'))[:60]
    texts = [open(name, encoding='utf-8').read() for name in files]
    # Our hard texts count many times, or the trainer would not care. What spells a special token
    # is left out: no piece may have a special token's text.
    texts += [text for text in HARD_TEXTS if '<' not in text for _ in range(40)]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=len(alphabet) + NUM_MERGES, initial_alphabet=alphabet, show_progress=False))
    model = json.loads(tokenizer.to_str())['model']
    tokens = sorted(model['vocab'], key=model['vocab'].get)
    merges = [' '.join(pair) for pair in model['merges']]
    if kind == 'smollm':
        dropped = {'\u0104', '\u00f1'}
        merges = [merge for merge in merges if not dropped & set(merge)]
        tokens = [token for token in tokens if not dropped & set(token)]
    types = [NORMAL] * len(tokens)
    # A token that no merge makes: only a rule that looks pieces up as a whole finds it.
    for more, kind_of_token in ((['\u0120unmergeable'], NORMAL), (CONTROL_TOKENS, CONTROL),
                                (USER_TOKENS, USER_DEFINED), (['[PAD0]', '[PAD1]'], UNUSED)):
        tokens += more
        types += [kind_of_token] * len(more)
    return Vocab(kind, tokens, types, merges)


HARD_TEXTS = [
    '', ' ', '  ', '\n', '\t', '\r\n', '\r', '\x00', 'a\x00b', '\x01\x04\x06\x1c\x1f\x7f',
    'Hello world', ' Hello  World', 'Hello, y\'all! How are you \U0001f601 ?', ' unmergeable',
    '3', '33', '333', '3333', '33333', '333333', '0.30', '1,000,000',
    '3 33 333 3333 0.30 1,000,000',
    'x1y22z333', '1\n2', ' 1', '  1', '   12', 'a 1', '\n1', '1st 2nd',
    '\u0663\u0664 \u096a\u096b',
    '\u2167 \u00bd \u00b2 \u2460 \uff11\uff12', '\U0001d7d8\U0001d7d9',
    '\n\n\n  x', '\n \n \n', ' \n\n  \n', 'a\n\n\nb', '\n\n\n\n\n\nx', '  \n', 'x  \n',
    '\t\t\tif x:\n',
    'a  b   c    d', ' ' * 30 + 'x', '\t \t x', 'x \r\n\r\n y\r', 'trailing   ', '!\n\n', '...\n',
    "it's I'LL", "we've they'Re I'M he'd don'T", "'s'S'\u017f'", "it'\u017f x", "'lll", "''ll",
    "l'\u00e9t\u00e9", "\u2019s", 'O\'Neill\'s', "'re 're", "1's",
    '\u00a0', 'a\u00a0b', '\u00a0\u00a0x', '\u2028', 'a\u2028\u2029b', '\u180e', 'a\u180eb',
    '\u200b x',
    '\u3000\u3000x', '\u0085', '\u202f1\u205f2\u1680', '\ufeffbom', '\u2003\u2003y',
    '\ufffe\uffff', '\U0001fffe\U0010ffff', '\ufdd0', '\ue000', '\U000f0000', '\ufffd',
    'e\u0301', '\u00e9', 'e\u0301e', 'a\u0323\u0307', 'a\u0307\u0323', '\u212b \u2126',
    'q\u0307\u0323\u0301',
    '\u1112\u1161\u11ab \ud55c\uae00', '\uac00\u11a8', '\u0344', '\ufb1d', '\u0f71\u0f72',
    '\U0002f800',
    '\u0958', '\u0301', '\u0301\u0301a', 'o\u0302\u0323\u0301',
    '\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645',
    '\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd',
    '\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e',
    '\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35',
    '\u4f60\u597d\uff0c\u4e16\u754c\u3002', '\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8',
    '\u041f\u0440\u0438\u0432\u0435\u0442',
    '\u1782\u17b6\u1793\u17cb\u178f\u17c2', '\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac',
    '\u0130\u0131\u00df\u1e9e',
    '\U0001f642', '\U0001f468\u200d\U0001f469\u200d\U0001f467', '\U0001f1e9\U0001f1ea',
    '\u2764\ufe0f', '\U0001f44d\U0001f3fd!',
    '\U00031350\U0001e4d0', '\U00011de0\U00016ff4', '\u1c89x\ua7cb', '\U00010d40\U0001ccf0',
    '\U000e0001',
    '\U00040000x', 'z\u0335\u0321a\u0358l\u0340g\u0345o\u035d',
    '<|im_start|>user\nHi<|im_end|>\n', 'x<|im_end|>', '<|im_end|><|im_end|>', ' <|im_end|> y',
    '<|endoftext|>', '<|im_end', '<|im_end|', '<<|im_end|>>', '<|IM_END|>', '<|x|> y', '<s> hi',
    '<pad>text',
    '<tool_call>\n{"name": "f"}\n</tool_call>', '<tool', '<tool_', '<tool_cal<tool_call>',
    '[PAD0]',
    'a  <|im_end|>  b', '<|begin_of_text|>hi<|eot_id|>', 'it<|im_end|>\'s',
    'def f(x):\n    return x**2 + 1  # sq\n',
    'for (int i = 0; i < n; ++i) {\r\n\ta[i]=0;\r\n}\r\n',
    '{"a": [1, 2.5e-3, null], "b": "\\u00e9"}', 'https://example.org/a?b=c&d=%20#e',
    '<html>\n<p class="x">y</p>',
    'snake_case camelCase SCREAMING_CASE kebab-case', '$x = @y ? #z : %w;', '=====\n-----\n*****',
    '!!!???...',
    '/* c */ // d', '\\n\\t\\\\', 'a' * 50, 'A' * 33, 'ab' * 40, '\u4e2d' * 20, '-' * 70,
    '\u00e9' * 9,
    '\u2500' * 12, '""""""', 'x\u00ad y', 'na\u00efve caf\u00e9 \u2014 \u201cquoted\u201d \u2026',
]
# (start, unit, count, end): up to a megabyte each, for the tiny vocabularies a tenth of it.
LONG_TEXTS = [
    ('', 'a', 1000000, ''), ('', 'A', 43000, ''), ('', ' ', 1000000, ''), ('', ' ', 1000000, 'x'),
    ('', '\n', 1000000, ''), ('', '\r\n', 500000, ''), ('', ' \n', 500000, ''),
    ('', '\t', 1000000, '1'),
    ('', '7', 1000000, ''), ('', '\u6f22', 333333, ''), ('', '!', 1000000, ''),
    ('', 'the quick brown fox ', 50000, ''),
    ('', '\U0001f642', 250000, ''), ('', 'e\u0301', 300000, ''),
    ('a\u0300', '\u0323', 100000, ''),
]


def combinations():
    """Neighbours that rules treat differently, in every order."""
    parts = ["'s", "'LL", 'x', '\u00e9', ' ', '\n', '\r', '\t', '1', '\u00a0', '!', '\u6f22',
             '\u0301', '\U0001f642', '<|im_end|>']
    for pair in itertools.product(parts, repeat=2):
        yield ''.join(pair) + 'b'
    for triple in itertools.product([' ', '\n', '1', 'x', '!', '\r'], repeat=3):
        yield ''.join(triple)


def cases_of(reference, is_tiny):
    def ids_of(text, control_is_text):
        reference.encode_special_tokens = control_is_text
        return reference.encode(text, add_special_tokens=False).ids
    for text in itertools.chain(HARD_TEXTS, combinations()):
        case = {'text': text, 'ids': ids_of(text, False)}
        as_text = ids_of(text, True)
        if as_text != case['ids']:
            case['ids_as_text'] = as_text
        yield case
    for start, unit, count, end in LONG_TEXTS:
        count = count // 10 if is_tiny else count
        ids = ids_of(start + unit * count + end, False)
        packed = struct.pack(f'<{len(ids)}i', *ids)
        yield {'start': start, 'text': unit, 'count': count, 'end': end, 'num_ids': len(ids),
               'ids_sha256': hashlib.sha256(packed).hexdigest()}


def write_golden(name, vocab):
    header = {'tool': f'tokenizers {tokenizers.__version__}', 'command': COMMAND,
              'vocab': name + '.gguf', 'kind': vocab.kind}
    cases = (json.dumps(case, separators=(',', ':'))
             for case in cases_of(vocab.reference(), name.startswith('tiny')))
    lines = ',\n'.join(cases)
    (HERE / f'{name}.json').write_text(
        json.dumps(header)[:-1] + ', "cases": [\n' + lines + '\n]}\n', encoding='utf-8')
    print(name)


# Half-open ranges of characters: all but the inner parts of uniform blocks.
SWEEP = [(0x0, 0x3500), (0x4DB0, 0x4E10), (0x9FF0, 0xAC20), (0xD790, 0xD800), (0xE000, 0xE010),
         (0xF8F0, 0x12000), (0x12400, 0x12580), (0x13420, 0x14660), (0x16100, 0x17010),
         (0x187F0, 0x18D10), (0x1AFF0, 0x1FC00), (0x2A6D0, 0x2A710), (0x2B730, 0x2B750),
         (0x2EBE0, 0x2EE60), (0x2F7F0, 0x2FA20), (0x31340, 0x323C0), (0xE0000, 0xE0200)]


def sweep_text(template):
    return ''.join(template.replace('@', chr(c)) for begin, end in SWEEP for c in range(begin, end))


def write_sweep():
    """Pieces as byte lengths, four bytes each; NFC as UTF-8."""
    cut_template = "a@1@2 @@!@\n@  @'s"
    nfc_template = 'a@\u0301.@\u0323\u0301.o\u0323@\u0302.@@\u1161\u11a8.'
    text = sweep_text(cut_template)
    pieces = {}
    for kind in ('gpt-2', 'smollm', 'qwen2', 'llama-bpe'):
        lengths = [len(text[begin:end].encode())
                   for _, (begin, end) in pre_tokenizer(kind).pre_tokenize_str(text)]
        pieces[kind] = hashlib.sha256(struct.pack(f'<{len(lengths)}i', *lengths)).hexdigest()
    nfc = normalizers.NFC().normalize_str(sweep_text(nfc_template))
    (HERE / 'sweep.json').write_text(json.dumps({
        'tool': f'tokenizers {tokenizers.__version__}', 'command': COMMAND, 'ranges': SWEEP,
        'cut_template': cut_template, 'pieces_sha256': pieces, 'nfc_template': nfc_template,
        'nfc_sha256': hashlib.sha256(nfc.encode()).hexdigest()}, indent=1) + '\n', encoding='utf-8')
    print('sweep')


def check_against_llama_cpp(path, vocab):
    """Another program's ids for its own texts: the reference built here is the right one."""
    inputs = open(f'{path}.inp', encoding='utf-8', newline='').read()
    inputs = inputs.split('\n__ggml_vocab_test__\n')
    outputs = open(f'{path}.out', encoding='utf-8').read().split('\n')
    reference = vocab.reference()
    for text, line in zip(inputs, outputs):
        want = [int(word) for word in line.split()]
        got = reference.encode(text, add_special_tokens=False).ids
        if got != want:
            sys.exit(f'{path}: {text!r}: llama.cpp {want}, tokenizers {got}')
    print(f'{path}: {len(inputs)} texts agree')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--models')
    parser.add_argument('--llama-cpp')
    options = parser.parse_args()
    for kind in ('gpt-2', 'smollm', 'qwen2', 'llama-bpe'):
        vocab = train(kind)
        vocab.write(HERE / f'tiny-{kind}.gguf')
        write_golden(f'tiny-{kind}', vocab)
    write_sweep()
    if options.models:
        for name in ('smollm2-135m', 'qwen2.5-coder-0.5b'):
            write_golden(name, Vocab.read(f'{options.models}/{name}.gguf'))
    if options.llama_cpp:
        for kind in ('gpt-2', 'llama-bpe', 'qwen2'):
            path = f'{options.llama_cpp}/ggml-vocab-{kind}.gguf'
            vocab = Vocab.read(path)
            check_against_llama_cpp(path, vocab)
            if kind != 'qwen2':  # the same vocabulary as Qwen2.5-Coder's
                write_golden(f'ggml-vocab-{kind}', vocab)


if __name__ == '__main__':
    main()
