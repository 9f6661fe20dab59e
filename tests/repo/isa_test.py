#!/usr/bin/env python3
"""AVX2 only where it is asked for: reads the built objects with objdump and nm.

    tests/repo/isa_test.py BUILD_DIR

1. Outside the kernel objects made for an ISA (src/kernels, CMake targets kernels_avx2,
   kernels_avx512 and kernels_scalar) nothing uses AVX: the command must start on any x86-64 and
   say what is missing.
2. Those objects define no weak function. The linker keeps one copy of a weak function for the
   whole program; an AVX2 copy could become everybody's.
3. In the linked command, AVX code lies only in functions of the kernels' own namespaces.
"""

import pathlib
import re
import subprocess
import sys
import unittest

ISA_TARGETS = re.compile(r"/kernels_(avx2|avx512|scalar)\.dir/")
ISA_NAMESPACES = re.compile(r"avx2|avx512|scalar_fma")
# VEX and EVEX instructions have names beginning with v; so have these old ones.
OLD_V = re.compile(r"^(verr|verw|vmcall|vmmcall|vmrun)$")
INSTRUCTION = re.compile(r"^\s+[0-9a-f]+:\t(\S+)\s*(.*)$")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")

build_dir = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def is_avx(mnemonic, operands):
    if "%ymm" in operands or "%zmm" in operands:
        return True
    return mnemonic.startswith("v") and not OLD_V.match(mnemonic)


def avx_functions(disassembly):
    """Names of the functions that hold an AVX instruction."""
    found, function = set(), "?"
    for line in disassembly.splitlines():
        head = FUNCTION.match(line)
        if head:
            function = head.group(1)
            continue
        instruction = INSTRUCTION.match(line)
        if instruction and is_avx(*instruction.groups()):
            found.add(function)
    return found


def weak_functions(symbols):
    """Lines of `nm -C` that define a weak or unique symbol."""
    return [line for line in symbols.splitlines()
            if re.match(r"^[0-9a-f]+ [WVu] ", line) and "DW.ref" not in line]


def disassemble(path):
    return run("objdump", "-d", "-C", "--no-show-raw-insn", str(path))


def objects():
    return sorted(p for p in build_dir.rglob("*.o")
                  if "CMakeScratch" not in p.parts and "CompilerIdCXX" not in p.parts
                  and p.is_relative_to(build_dir / "src"))


class Isa(unittest.TestCase):
    def test_the_detector_knows_avx(self):
        text = ("0000 <f()>:\n"
                "   0:\tmovaps %xmm1,%xmm0\n   3:\tret\n"
                "0010 <g()>:\n"
                "  10:\tvaddps %xmm2,%xmm1,%xmm0\n"
                "0020 <h()>:\n"
                "  20:\tverr   %ax\n")
        self.assertEqual(avx_functions(text), {"g()"})

    def test_the_detector_knows_weak_functions(self):
        text = ("0000000000000000 W std::max()\n"
                "0000000000000010 t (anonymous namespace)::F()\n"
                "                 w __gmon_start__\n"
                "0000000000000020 T vericache::G()\n")
        self.assertEqual(weak_functions(text), ["0000000000000000 W std::max()"])

    def test_no_avx_outside_the_kernel_objects(self):
        # Micro benchmarks measure peaks with intrinsics of their own and are never installed.
        others = [p for p in objects()
                  if not ISA_TARGETS.search(str(p)) and "_bench.dir" not in str(p)]
        self.assertTrue(others, f"no objects in {build_dir}")
        for path in others:
            with self.subTest(path.name):
                self.assertEqual(avx_functions(disassemble(path)), set())

    def test_kernel_objects_use_avx_and_share_nothing(self):
        ours = [p for p in objects() if ISA_TARGETS.search(str(p))]
        self.assertTrue(ours, "no kernel objects: has the CMake target another name?")
        self.assertTrue(any(avx_functions(disassemble(p)) for p in ours),
                        "no AVX in any kernel object: this test would see nothing")
        for path in ours:
            with self.subTest(path.name):
                self.assertEqual(weak_functions(run("nm", "-C", str(path))), [],
                                 "a weak function could replace the baseline copy")

    def test_avx_in_the_command_is_the_kernels_own(self):
        command = build_dir / "vericache"
        if not command.is_file():
            self.skipTest("no command built")
        strangers = {f for f in avx_functions(disassemble(command))
                     if not ISA_NAMESPACES.search(f)}
        self.assertEqual(strangers, set())


if __name__ == "__main__":
    if build_dir is None:
        sys.exit(__doc__)
    unittest.main()
