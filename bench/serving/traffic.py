"""The requests of the traffic: some documents, several questions each, as chat messages.

A document is modules of Python's standard library cut to a size (bench/compressors/documents.py);
it stands first in the system message, so that its questions share it as their prefix.
"""

import bench_path  # noqa: F401  (finds bench/compressors)
import documents
import workloads

# Longest first; a document of fewer tokens holds fewer of its modules.
MODULES = documents.DOCUMENTS["8k"]
LONG = 90  # tokens of a function whose rewrite is longer than the answers that are asked for


class Request:
    def __init__(self, document, number, messages):
        self.document, self.id, self.messages = document, f"{document}-{number:03}", messages


def question(function, number):
    """Every other one asks for a rewrite of the function, the others for text about it."""
    if number % 2:
        return workloads.code_prompt([function], number // 2)[0]
    return workloads.prose_prompt([function], number // 2)[0]


class Traffic:
    """Requests without end, none twice: document by turns, another question each time."""

    def __init__(self, sizes, stdlib=None):
        stdlib = stdlib or documents.sysconfig.get_paths()["stdlib"]
        self.documents = [
            documents.Document(stdlib, modules, size)
            for modules, size in zip(MODULES, sizes, strict=False)
        ]
        if len(sizes) > len(self.documents):
            raise SystemExit(f"at most {len(MODULES)} documents")
        if empty := [size for size, d in zip(sizes, self.documents) if not d.functions]:
            raise SystemExit(f"a document of {empty[0]} tokens holds no whole function")
        self.made = 0

    def take(self, count):
        return [self._next() for _ in range(count)]

    def _next(self):
        number, index = divmod(self.made, len(self.documents))
        self.made += 1
        document = self.documents[index]
        functions = [f for f in document.functions if f.tokens >= LONG] or document.functions
        # A function comes again, in another form, only after all others.
        turn, place = divmod(number, len(functions))
        text = question(functions[place], place + turn)
        system = workloads.SYSTEM.format(text=document.text)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        return Request(index, number, messages)
