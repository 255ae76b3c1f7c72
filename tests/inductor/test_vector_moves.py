"""The loads, stores, turns and conversions of generated kernels, for every number of elements.

They run as a program of their own, for the vectors of this machine and for narrower ones. What is
read ends where a page does behind which nothing may be read; what surrounds a store must stay.
"""

import subprocess
from pathlib import Path

import pytest

from minidynamo.inductor.codegen.assemble import cpp_prefix
from minidynamo.inductor.runtime.cpp_toolchain import FLAGS, find_compiler

PROGRAM = Path(__file__).with_name("vector_moves.cpp")


@pytest.mark.parametrize("march", ["native", "x86-64-v3", "x86-64"])
def test_vectors_move_as_their_elements_do(tmp_path, march):
    source = tmp_path / "moves.cpp"
    source.write_text(cpp_prefix() + PROGRAM.read_text())
    program = tmp_path / "moves"
    flags = [flag for flag in FLAGS if not flag.startswith(("-march", "-O", "-fPIC"))]
    command = [*find_compiler().command, *flags, "-O1", f"-march={march}", str(source)]
    subprocess.run([*command, "-o", str(program)], check=True)
    run = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    assert run.stdout == "as expected\n"
