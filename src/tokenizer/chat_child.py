"""Renders one chat template for ChatTemplate (chat_template.h), in a process that may be killed.

Descriptor 0 is a socket. A request is a number of fields, an answer is a status character and one
field; a field is its length (4 bytes, little-endian) and its bytes. The first request holds the
template and its settings and is answered "h"; each later one is a conversation.

What a template may use, and how it behaves, is what transformers' apply_chat_template offers: the
same sandbox, options, extensions, filters and globals (transformers 5.24, chat_template_utils.py).
"""
import json
import os
import resource
import struct
import sys

SOCKET = 0
MEMORY_BYTES = 512 << 20
MAX_ERROR_CHARS = 2000
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def read_exactly(size):
    parts = []
    while size > 0:
        part = os.read(SOCKET, min(size, 1 << 20))
        if not part:
            sys.exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_fields(count):
    return [read_exactly(struct.unpack("<I", read_exactly(4))[0]) for _ in range(count)]


def answer(status, data=b""):
    data = memoryview(status + struct.pack("<I", len(data)) + data)
    while data:
        data = data[os.write(SOCKET, data):]


try:
    import datetime
    import pprint  # noqa: F401 (jinja2 would import it later, when no file can be opened)

    import jinja2
    import jinja2.debug
    import jinja2.ext
    import jinja2.sandbox
except ImportError as error:
    answer(b"u", str(error).encode())
    sys.exit(1)


class Refusal(jinja2.TemplateError):
    """The template called raise_exception."""


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("render_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def render_body(self, caller):
        return caller()


class DictMaker:
    """dict() without the class itself, whose attributes lead out of the sandbox."""

    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class Namespace(jinja2.utils.Namespace):
    """namespace() that keeps no name with an underscore in front, as transformers'."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(
                f"a namespace cannot hold {name!r}: it begins with an underscore")


def raise_exception(message):
    raise Refusal(message)


def strftime_now(pattern):
    return datetime.datetime.now().strftime(pattern)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def make_environment():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now,
                               dict=DictMaker(), namespace=Namespace)
    return environment


def with_reasoning_names(message):
    """Templates read the reasoning text under several names; it is there under the main ones."""
    if not isinstance(message, dict):
        return message
    for key in REASONING_KEYS:
        if message.get(key) is not None:
            return {"thinking": message[key], **message, "reasoning_content": message[key]}
    return message


def parse_json(name, data, kind):
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError(f"{name}: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{name}: not valid JSON: {error}") from None
    if not isinstance(value, kind):
        raise ValueError(f"{name}: expected {'a list' if kind is list else 'an object'}")
    return value


def read_variables(fixed, messages, tools, extra, prompt):
    messages = parse_json("messages", messages, list)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ValueError(f"messages[{index}]: expected an object")
    variables = {"documents": None, **fixed}
    if extra:
        variables.update(parse_json("template variables", extra, dict))
    variables["messages"] = [with_reasoning_names(message) for message in messages]
    variables["tools"] = parse_json("tools", tools, list) if tools else None
    variables["add_generation_prompt"] = prompt == b"1"
    return variables


def line_of(error):
    """The template's line where `error` was raised; jinja2 has put template lines in the trace."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in ("<template>", "<unknown>"):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def describe(error, source):
    if isinstance(error, Refusal):
        return "the chat template refused the conversation: " + str(error.message)
    if isinstance(error, RecursionError):
        what = "it calls itself too deeply"
    elif isinstance(error, jinja2.TemplateError):
        what = error.message
    else:
        what = f"{type(error).__name__}: {error}"
    text = "the chat template is broken"
    line = line_of(error)
    if not line:
        return f"{text}: {what}"
    lines = source.split("\n")
    construct = lines[line - 1].strip() if line <= len(lines) else ""
    if len(construct) > 120:
        construct = construct[:117] + "..."
    return f"{text}, line {line}: {what}: {construct}"


def render(template, variables, max_bytes):
    """The text, or None if it is too long: a template can write faster than memory lasts."""
    parts = []
    num_chars = 0
    for part in template.generate(variables):
        num_chars += len(part)
        if num_chars > max_bytes:
            return None
        parts.append(part)
    data = "".join(parts).encode()
    return data if len(data) <= max_bytes else None


def confine(cpu_seconds):
    """A second fence behind the sandbox: no memory, files, children or time to speak of."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(used.ru_utime + used.ru_stime) + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, resource.RLIM_INFINITY))


def confine_for_good(environment):
    # What Python loads on first use must be loaded before files can no longer be opened: codecs,
    # the time zone, and what jinja2 needs to compile, to render and to fail.
    datetime.datetime.now().strftime("%c")
    for codec in ("ascii", "latin-1", "unicode-escape", "utf-8-sig", "utf-16", "utf-32"):
        "x".encode(codec).decode(codec)
    for warm_up in ("{{ 'text' ~ \"it's\\n\" }}", "{{ none.x.y }}", "{% if %}"):
        try:
            environment.from_string(warm_up).render()
        except jinja2.TemplateError as error:
            describe(error, warm_up)
    for name, value in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_NOFILE, 0),
                        (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NPROC, 0),
                        (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(name, (value, value))


def main():
    source, bos, eos, max_bytes, cpu_seconds = (f.decode() for f in read_fields(5))
    max_bytes, cpu_seconds = int(max_bytes), int(cpu_seconds)
    fixed = {"bos_token": bos, "eos_token": eos}
    environment = make_environment()
    template = None
    confine_for_good(environment)
    answer(b"h")
    while True:
        fields = read_fields(4)
        confine(cpu_seconds)
        try:
            variables = read_variables(fixed, *fields)
        except (ValueError, MemoryError) as error:
            answer(b"r", str(error).encode("utf-8", "replace"))
            continue
        try:
            if template is None:
                template = environment.from_string(source)
            data = render(template, variables, max_bytes)
        except MemoryError:
            answer(b"m")
        except UnicodeEncodeError:
            answer(b"r", b"the conversation holds half of a surrogate pair (\\ud800 to \\udfff)")
        except Exception as error:
            answer(b"r", describe(error, source)[:MAX_ERROR_CHARS].encode("utf-8", "replace"))
        else:
            answer(b"l" if data is None else b"o", data or b"")


main()
