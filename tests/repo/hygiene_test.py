#!/usr/bin/env python3
"""A check that cannot fail proves nothing: plants one violation of each rule of hygiene.py."""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import hygiene  # noqa: E402


def body(num_lines):
    return "{\n" + "  x();\n" * (num_lines - 2) + "}\n"


class Planted(unittest.TestCase):
    def findings(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            return [(str(f.path), f.rule) for f in hygiene.check_tree(root)]

    def expect(self, path, text, *rules):
        self.assertEqual(self.findings({path: text}), [(path, rule) for rule in rules])

    def test_long_file(self):
        self.expect("src/kv/a.cc", "int x;\n" * 600)
        self.expect("src/kv/a.cc", "int x;\n" * 601, "file-lines")

    def test_long_line(self):
        self.expect("src/kv/a.cc", "//" + "x" * 98 + "\n")
        self.expect("src/kv/a.cc", "//" + "x" * 99 + "\n", "columns")

    def test_long_functions(self):
        heads = {
            "free": "void F(int a = 3) ",
            "template": "template <typename T>\nauto F(T t) -> std::vector<T> ",
            "constructor": "Foo::Foo(int n) : n_{n}, m_(n) ",
            "method": "namespace a {\nclass Foo : public Bar {\n  int F() const override ",
            "operator": "Foo& Foo::operator=(const Foo& other) ",
            "gtest": "TEST(Foo, DoesBar) ",
            "default": "void F(std::vector<int> v = {}) ",
        }
        for name, head in heads.items():
            with self.subTest(name):
                tail = "};\n}\n" if name == "method" else ""
                self.expect("src/kv/a.cc", head + body(70) + tail)
                self.expect("src/kv/a.cc", head + body(71) + tail, "function-lines")

    def test_long_function_after_others(self):
        before = ('const char* kText = R"x( { ( )x";\nconst std::map<int, int> kMap = {{1, 2}};\n'
                  "int G() { return '{' + 1'000; }\n#define M(x) { x\nstruct S { int a{1}; };\n")
        self.expect("src/kv/a.cc", before + "int F() " + body(71), "function-lines")

    def test_big_tables_and_classes_are_no_functions(self):
        self.expect("src/kv/a.cc", "const int kTable[] = {\n" + "  1,\n" * 100 + "};\n")
        self.expect("src/kv/a.h", "class A {\n" + "  int F();\n" * 100 + "};\n")

    def test_long_python_function(self):
        self.expect("scripts/a.py", "def f():\n" + "    x = 1\n" * 70, "function-lines")

    def test_upward_include(self):
        self.expect("src/kernels/a.cc", '#include "model/model.h"\n', "layers")
        self.expect("src/base/a.h", '#include "gguf/reader.h"\n', "layers")
        self.expect("src/model/a.cc", '#include "gguf/reader.h"\n')

    def test_sideways_include(self):
        self.expect("src/kv/a.cc", '#include "model/model.h"\n', "layers")
        self.expect("src/gguf/a.cc", '#include "kernels/kernels.h"\n', "layers")

    def test_outermost_folders_see_only_the_api(self):
        self.expect("src/cli/a.cc", '#include "engine/round.h"\n', "layers")
        self.expect("src/cli/a.cc", '#include "vericache/engine.h"\n#include "base/hash.h"\n')
        self.expect("src/engine/a.cc", '#include "vericache/engine.h"\n', "layers")
        self.expect("examples/hello.cc", '#include "engine/round.h"\n', "layers")
        self.expect("include/vericache/a.h", '#include "base/types.h"\n', "layers")

    def test_only_tests_use_test_helpers(self):
        self.expect("src/kv/a_test.cc", '#include "tests/support/models.h"\n')
        self.expect("src/kv/a.cc", '#include "tests/support/models.h"\n', "layers")

    def test_unsafe_math(self):
        self.expect("cmake/a.cmake", "add_compile_options(-ffast" "-math)\n", "unsafe-math")
        self.expect("CMakePresets.json", '"-Of' 'ast"\n', "unsafe-math")
        self.expect("cmake/a.cmake", "add_compile_options(-ffp-con" "tract=fast)\n", "unsafe-math")
        self.expect("cmake/a.cmake", "add_compile_options(-fno-fast-math -ffp-contract=off)\n")

    def test_unsafe_math_may_be_talked_about(self):
        self.expect("src/base/a.h", "// no -ffast" "-math here\n")
        self.expect("src/base/a.h", "#pragma GCC opt" "imize(\"O3\")\n", "unsafe-math")

    def test_leftovers(self):
        self.expect("src/kv/a.cc", "// TO" "DO: later\n", "leftover")
        self.expect("src/kv/a.cc", "// FIX" "ME\n", "leftover")

    def test_blanks(self):
        self.expect("src/kv/a.cc", "int x; \n", "blanks")
        self.expect("src/kv/a.cc", "\tint x;\n", "blanks")
        self.expect("src/kv/a.cc", "int x;", "blanks")

    def test_environment(self):
        self.expect("src/hub/a.cc", 'auto x = std::getenv("HF_TOKEN");\n', "environment")
        self.expect("src/cli/a.cc", 'auto x = std::getenv("HF_TOKEN");\n')

    def test_not_utf8(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.cc"
            path.write_bytes(b"// \xff\n")
            self.assertEqual([f.rule for f in hygiene.check_tree(pathlib.Path(folder))],
                             ["encoding"])



if __name__ == "__main__":
    unittest.main()
