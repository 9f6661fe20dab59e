"""Random requests of all kinds for a real server, from a seed."""

import dataclasses
import random

from real_server import TOOLS

SPECS = ["off", "int4", "sink:0.3", "verify:0.25+int4", "snapkv:0.2", "h2o:0.3+kivi4",
         "verify:0.2,score=vegas+int8", "kvzip:0.3,chunk=64,window=8"]
WORDS = "the stone is black and white in row while other stones in this row are red".split()


@dataclasses.dataclass
class Asked:
    number: int
    text: str
    chat: bool
    max_tokens: int
    sampling: dict
    stream: bool
    choices: int = 1
    tools: bool = False
    logprobs: int | None = None  # top_logprobs
    aborts: bool = False
    extension: dict = dataclasses.field(default_factory=dict)
    stop: list = dataclasses.field(default_factory=list)

    @property
    def needs_batch(self):
        return self.tools or any(name.endswith("penalty") for name in self.sampling)

    @property
    def path(self):
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def question(self):
        tools = {"tools": TOOLS} if self.tools else {}
        if self.chat:
            return {"messages": [{"role": "user", "content": self.text}]} | tools
        return {"prompt": self.text} | tools

    def body(self):
        body = {"model": "m", "max_tokens": self.max_tokens, "temperature": 0, "n": self.choices,
                "stream": self.stream, **self.sampling,
                "vericache": {"receipt": True, **self.extension}}
        body |= self.question()
        if self.stop:
            body["stop"] = self.stop
        if self.logprobs is not None:
            body |= ({"logprobs": True, "top_logprobs": self.logprobs} if self.chat else
                     {"logprobs": self.logprobs})
        return body


def _text(pick, shared):
    words = [pick.choice(WORDS) for _ in range(pick.randrange(1, 40))]
    marker = f"no. {pick.randrange(10**6)} "
    return (shared if pick.random() < 0.5 else "") + marker + " ".join(words)


def _sampling(pick):
    sampling = {}
    if pick.random() < 0.6:
        sampling = {"temperature": pick.choice([0.5, 1.0, 1.7]), "seed": pick.randrange(2**53)}
        if pick.random() < 0.4:
            sampling |= pick.choice([{"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}])
    if pick.random() < 0.3:
        sampling |= pick.choice([{"repetition_penalty": 1.3}, {"presence_penalty": 0.7},
                                 {"frequency_penalty": -0.5}, {"frequency_penalty": 1.5}])
    return sampling


def mixed(count, seed):
    pick = random.Random(seed)
    shared = "Rows of stones: " + " ".join(pick.choice(WORDS) for _ in range(60)) + ". "
    requests = []
    for number in range(count):
        chat = pick.random() < 0.6
        asked = Asked(number, _text(pick, shared), chat, pick.randrange(1, 48), _sampling(pick),
                      stream=pick.random() < 0.5)
        asked.extension = {"draft": SPECS[number % len(SPECS)]}
        if pick.random() < 0.7:
            asked.extension["draft_len"] = pick.randrange(1, 9)
        if pick.random() < 0.2:
            asked.extension["propose"] = "ngram"
        asked.tools = chat and pick.random() < 0.25
        if pick.random() < 0.2 and "seed" in asked.sampling:
            asked.choices = 2
        if pick.random() < 0.4:
            asked.logprobs = pick.randrange(5)
        asked.aborts = pick.random() < 0.15
        if asked.aborts:
            asked.max_tokens, asked.stream = 400, True
        requests.append(asked)
    return requests


def add_stops(requests, alone, seed):
    """A piece of the answer without it, for some: plain characters in its middle."""
    pick = random.Random(seed)
    for asked in requests:
        if asked.aborts or asked.choices > 1 or pick.random() < 0.6:
            continue
        text = alone.answer(asked)["text"]
        at = len(text) // 2
        piece = text[at:at + pick.randrange(1, 5)]
        if piece and "\ufffd" not in piece:
            asked.stop = [piece, "never to be seen"]
