"""What the engines are asked to continue: cuts of a text, or KV that only has the right size."""

import pathlib

MARGIN = 16  # tokens a prompt may be shorter than asked, for the cut to survive tokenising again


class Prompt:
    """The longest beginning of the text, of at most `size` tokens, that tokenises to itself."""

    synthetic, tail, tail_ids = False, None, []

    def __init__(self, peer, ids, size, is_long, folder):
        self.is_long = is_long  # worth keeping its KV between repeats
        for n in range(min(size, len(ids)), max(size - MARGIN, 0), -1):
            text = peer.ask(op="detokenize", ids=ids[:n])["text"]
            if peer.ask(op="tokenize", text=text)["ids"] == ids[:n]:
                self.ids, self.depth = ids[:n], n
                self.path = pathlib.Path(folder, f"prompt_{n}.txt")
                self.path.write_text(text, encoding="utf-8")
                return
        raise SystemExit(
            f"bench/run.py: no cut near {size} tokens survives tokenising again "
            f"(the text has {len(ids)})"
        )

    def add_tail(self, longer):
        """What is prefilled behind this prompt, to time a prefill at its depth."""
        self.tail, self.tail_ids = longer, longer.ids[self.depth :]


class Synthetic:
    """`depth` positions of KV made from the prefill of a short prompt: right in size alone."""

    synthetic, is_long = True, True

    def __init__(self, base, depth, tail_ids):
        self.ids, self.depth, self.tail_ids = base.ids[:depth], depth, tail_ids


def token_ids(peer, text, size):
    """At least `size` token ids, or all of the text's: it is read again under a running heading,
    so that no two parts of a long prompt begin alike."""
    whole, reading = text, 1
    while True:
        ids = peer.ask(op="tokenize", text=whole)["ids"]
        if len(ids) >= size or not text:
            return ids
        reading += 1
        whole += f"\n\nReading {reading} of the same book\n\n{text}"
