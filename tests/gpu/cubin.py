"""What a cubin says of its kernels: `launch_facts(image, name)`.

A cubin is an ELF file; the section `.nv.info.<kernel>` is a list of attributes, each of a format, a
number and two bytes that are the value or, of format 4, the length of one behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_WITH_PAYLOAD = 4
_PARAMETER, _THREADS, _PARAMETER_BYTES = 0x17, 0x10, 0x19


@dataclass(frozen=True)
class LaunchFacts:
    """Attributes: (offset, size) of the parameters, in order; threads of a block, 0 where any."""

    parameters: tuple[tuple[int, int], ...]
    threads: int


def launch_facts(image: bytes, name: str) -> LaunchFacts:
    """The driver copies the parameters by this, whatever the caller means to give."""
    info = dict(_sections(image))[f".nv.info.{name}"]
    found, threads, size = {}, 0, 0
    for number, value, payload in _attributes(info):
        if number == _PARAMETER:
            _, ordinal, offset, rest = struct.unpack("<IHHI", payload)
            found[ordinal] = (offset, rest >> 18)
        elif number == _THREADS:
            x, y, z = struct.unpack("<III", payload)
            threads = x * y * z
        elif number == _PARAMETER_BYTES:
            size = value
    parameters = tuple(found[i] for i in range(len(found)))
    assert sum(parameters[-1]) == size, (parameters, size)
    return LaunchFacts(parameters, threads)


def _sections(image: bytes) -> Iterator[tuple[str, bytes]]:
    table = struct.unpack_from("<Q", image, 40)[0]
    size, count, names = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * size) for i in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        offset, length = header[4:6]
        yield image[start : image.index(0, start)].decode(), image[offset : offset + length]


def _attributes(info: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(info):
        form, number, value = struct.unpack_from("<BBH", info, at)
        at += 4
        length = value if form == _WITH_PAYLOAD else 0
        yield number, value, info[at : at + length]
        at += length
