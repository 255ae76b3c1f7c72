"""What random programs are made of: kinds of values, and rows of templates (see builder.py).

A row's place matters: a failing program is shrunk towards the first rows. Loops are bounded by
`fuel`, because a body may extend what the loop goes over.
"""

from __future__ import annotations

PRELUDE = '''
import collections, contextlib, functools, itertools, operator
import torch, minidynamo

TOTAL = 0
LOG = []
FUEL = [0]
TABLE = {"a": 1, "z": 26}


class Oops(Exception):
    pass


class Detailed(ValueError):
    def __init__(self, code, *more):
        super().__init__(f"code {code}", *more)
        self.code = code


class Node:
    """An object with attributes, a protocol of each kind, and a log of what was done to it."""

    shared = 3

    def __init__(self, value, items):
        self.value = value
        self.items = items

    @property
    def double(self):
        return self.value * 2

    @double.setter
    def double(self, value):
        self.value = value // 2

    @classmethod
    def make(cls, value):
        return cls(value, [value])

    @staticmethod
    def square(value):
        return value * value

    def add(self, value, *more, scale=1, **named):
        self.items.append(value)
        self.value += value * scale + sum(more) + sum(named.values())
        return self.value

    def pairs(self):
        for index, item in enumerate(self.items):
            yield index, item

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __contains__(self, item):
        return item == self.value

    def __call__(self, value):
        self.value = value
        return value + 1

    def __enter__(self):
        self.items.append(-1)
        return self

    def __exit__(self, kind, error, traceback):
        self.items.append(-2)
        return kind is not None and issubclass(kind, (ValueError, LookupError))


class Child(Node):
    def __init__(self, value, items):
        super().__init__(value + 1, items)
        self.extra = None

    def add(self, value, *more, scale=2, **named):
        result = super().add(value, *more, scale=scale, **named)
        self.extra = result
        return result

    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(name)
        return len(name)

    def __eq__(self, other):
        return isinstance(other, Node) and other.value == self.value

    def __hash__(self):
        return hash(self.value)


class Countdown:
    def __init__(self, start):
        self.left = start

    def __iter__(self):
        return self

    def __next__(self):
        if self.left <= 0:
            raise StopIteration
        self.left -= 1
        return self.left


class Changing:
    """A context manager that replaces the exception."""

    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append(len(self.log))
        return len(self.log)

    def __exit__(self, kind, error, traceback):
        self.log.append(0 if kind is None else 1)
        if kind is not None:
            raise Oops(str(error)) from error


@contextlib.contextmanager
def logged(log, swallow=False):
    log.append(10)
    try:
        yield len(log)
    except ValueError:
        if not swallow:
            raise
    finally:
        log.append(11)


class Point:
    __match_args__ = ("across", "down")

    def __init__(self, across, down):
        self.across = across
        self.down = down

    def __iadd__(self, other):
        LOG.append(("iadd", other))
        self.across += other
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Point(len(name), self)

    def __setitem__(self, key, value):
        LOG.append(("set", key, value))

    def __getitem__(self, key):
        LOG.append(("get", key))
        return key

    def __bool__(self):
        return self.across > 0


class Loud:
    """A descriptor that logs what is done through it."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner):
        LOG.append(("get", self.name))
        return self if instance is None else getattr(instance, self.name, 0)

    def __set__(self, instance, value):
        LOG.append(("set", self.name, value))
        if value == 7:
            raise ValueError("seven")
        setattr(instance, self.name, value)

    def __delete__(self, instance):
        LOG.append(("delete", self.name))
        delattr(instance, self.name)


class Watched(Node):
    level = Loud()
    depth = 0

    def __init__(self, value, items):
        super().__init__(value, items)
        self.level = value

    def __init_subclass__(cls, **options):
        cls.depth = len(options)

    @functools.cached_property
    def once(self):
        LOG.append("once")
        return self.value + 1

    def __iter__(self):
        return (item for item in self.items)


def echo(first):
    while True:
        try:
            got = yield first
        except ValueError:
            got = 100
        if got is not None:
            first += got


def upto(count):
    for index in range(count):
        yield index
    return count


def through(iterable):
    result = yield from iterable
    return result


def twice(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(function(*args, **kwargs))

    return inner


def fuel():
    """Called once an iteration by every loop, so that all end."""
    FUEL[0] += 1
    if FUEL[0] > 60:
        raise RuntimeError("out of fuel")


def bump(value):
    global TOTAL
    TOTAL += value
    LOG.append(value)
    return TOTAL
'''

SIGNATURE = {
    "x": "TENSOR",
    "a": "INT",
    "b": "INT",
    "text": "STR",
    "items": "LIST",
    "table": "DICT",
    "node": "NODE",
    "other": "NODE",
    "group": "SET",
    "source": "ITER",
}

# -- expressions -----------------------------------------------------------------------------------

LEAVES = {
    "INT": ["1", "2", "0", "-3", "7"],
    "BOOL": ["True", "False"],
    "STR": ["'a'", "'bc'", "''"],
    "LIST": ["[1, 2]", "[]", "LOG"],
    "DICT": ["{'a': 1}", "{}", "TABLE"],
    "SET": ["{1, 2}", "set()"],
    "TUPLE": ["(1, 2)", "()"],
    "PAIR": ["(1, 2)"],
    "TENSOR": ["torch.ones(3)"],
    "FUNCTION": ["abs", "bump", "(lambda v: v)"],
    "NODE": ["Node(1, [])", "Child(2, [3])"],
    "ITER": ["iter([1, 2])", "upto(3)"],
    "GEN": ["upto(3)", "echo(1)"],
    "MANAGER": ["contextlib.nullcontext(1)"],
    "ERROR": ["ValueError", "Oops('o')"],
    "CAUGHT": ["ValueError", "Exception"],
    "ANY": ["None", "1"],
    "TARGETS": [""],
}

EXPRESSIONS = {
    "INT": [
        "3",
        "<INT> + <INT>",
        "<INT> - <INT>",
        "<INT> * 2",
        "<INT> // <INT>",
        "<INT> % 5",
        "-<INT>",
        "(~<INT> & 7)",
        "len(<LIST>)",
        "sum(<LIST>)",
        "max(<LIST>, default=0)",
        "int(<BOOL>)",
        "int(<STR>)",
        "<LIST>[<INT>]",
        "<DICT>[<STR>]",
        "<DICT>.get(<STR>, <INT>)",
        "<NODE>.value",
        "<NODE>.double",
        "<NODE>.shared",
        "<NODE>.add(<INT>)",
        "<NODE>.add(<INT>, *<TUPLE>, scale=<INT>)",
        "<NODE>.add(<INT>, **<DICT>)",
        "<NODE>[<INT>]",
        "len(<NODE>)",
        "<NODE>(<INT>)",
        "<NODE>.nothing",
        "Node.square(<INT>)",
        "(<INT> if <BOOL> else <INT>)",
        "(<INT> or <INT>)",
        "(<BOOL> and <INT>)",
        "<FUNCTION>(<INT>)",
        "next(<ITER>)",
        "next(<ITER>, <INT>)",
        "<GEN>.send(None)",
        "TOTAL",
        "<TENSOR?>.shape[0]",
        "<LIST>.index(<INT>)",
        "<LIST!>.pop()",
        "<DICT?>.pop(<STR>, <INT>)",
        "<DICT?>.setdefault(<STR>, <INT>)",
        "functools.reduce(lambda p, q: p * 2 + q, <LIST>, <INT>)",
        "<STR>.count('a')",
        "hash(<INT>)",
        "<PAIR>[0]",
        "(lambda p, /, q=<INT>, *r, k=1: p + q + k + len(r))(*<LIST>)",
        "(lambda *p, **n: len(p) + sum(n.values()))(*<LIST>, <INT>, *<TUPLE>, k=<INT>, **<DICT>)",
        "Point(<INT>, 1).some.name.across",
        "Watched(<INT>, <LIST>).level",
        "(lambda w: w.once + w.once)(Watched(<INT>, <LIST>))",
        "min(<LIST>, key=<FUNCTION>)",
        "<GEN>.throw(<ERROR>)",
        "operator.attrgetter('value')(<NODE>)",
        "operator.itemgetter(<INT>)(<LIST>)",
    ],
    "BOOL": [
        "True",
        "<INT> < <INT>",
        "<INT> <= <INT> < <INT>",
        "<INT> == <INT>",
        "not <BOOL>",
        "(<BOOL> or <BOOL>)",
        "<INT> in <LIST>",
        "<STR> not in <DICT>",
        "<INT> in <NODE>",
        "<INT> in <SET>",
        "<ANY> is <ANY>",
        "<LIST> is <LIST>",
        "<NODE> is not <NODE>",
        "<NODE> == <NODE>",
        "<LIST> == <LIST>",
        "<DICT> == <DICT>",
        "<SET> <= <SET>",
        "isinstance(<ANY>, (int, str))",
        "bool(<LIST>)",
        "<q=LIST><v:=INT>any(<BOOL> for $v in $q)",
        "<q=LIST><v:=INT>all($v < <INT> for $v in $q)",
        "hasattr(<NODE>, 'extra')",
        "callable(<ANY>)",
    ],
    "STR": [
        "'b'",
        "<STR> + <STR>",
        "str(<INT>)",
        "(lambda u, w: f'{u}-{w!r:>5}')(<INT>, <STR>)",
        "(lambda u, w: f'{u:{w}}')(<INT>, <INT> % 9)",
        "repr(<LIST>)",
        "repr(<TUPLE>)",
        "<q=LIST><v:=INT>','.join(str($v) for $v in $q)",
        "<STR>[<INT>:]",
        "<STR>.upper()",
        "<STR> % ()",
        "'%s/%d' % (<STR>, <INT>)",
        "type(<ANY>).__name__",
        "''.join(sorted(<STR>))",
        "'{} {k}'.format(<INT>, k=<STR>)",
    ],
    "LIST": [
        "[<INT>]",
        "[<INT>, *<LIST>, <INT>]",
        "<LIST> + <LIST>",
        "<q=LIST><v:=INT>[<INT> for $v in $q]",
        "<q=LIST><v:=INT>[<INT> for $v in $q if <BOOL>]",
        "<q=LIST><r=LIST><v:=INT><w:=INT>[<INT> for $v in $q for $w in $r[:3]]",
        "sorted(<LIST>, reverse=<BOOL>)",
        "sorted(<LIST>, key=<FUNCTION>)",
        "list(range(<INT> % 6))",
        "<LIST>[<INT>:<INT>]",
        "<LIST>[::-1]",
        "list(<ITER>)",
        "list(map(<FUNCTION>, <LIST>))",
        "list(map(max, <LIST>, <LIST>))",
        "list(filter(<FUNCTION>, <LIST>))",
        "list(<DICT>.values())",
        "list(<TUPLE>)",
        "sorted(<SET>)",
        "list(<SET>)",
        "<LIST>.copy()",
        "<NODE>.items",
        "list(itertools.islice(<GEN>, <INT> % 4))",
        "list(itertools.chain(<LIST>, <ITER>))",
        "list(itertools.accumulate(<LIST>))",
        "list(itertools.takewhile(lambda v: v < 3, <LIST>))",
        "[v for v, _ in zip(<LIST>, <GEN>)]",
        "[p + q for p, q in zip(<LIST>, <LIST>, strict=True)]",
        "[k * v for k, v in enumerate(<LIST>, <INT>)]",
        "list(itertools.chain.from_iterable([<LIST>, <TUPLE>]))",
        "list(iter(functools.partial(next, <ITER>, 0), 0))",
    ],
    "DICT": [
        "{<STR>: <INT>}",
        "{**<DICT>, <STR>: <INT>}",
        "<DICT> | <DICT>",
        "<q=LIST><v:=INT>{str($v): <INT> for $v in $q}",
        "dict(zip(<STR>, <LIST>))",
        "dict(a=<INT>, **{'q': <INT>})",
        "<DICT>.copy()",
        "{k: v + 1 for k, v in <DICT>.items()}",
        "dict.fromkeys(<STR>, <INT>)",
        "vars(Node(<INT>, 2))",
    ],
    "SET": [
        "{<INT>, <INT>}",
        "set(<LIST>)",
        "<SET> | <SET>",
        "<SET> - <SET>",
        "<q=LIST><v:=INT>{<INT> for $v in $q}",
        "<SET>.copy()",
    ],
    "TUPLE": [
        "(<INT>,)",
        "(*<LIST>, <INT>)",
        "tuple(<LIST>)",
        "<TUPLE> + <TUPLE>",
        "<TUPLE>[1:]",
    ],
    "PAIR": [
        "(<INT>, <INT>)",
        "divmod(<INT>, <INT>)",
        "[<INT>, <INT>]",
        "<LIST>",
        "next(iter(<NODE>.pairs()))",
    ],
    "TENSOR": [
        "<TENSOR> + <INT>",
        "<TENSOR> * <TENSOR>",
        "torch.sin(<TENSOR>)",
        "<TENSOR>.sum()",
        "<TENSOR> * 0.5",
        "torch.stack([<TENSOR>, <TENSOR>])[0]",
        "sum([<TENSOR>, <TENSOR>])",
        "<q=LIST><v:=INT>sum([<TENSOR> * $v for $v in $q], <TENSOR>)",
        "(<TENSOR> if <BOOL> else <TENSOR>)",
        "functools.reduce(torch.add, [<TENSOR>, <TENSOR>])",
        "<TENSOR>.reshape(-1)[0]",
    ],
    "FUNCTION": [
        "<v:=INT>(lambda $v: <INT>)",
        "<v:=INT><q=INT>(lambda $v, more=$q: more + <INT>)",
        "twice(<FUNCTION>)",
        "functools.partial(max, <INT>)",
        "<NODE>",
        "<NODE>.add",
        "LOG.count",
        "<LIST>.__getitem__",
        "Node.square",
        "bump",
    ],
    "NODE": [
        "Node(<INT>, <LIST>)",
        "Child(<INT>, <LIST>)",
        "Node.make(<INT>)",
        "Child.make(<INT>)",
        "(<NODE> if <BOOL> else <NODE>)",
        "(<NODE> or <NODE>)",
        "Watched(<INT>, <LIST>)",
    ],
    "ITER": [
        "iter(<LIST>)",
        "upto(<INT>)",
        "<q=LIST><v:=INT>(<INT> for $v in $q)",
        "map(<FUNCTION>, <LIST>)",
        "map(<FUNCTION>, <ITER>)",
        "filter(None, <LIST>)",
        "reversed(<LIST>)",
        "iter(<TUPLE>)",
        "iter(<DICT>.values())",
        "iter(<SET>)",
        "iter(<NODE>)",
        "Countdown(<INT> % 5)",
        "through(<LIST>)",
        "through(<ITER>)",
        "itertools.chain(<ITER>, <ITER>)",
        "itertools.islice(<GEN>, <INT>)",
        "itertools.starmap(max, zip(<LIST>, <LIST>))",
        "itertools.compress(<LIST>, <LIST>)",
        "itertools.repeat(<INT>, 3)",
        "(p for p, q in itertools.zip_longest(<LIST>, <LIST>, fillvalue=0))",
    ],
    "GEN": [
        "upto(<INT>)",
        "echo(<INT>)",
        "through(<ITER>)",
        "through(<GEN>)",
        "(v for v in <LIST>)",
    ],
    "MANAGER": [
        "contextlib.nullcontext(<INT>)",
        "contextlib.suppress(<CAUGHT>)",
        "<NODE>",
        "Changing(<LIST>)",
        "logged(<LIST>)",
        "logged(<LIST>, swallow=True)",
    ],
    "ERROR": [
        "ValueError",
        "ValueError(<INT>)",
        "Oops(<STR>)",
        "Detailed(<INT>)",
        "Detailed(<INT>, <STR>)",
        "KeyError(<STR>)",
        "StopIteration(<INT>)",
    ],
    "CAUGHT": [
        "ValueError",
        "Exception",
        "(KeyError, IndexError)",
        "Oops",
        "ArithmeticError",
        "(Detailed, (TypeError, AttributeError))",
        "StopIteration",
    ],
    "ANY": [
        "None",
        "<INT>",
        "<STR>",
        "<LIST>",
        "<DICT>",
        "<NODE>",
        "<TENSOR>",
        "<TUPLE>",
        "<FUNCTION>",
        "[<LIST>, <LIST>]",
        "(<NODE>, <LIST>, <ITER>)",
        "<SET>",
        "<GEN>",
        "<INT> / 2",
        "Point(<INT>, <INT>)",
        "collections.deque(<LIST>, 3)",
        "collections.Counter(<STR>)",
        "<ERROR>",
    ],
}

# -- statements ------------------------------------------------------------------------------------

STATEMENTS = [
    "<+INT> = <INT>",
    "<+TENSOR> = <TENSOR>",
    "<+LIST> = <LIST>",
    "<+STR> = <STR>",
    "<+DICT> = <DICT>",
    "<+SET> = <SET>",
    "<+NODE> = <NODE>",
    "<+FUNCTION> = <FUNCTION>",
    "<+ITER> = <ITER>",
    "<+GEN> = <GEN>",
    "<+TUPLE> = <TUPLE>",
    "<INT!> += <INT>",
    "<TENSOR!> = <TENSOR> + <INT>",
    "<LIST!> += <LIST>",
    "<STR!> += <STR>",
    "<+INT>, <+INT> = <PAIR>",
    "<+INT>, *<+LIST> = <LIST>",
    "<+INT>, (<+INT>, *_) = <INT>, <LIST>",
    "<+INT> = <+INT> = <INT>",
    "if <BOOL>:\n    <BLOCK>",
    "if <BOOL>:\n    <BLOCK>\nelse:\n    <BLOCK>",
    "if (<+INT> := <INT>) > 1:\n    <BLOCK>\nelif <BOOL>:\n    <BLOCK>",
    "for <+INT> in <LIST>:\n    fuel()\n    <LOOP>",
    "for <+INT> in <ITER>:\n    fuel()\n    <LOOP>\nelse:\n    <BLOCK>",
    "for <+INT>, <+INT> in enumerate(<LIST>):\n    fuel()\n    <LOOP>",
    "for <+STR>, <+INT> in <DICT>.items():\n    fuel()\n    <LOOP>",
    "for <+STR> in <DICT>:\n    fuel()\n    <LOOP>",
    "for <+INT> in <SET>:\n    fuel()\n    <LOOP>",
    "for <+INT>, <+INT> in zip(<LIST>, <GEN>):\n    fuel()\n    <LOOP>",
    "for <+INT> in <NODE>:\n    fuel()\n    <LOOP>",
    "<w=INT>count = 0\nwhile count < 3 and <BOOL>:\n    count += 1\n    fuel()\n    <LOOP>",
    "while True:\n    fuel()\n    <LOOP>\n    if <BOOL>:\n        break",
    "break",
    "continue",
    "try:\n    <BLOCK>\nexcept <CAUGHT> as error:\n    <BLOCK>\n    LOG.append(error)",
    "try:\n    <BLOCK>\nexcept <CAUGHT>:\n    <BLOCK>",
    "try:\n    <BLOCK>\nfinally:\n    <BLOCK>",
    "try:\n    <BLOCK>\nexcept <CAUGHT> as error:\n    <BLOCK>\nexcept Exception as error:\n"
    "    <BLOCK>\nelse:\n    <BLOCK>\nfinally:\n    <BLOCK>",
    "try:\n    <BLOCK>\nexcept <CAUGHT>:\n    <BLOCK>\n    raise",
    "try:\n    <BLOCK>\nexcept <CAUGHT> as error:\n    <BLOCK>\n    raise <ERROR> from error",
    "raise <ERROR>",
    "raise <ERROR> from None",
    "assert <BOOL>, <STR>",
    "with <MANAGER>:\n    <BLOCK>",
    "with <MANAGER> as <+INT>:\n    <BLOCK>",
    "with <MANAGER>, <MANAGER>:\n    <BLOCK>",
    "with contextlib.ExitStack() as stack:\n    stack.enter_context(<MANAGER>)\n"
    "    stack.callback(<LIST>.append, <INT>)\n    <BLOCK>",
    "return <ANY>",
    "return <TENSOR>, <ANY>",
    "<LIST>.append(<INT>)",
    "<LIST>.extend(list(<LIST>))",
    "<LIST>.insert(<INT>, <INT>)",
    "<LIST>[<INT>] = <INT>",
    "<LIST>[<INT>:<INT>] = <LIST>",
    "del <LIST>[<INT>]",
    "<LIST>.sort()",
    "<LIST>.reverse()",
    "<LIST>.clear()",
    "<LIST>.remove(<INT>)",
    "<LIST>[<INT>] += <INT>",
    "<DICT>[<STR>] = <INT>",
    "<DICT>[<STR>] += <INT>",
    "<DICT>.update(<DICT>)",
    "del <DICT>[<STR>]",
    "<DICT>.popitem()",
    "<SET>.add(<INT>)",
    "<SET>.discard(<INT>)",
    "<SET>.update(<LIST>)",
    "<SET>.pop()",
    "<NODE>.value = <INT>",
    "<NODE>.value += <INT>",
    "<NODE>.double = <INT>",
    "<NODE>.items = <LIST>",
    "<NODE>.fresh = <ANY>",
    "del <NODE>.value",
    "<NODE>.add(<INT>)",
    "LOG.append(<ANY>)",
    "LOG.append((<LIST>, <NODE>))",
    "bump(<INT>)",
    "<FUNCTION>(<INT>)",
    "minidynamo.graph_break()",
    "print(end='')",
    "<GEN>.send(<INT>)",
    "next(<ITER>)",
    "<GEN>.throw(<ERROR>)",
    "<GEN>.close()",
    "<+INT> = yield <INT>",
    "yield <INT>",
    "yield from <LIST>",
    "yield from <GEN>",
    "<q=INT>$q",
    "<p:=INT>def f($p):\n    <BODY>\n    return <INT>\n<+FUNCTION> = f",
    "<p:=INT>def f($p):\n    nonlocal <INT!>\n    <BODY>\n    return <INT>\n<+FUNCTION> = f",
    "<p:=INT>@twice\ndef f($p=<INT>, *rest, flag=<BOOL>):\n    <BODY>\n    return <INT>\n"
    "<+FUNCTION> = f",
    "<p:=INT>def g($p):\n    <GENERATOR>\n    yield $p\n<+GEN> = g(<INT>)",
    "<p:=INT>def g($p):\n    try:\n        yield $p\n        <GENERATOR>\n    finally:\n"
    "        LOG.append($p)\n<+GEN> = g(<INT>)",
    "match <ANY>:\n    case [first, *rest]:\n        LOG.append(rest)",
    "match <ANY>:\n    case int(v) | [v, *_] if v:\n        LOG.append(v)\n"
    "    case {'a': v, **more}:\n        LOG.append((v, more))\n"
    "    case Node(value=v, items=[*w]):\n        LOG.append((v, w))\n"
    "    case str() as v:\n        LOG.append(v)\n"
    "    case None | True:\n        LOG.append(0)\n"
    "    case _:\n        LOG.append(1)",
    "match <INT>:\n    case 1:\n        LOG.append(1)\n    case v if v > 2:\n        LOG.append(v)",
    "globals()['TOTAL'] = <INT>",
    "import math\n<+INT> = math.floor(<INT> / 2)",
    "from itertools import chain as c\n<+ITER> = c(<LIST>)",
    "<+INT> = getattr(<NODE>, <STR>, <INT>)",
    "setattr(<NODE>, 'v', <INT>)",
    "<TENSOR!>.add_(<INT>)",
    "<+LIST> = [<LIST>, <LIST>]",
    "<LIST>.append(<LIST>)",
    "<+LIST> = [<+INT> := <INT>, <INT>]",
    "del <INT!>",
    "for <+INT> in <LIST>:\n    fuel()\n    try:\n        <LOOP>\n    finally:\n        <LOOP>",
    "try:\n    return <ANY>\nfinally:\n    <BLOCK>",
    "for <+INT> in <LIST>:\n    fuel()\n    with <MANAGER>:\n        <LOOP>\n        break",
    "for <+INT> in <LIST>:\n    fuel()\n    with <MANAGER>:\n        <LOOP>\n        continue",
    "with <MANAGER>:\n    <BLOCK>\n    return <ANY>",
    "<p:=INT>def f($p):\n    def inner():\n        nonlocal <INT!>\n        <BODY>\n"
    "        return <INT>\n    return inner() + $p\n<+FUNCTION> = f",
    "def f(v):\n    global TOTAL\n    TOTAL = v\n    return TOTAL + 1\n<+FUNCTION> = f",
    "<NODE>.items[bump(<INT>) % 3] += <INT>",
    "<LIST>[bump(<INT>)] -= bump(<INT>)",
    "<NODE>.double += <INT>",
    "<DICT>[<STR>] = <DICT>[<STR>] = bump(<INT>)",
    "<p=ANY>point = Point(<INT>, $p)\npoint += <INT>\npoint[<INT>] += 1\npoint.down = <ANY>\n"
    "LOG.append((point.across, bool(point)))",
    "<p=DICT>changing = $p\nfor key in changing:\n    fuel()\n    changing[<STR>] = <INT>\n"
    "    <LOOP>",
    "<p=DICT>changing = $p\nfor key in changing:\n    fuel()\n    changing.pop(key)",
    "<p=SET>growing = $p\nfor member in growing:\n    fuel()\n    growing.add(<INT>)",
    "<p=LIST>queue = collections.deque($p)\nfor member in queue:\n    fuel()\n"
    "    queue.append(<INT>)",
    "raise <ERROR> from <ERROR>",
    "try:\n    <BLOCK>\nexcept <CAUGHT> as error:\n"
    "    LOG.append((error, error.__cause__, error.__context__, error.__suppress_context__))",
    "try:\n    raise <ERROR>\nexcept <CAUGHT> as error:\n    try:\n        <BLOCK>\n"
    "    except Exception as other:\n        raise other from error",
    "class Local:\n    field = <INT>\n    def method(self, v):\n"
    "        return v + <INT> + self.field\n<+FUNCTION> = Local().method",
    "<v:=INT><+LIST> = [last := $v for $v in <LIST> if (last := $v) < <INT>]\nLOG.append(last)",
    "match <ANY>:\n    case Point(1 | 2 as v, Point()):\n        LOG.append(v)\n"
    "    case Point(down=v):\n        LOG.append(v)\n"
    "    case Node(value=int() as v) | Point(v):\n        LOG.append((1, v))\n"
    "    case [1, 2] | (1, *_):\n        LOG.append(2)\n"
    "    case {**rest}:\n        LOG.append(rest)",
    "watched = Watched(<INT>, <LIST>)\n<BLOCK>\nwatched.level = <INT>\nwatched = None\n"
    "LOG.append('behind')",
    "<+NODE> = Watched(<INT>, <LIST>)\ndel <NODE!>\nLOG.append('deleted')",
    "del <NODE>.level",
    "<GEN>.close()\nLOG.append('closed')",
    "<p=GEN>stepped = $p\ntry:\n    LOG.append(stepped.send(None))\n"
    "    LOG.append(stepped.throw(<ERROR>))\nfinally:\n    stepped.close()",
    "for <+INT> in <LIST>:\n    fuel()\n    try:\n        <LOOP>\n    finally:\n        break",
    "try:\n    <BLOCK>\nexcept <CAUGHT>:\n    return <ANY>\nelse:\n    <BLOCK>\nfinally:\n"
    "    <BLOCK>",
    "def f(v):\n    try:\n        return v + <INT>\n    finally:\n        return v\n"
    "<+FUNCTION> = f",
    "def f(v):\n    for _ in range(3):\n        try:\n            return v // <INT>\n"
    "        except <CAUGHT>:\n            continue\n        finally:\n            LOG.append(v)\n"
    "    return v\n<+FUNCTION> = f",
    "while (<+INT> := <INT>) > 0:\n    fuel()\n    <LOOP>",
    "<p:=INT>def g($p):\n    try:\n        got = yield $p\n        <GENERATOR>\n"
    "    except GeneratorExit:\n        LOG.append('exit')\n        return 5\n"
    "    except ValueError as error:\n        yield from upto(2)\n"
    "        raise KeyError($p) from error\n<+GEN> = g(<INT>)",
    "def f(v, *, key=<INT>, **named):\n    def inner():\n        nonlocal v, key\n        v += 1\n"
    "        key = v * 2\n        return key\n    inner()\n"
    "    return (inner(), v, key)[bool(named)]\n<+FUNCTION> = f",
    "with <MANAGER>:\n    with <MANAGER>:\n        raise <ERROR>\nLOG.append('swallowed')",
    "LOG.append([(u, [u * w for w in <LIST>]) for u in <LIST> if u])",
    "class Local(Node):\n    __slots__ = ('left',)\n    kept = [<INT>, <INT>]\n"
    "    total = sum(kept)\n    def __len__(self):\n        return <INT> % 4\n"
    "    def __getattribute__(self, name):\n        LOG.append(name)\n"
    "        return super().__getattribute__(name)\n<+NODE> = Local(<INT>, <LIST>)",
    "<p=GEN>held = $p\nfor <+INT> in held:\n    fuel()\n    <LOOP>\n    break\n"
    "LOG.append(list(held))",
    "try:\n    try:\n        raise <ERROR>\n    finally:\n        <BLOCK>\n"
    "except Exception as error:\n    LOG.append((error, error.__context__))",
]
