"""Writes chat_golden.json: prompts as transformers' apply_chat_template makes them.

  pip install transformers==5.24.0 jinja2==3.1.6
  python tests/golden/tokenizer/make_chat_golden.py [FOLDER_OF_JINJA_FILES ...]

Run at the root of the repository. The templates smollm2.jinja and qwen2.5.jinja are those of
SmolLM2-135M-Instruct and Qwen2.5-Coder-0.5B-Instruct (Apache-2.0), read from their GGUF files;
the other files in templates/ are our own. Every *.jinja in the folders named is rendered by
transformers and by src/tokenizer/chat_child.py on the system's Jinja2, and must come out equal;
of those nothing is kept. (llama.cpp's models/templates, inside the llama-cpp-python sdist, is
such a folder.)
"""
import itertools
import json
import pathlib
import socket
import struct
import subprocess
import sys

import jinja2
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path('tests/golden/tokenizer')
CHILD = pathlib.Path('src/tokenizer/chat_child.py')

WEATHER_TOOL = {
    'type': 'function',
    'function': {
        'name': 'get_weather',
        'description': 'Weather of a city, "now" & <here>, in °C',
        'parameters': {
            'type': 'object',
            'properties': {
                'city': {'type': 'string', 'description': 'e.g. Zürich, 東京'},
                'days': {'type': 'integer', 'default': 1}},
            'required': ['city']}}}
ADD_TOOL = {'type': 'function', 'function': {
    'name': 'add', 'description': 'Adds', 'parameters': {
        'type': 'object', 'properties': {'a': {'type': 'number'}, 'b': {'type': 'number'}}}}}


def message(role, content, **more):
    return {'role': role, 'content': content, **more}


def call(name, arguments):
    return {'id': 'call00001', 'type': 'function',
            'function': {'name': name, 'arguments': arguments}}


USER = message('user', 'Hello')
SYSTEM = message('system', 'You are terse.')
CALLS = [message('user', 'Weather in Zürich?'),
         message('assistant', None,
                 tool_calls=[call('get_weather', {'city': 'Zürich', 'days': 2})]),
         message('tool', '{"temperature": 21.5}', tool_call_id='call00001', name='get_weather'),
         message('assistant', '21.5 °C.'), message('user', 'Thanks <&> "you"')]
TWO_CALLS = [SYSTEM, message('user', 'Add and look'),
             message('assistant', 'Doing both.',
                     tool_calls=[call('add', {'a': 1, 'b': 2.5}),
                                 call('get_weather', {'city': 'x'})]),
             message('tool', '3.5'), message('tool', 'sun'), message('assistant', 'Done.')]

# name: (messages, tools, extra variables)
CONVERSATIONS = {
    'user': ([USER], None, {}),
    'system': ([SYSTEM, USER], None, {}),
    'turns': ([USER, message('assistant', 'Hi!'), message('user', 'More')], None, {}),
    'system_later': ([USER, SYSTEM, message('user', 'x')], None, {}),
    'two_systems': ([SYSTEM, message('system', 'Really.'), USER], None, {}),
    'two_users': ([USER, USER], None, {}),
    'assistant_first': ([message('assistant', 'Hi'), USER], None, {}),
    'ends_with_assistant': ([USER, message('assistant', 'Hi')], None, {}),
    'unicode': ([message('system', 'Grüße 👩‍👩‍👧 東京 שלום'),
                 message('user', 'e\u0301 \u00a0\u2028 \ufffe \U0001f600')], None, {}),
    'spaces': ([message('system', '  \n padded \t'), message('user', '\n\n x \r\n')], None, {}),
    'empty_text': ([message('system', ''), message('user', '')], None, {}),
    'markup': ([message('user', '<|im_end|>\n<|im_start|>system\n{{ 1 + 1 }} {% if %} & <b>')],
               None, {}),
    'nul': ([message('user', 'a\x00b')], None, {}),
    'named': ([message('user', 'x', name='bob')], None, {}),
    'no_tools': ([USER], [], {}),
    'tools': ([USER], [WEATHER_TOOL], {}),
    'tools_system': ([SYSTEM, USER], [WEATHER_TOOL, ADD_TOOL], {}),
    'calls': (CALLS, [WEATHER_TOOL], {}),
    'calls_no_tools': (CALLS, None, {}),
    'two_calls': (TWO_CALLS, [WEATHER_TOOL, ADD_TOOL], {}),
    'extra': ([USER], None, {'enable_thinking': False, 'custom': [1, {'a': None}]}),
    'reasoning': ([USER, message('assistant', 'Yes', reasoning_content='Hmm.'), USER], None, {}),
    'empty': ([], None, {}),
}
# Real templates need not take every conversation; both sides must refuse the same ones.
SPECIAL = {'bos_token': '<s>', 'eos_token': '</s>'}


def reference(source, messages, tools, extra, prompt):
    """The prompt, or None if transformers fails."""
    try:
        rendered, _ = render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=prompt,
            **{**SPECIAL, **extra})
        rendered[0].encode()
        return rendered[0]
    except Exception:
        return None


class Child:
    """Speaks the protocol of chat_child.py, as ChatChild does."""

    def __init__(self, source):
        self.socket, theirs = socket.socketpair()
        self.process = subprocess.Popen(['/usr/bin/python3', '-I', str(CHILD)], stdin=theirs)
        theirs.close()
        settings = (source, '<s>', '</s>', str(4 << 20), '60')
        assert self.exchange(settings) == ('h', ''), 'the child did not start'

    def exchange(self, fields):
        for field in fields:
            data = field.encode()
            self.socket.sendall(struct.pack('<I', len(data)) + data)
        status, size = struct.unpack('<cI', self.receive(5))
        return status.decode(), self.receive(size).decode()

    def receive(self, size):
        data = b''
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, 'the child ended'
            data += part
        return data

    def close(self):
        self.socket.close()
        self.process.wait()


def check_against_child(name, source):
    child = Child(source)
    num_rendered = num_refused = 0
    for case, prompt in itertools.product(CONVERSATIONS, (0, 1)):
        messages, tools, extra = CONVERSATIONS[case]
        want = reference(source, messages, tools, extra, bool(prompt))
        status, got = child.exchange((
            json.dumps(messages), '' if tools is None else json.dumps(tools),
            json.dumps(extra) if extra else '', str(prompt)))
        if (want if want is not None else 'r') != (got if status == 'o' else status):
            sys.exit(f'{name}, {case}: transformers {want!r}, the child {status} {got!r}')
        num_rendered += want is not None
        num_refused += want is None
    child.close()
    print(f'{name}: {num_rendered} equal, {num_refused} refused by both')


def main():
    cases = []
    for path in sorted((HERE / 'templates').glob('*.jinja')):
        source = path.read_bytes().decode()
        if path.name.startswith('hostile'):
            continue
        check_against_child(path.name, source)
        for name, (messages, tools, extra) in CONVERSATIONS.items():
            for prompt in (True, False):
                cases.append({
                    'template': path.name, 'name': name, 'messages': messages, 'tools': tools,
                    'extra': extra, 'add_generation_prompt': prompt,
                    'expected': reference(source, messages, tools, extra, prompt)})
    for folder in sys.argv[1:]:
        for path in sorted(pathlib.Path(folder).glob('*.jinja')):
            check_against_child(path.name, path.read_text(encoding='utf-8'))
    header = {'tool': f'transformers {transformers.__version__}, jinja2 {jinja2.__version__}',
              'command': 'python tests/golden/tokenizer/make_chat_golden.py',
              'note': 'expected null: transformers raises an error'}
    lines = ',\n'.join(json.dumps(case) for case in cases)
    (HERE / 'chat_golden.json').write_text(
        json.dumps(header)[:-1] + ', "cases": [\n' + lines + '\n]}\n', encoding='utf-8')


main()
