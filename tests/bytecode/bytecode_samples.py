"""Functions with every construct of the language, and arguments to call each with.

``CASES`` holds (function, list of argument tuples).  Results are compared between a function and
the same function with rebuilt code, so they must be deterministic and comparable.
"""

import asyncio
import contextlib
import sys

LOG: list = []


@contextlib.contextmanager
def manager(name, swallow=False):
    LOG.append(f"enter {name}")
    try:
        yield name * 2
    except ValueError:
        LOG.append(f"error {name}")
        if not swallow:
            raise
    finally:
        LOG.append(f"exit {name}")


class AsyncManager:
    async def __aenter__(self):
        await asyncio.sleep(0)
        return 5

    async def __aexit__(self, kind, error, traceback):
        await asyncio.sleep(0)
        return kind is KeyError


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __bool__(self):
        LOG.append("bool")
        return self.x > 0

    def __repr__(self):
        return f"Point({self.x}, {self.y})"

    @property
    def size(self):
        if self.x == 13:
            raise ValueError("unlucky")
        return abs(self.x) + abs(self.y)

    def __getitem__(self, key):
        return (self.x, self.y)[key]


class Child(Point):
    def __init__(self, x):
        super().__init__(x, -x)

    def total(self):
        return super().size + super().size


def check(value):
    if value == 3:
        raise ValueError(value)
    return value


def arithmetic(a, b):
    c = a + b
    c += a * b - a // b
    c ^= a << 2 | b >> 1 & ~a
    c **= 2
    return c, -a, +b, not a, a % b, a / b, a @ b if isinstance(a, list) else None


def comparisons(a, b):
    return a < b, a <= b, a == b, a != b, a > b, a >= b, a is b, a is not b, a < b < 10 <= 20


def booleans(a, b, c):
    x = a and b or c
    y = (a or b) and not c
    if a and (b or not c) or a is None:
        return x, y, 1
    return (x, y, 2) if b is not None else (y, x)


def containers(*args, **kwargs):
    first, *middle, last = args
    items = [*args, 0, *middle]
    items[1:3] = [9]
    del items[0]
    merged = {**kwargs, "k": first, **{"l": last}}
    unique = {*items, *merged}
    return items[::2], items[-1], tuple(items), merged, sorted(map(str, unique)), first in items


def keywords(a, /, b, *rest, c=1, d, **others):
    return a, b, rest, c, d, sorted(others.items())


def calls(n):
    f = keywords
    positional, named = (n, 2, 3), {"d": 4, "e": 5}
    return (
        f(1, 2, d=3),
        f(*positional, **named),
        f(n, b=2, d=n if n else 3, z=1),
        f(*positional, d=0, **{"x": n}),
        print.__name__.upper().center(10, "*"),
        Child(n).total(),
    )


def loops(n):
    out = []
    for i in range(n):
        if i == 1:
            continue
        if i == 7:
            break
        for j in range(i):
            if j == 4:
                break
            out.append((i, j))
        else:
            out.append(i)
    else:
        out.append("done")
    k = 0
    while k < n:
        k += 1
        if k % 3 == 0:
            continue
        if k > 5:
            break
    else:
        out.append("all")
    return out, k


def comprehensions(n):
    squares = [i * i for i in range(n) if i % 2]
    table = {i: [j for j in range(i)] for i in range(n)}
    makers = [lambda: i + k for i in range(n) for k in range(2)]
    flat = {x for row in table.values() for x in row}
    return squares, table, sorted(flat), [m() for m in makers], sum(i for i in range(n))


def shadowed(n):
    i = "kept"
    try:
        rows = [check(i) for i in range(n)]
    except ValueError:
        rows = None
    return rows, i


def closures(n):
    total = n
    cells = []

    def add(step: int = 2, *, more=n) -> int:
        nonlocal total
        total += step + more
        return total

    for i in range(3):
        cells.append(lambda: (i, total))  # noqa: F821
    add(), add(5, more=1)
    del i
    try:
        return total, cells[0]()
    except NameError as error:
        return total, type(error).__name__


def strings(a, b):
    return f"{a}{b!r:>{10}}{a!s}{b!a:<5}{a:}{'x'}" + f"{a=}" + f"{a}" * 2


def exceptions(n):
    out = []
    for i in range(n):
        try:
            try:
                out.append(10 // (i - 2))
                check(i)
            except ZeroDivisionError as error:
                out.append(str(error))
                continue
            except (KeyError, ValueError) as error:
                out.append(repr(error))
                raise RuntimeError(i) from error
            else:
                out.append("else")
            finally:
                out.append("finally")
        except RuntimeError as error:
            out.append(repr(error.__cause__))
            if i == 5:
                return out
    return out


def handled(n):
    try:
        check(n)
    except ValueError:
        try:
            raise KeyError from None
        except KeyError:
            return sys.exc_info()[0].__name__, sys.exc_info()[1].__suppress_context__
    finally:
        after = sys.exc_info()
    return after


def finals(n):
    while True:
        try:
            if n == 0:
                return "return"
            if n == 1:
                break
            n -= 1
        finally:
            if n == 5:
                return "overridden"  # noqa: B012
    return "break"


def groups(n):
    out = []
    try:
        raise ExceptionGroup("g", [ValueError(n), KeyError(1), TypeError("t")])
    except* ValueError as error:
        out.append(len(error.exceptions))
    except* (KeyError, TypeError) as error:
        out.append([type(e).__name__ for e in error.exceptions])
        if n == 3:
            raise
    return out


def contexts(n):
    with manager("a") as a, manager("b", swallow=True) as b:
        for i in range(n):
            with manager("c"):
                check(i)
                if i == 1:
                    continue
                LOG.append(i)
    return a, b


def returns_within(n):
    with manager("r"):
        try:
            return check(n)
        finally:
            LOG.append("closing")


def patterns(value):
    match value:
        case 0 | 1:
            return "small"
        case [x, y, *rest] if rest:
            return x, y, rest
        case [x]:
            return "one", x
        case {"key": found, **others}:
            return found, others
        case Point(x=0, y=y):
            return "origin", y
        case Point(x, y):
            return x, y
        case str() as text:
            return text
        case None | True:
            return "single"
        case _:
            return "other"


def generator(n):
    received = []
    try:
        for i in range(n):
            received.append((yield i))
            yield from [i, i]
    except ValueError as error:
        yield repr(error)
    finally:
        received.append("closed")
    return received


def delegating(n):
    result = yield from generator(n)
    yield result
    try:
        yield from generator(1)
    except KeyError:
        yield "key"


def drive(n):
    out = []
    gen = delegating(n)
    out.append(next(gen))
    try:
        out.append(gen.send("sent"))
        out.extend(next(gen) for _ in range(n))
        out.append(gen.throw(ValueError("thrown")))
        out.append(list(gen))
    except (StopIteration, RuntimeError) as error:
        out.append(repr(error))
    gen = delegating(n)
    next(gen)
    gen.close()
    return out


async def coroutine(n):
    out = []
    async with AsyncManager() as value:
        out.append(value)
        if n == 3:
            raise KeyError
        out.append([i async for i in agen(n) if i])
    async for i in agen(n):
        out.append(await awaited(i))
        if i == 2:
            break
    else:
        out.append("end")
    return out


async def agen(n):
    for i in range(n):
        yield i
        await asyncio.sleep(0)


async def awaited(i):
    return i if i < 1 else await awaited(i - 1)


def run_coroutine(n):
    return asyncio.run(coroutine(n))


def attributes(n):
    p = Point(n, 2)
    p.z = p.x
    p.z += 1
    del p.y
    return p.z, hasattr(p, "y"), p[0], Child(n).size


def bools_of_objects(n):
    p, q = Point(n, 1), Point(-n, 2)
    r = p and q
    return repr(r), 1 if q else 2, repr(p or q), not p, bool(q) is False


def unbound(n):
    if n:
        x = 1
    try:
        return x
    except UnboundLocalError:
        return "unbound"


def deleted(n):
    x = n
    for _ in range(2):
        try:
            del x
        except UnboundLocalError:
            return "gone"
    return n


def asserts(n):
    assert n != 3, f"n is {n}"
    import os.path as p
    from sys import maxsize
    from sys import version_info as v

    global SET_HERE
    SET_HERE = n
    return p.basename("a/b"), maxsize > 0, len(v), SET_HERE


def classes(n):
    class Local:
        value = n
        table = [value for value in range(2)]

        def method(self):
            return __class__.__name__, self.value

    return Local().method(), Local.table


def walrus(n):
    while (m := n - 1) > 0 and (k := m * 2):
        n = m
    return n, m, k if n > 100 else None


_source = (
    "def long_jumps(n):\n    total = 0\n    for i in range(n):\n        if i % 2: continue\n"
)
_source += "".join(f"        total += i * {1000 + i}; name_{i} = total\n" for i in range(400))
_source += "    return total\n"
exec(_source, globals())

NUMBERS = [(0,), (1,), (2,), (3,), (4,), (6,), (9,)]
CASES = [
    (arithmetic, [(3, 4), (7, 2), (1.5, 2), ("a", 1)]),
    (comparisons, [(1, 2), (2, 1), (2, 2), ("a", "b"), (1, "b")]),
    (booleans, [(a, b, c) for a in (0, 1, None) for b in (0, 1, None) for c in (0, 1)]),
    (containers, [(1, 2), (1, 2, 3, 4), (1,)]),
    (strings, [(1, "é"), ("a", 2.5)]),
    (patterns, [(v,) for v in (0, 1, 2, [1], [1, 2, 3], {"key": 1, "o": 2}, Point(0, 1))]),
    (patterns, [(v,) for v in (Point(1, 2), "text", None, True, [], {})]),
    *(
        (function, NUMBERS)
        for function in (
            calls,
            loops,
            comprehensions,
            shadowed,
            closures,
            exceptions,
            handled,
            finals,
            groups,
            contexts,
            returns_within,
            drive,
            run_coroutine,
            attributes,
            bools_of_objects,
            unbound,
            deleted,
            asserts,
            classes,
            walrus,
            globals()["long_jumps"],
        )
    ),
]


def outcome(function, args):
    """What a call gives and logs, exceptions with their line and chain, in a comparable form."""
    LOG.clear()
    try:
        result = function(*args)
    except Exception as error:
        result = describe(error)
    return repr(result), list(LOG)


def describe(error):
    if error is None:
        return None
    lines, traceback = [], error.__traceback__
    while traceback is not None:
        lines.append((traceback.tb_frame.f_code.co_name, traceback.tb_lineno))
        traceback = traceback.tb_next
    return type(error), str(error), lines[1:], describe(error.__context__)
