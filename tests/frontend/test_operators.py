"""Operators on tensors, constants, containers and user objects."""

import operator

import numpy as np
import pytest
import testing
import torch

import minidynamo

X = torch.arange(1.0, 5.0)
INT = torch.arange(1, 5)

BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip
BITWISE = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
INPLACE = [
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv,
    operator.imod, operator.ipow,
]  # fmt: skip


def check(fn, *args, breaks=0, graphs=None, **kwargs):
    """Without graph breaks unless said otherwise; how many graphs does not matter."""
    return testing.check(fn, *args, breaks=breaks, graphs=graphs, **kwargs)


@pytest.mark.parametrize("function", BINARY)
def test_binary_on_tensors(function):
    check(lambda x, y: (function(x, y), function(x, 2), function(2, y)), X, X + 1, ops=3)


@pytest.mark.parametrize("function", BITWISE)
def test_bitwise_on_tensors(function):
    check(lambda x, y: (function(x, y), function(x, 1)), INT, INT + 1, ops=2)


@pytest.mark.parametrize("function", INPLACE)
def test_inplace_on_tensors(function):
    def fn(x, y):
        z = x.clone()
        same = z
        same = function(same, y)
        return same is z, z

    check(fn, X, X + 1)


def test_inplace_statements():
    def fn(x, y):
        z = x * 1
        alias = z
        z += y
        z *= 2
        z -= 1
        z /= 2
        return z, alias, z is alias

    check(fn, X, X)


def test_inplace_on_an_argument():
    def fn(x, y):
        x += y
        return x * 2

    check(fn, X, X)


def test_unary_on_tensors():
    check(lambda x, i: (-x, +x, abs(x), ~i, ~(x > 2)), X, INT)


def test_matmul():
    def fn(a, b):
        c = a @ b
        c @= b
        return c

    check(fn, torch.randn(3, 3), torch.randn(3, 3))


def test_comparison_with_other_kinds():
    def fn(x):
        return x == None, x != "a", None == x, x is None, x in (None, x), x == [1]  # noqa: E711

    check(fn, X)


class Number:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        if isinstance(other, (int, torch.Tensor)):
            return Number(self.value + other)
        return NotImplemented

    def __radd__(self, other):
        return Number(other + self.value + 100)

    def __iadd__(self, other):
        self.value = self.value + other
        return self

    def __mul__(self, other):
        return NotImplemented

    def __neg__(self):
        return Number(-self.value)

    def __invert__(self):
        return "inverted"

    def __eq__(self, other):
        return NotImplemented if not isinstance(other, Number) else self.value == other.value

    def __lt__(self, other):
        return self.value < getattr(other, "value", other)

    def __matmul__(self, other):
        return "matmul"

    def __rmatmul__(self, other):
        return "rmatmul"

    def __getitem__(self, key):
        return key

    def __contains__(self, item):
        return item == self.value

    def __pow__(self, other, mod=None):
        return (other, mod)


class Special(Number):
    def __radd__(self, other):
        return "special"


@pytest.mark.parametrize(
    "use",
    [
        lambda n, x: (n + 1).value,
        lambda n, x: (1 + n).value,
        lambda n, x: (n + x).value,
        lambda n, x: (x + n).value,
        lambda n, x: n + Special(2),
        lambda n, x: Special(2) + n,
        lambda n, x: n + "a",
        lambda n, x: n * 2,
        lambda n, x: 2 * n,
        lambda n, x: n - 1,
        lambda n, x: n[1:2],
        lambda n, x: (n[1], n[1, "a"], n[...]),
        lambda n, x: ((-n).value, ~n),
        lambda n, x: (n == Number(5), n == 5, n != Number(5), n != 7),
        lambda n, x: (n < 7, n < Number(3), n > 3),
        lambda n, x: n >= 3,
        lambda n, x: (5 in n, 6 in n, n in [n], n not in [1]),
        lambda n, x: (n @ 1, 1 @ n),
        lambda n, x: (n**2, pow(n, 3)),
        lambda n, x: [1] + n,
        lambda n, x: [1] * n,
        lambda n, x: +n,
    ],
)
def test_user_operators(use):
    def fn(x, n):
        try:
            result = use(n, x)
        except TypeError as error:
            result = str(error)
        return x + 1, result

    check(fn, X, Number(5))


def test_user_inplace():
    def add(x, n):
        alias = n
        n += 2
        made = Number(x)
        made += x
        return n is alias, n.value, made.value

    check(add, X, Number(5))

    def missing(x, n):
        try:
            n -= 1
        except TypeError as error:
            return x + 1, str(error)

    check(missing, X, Number(5))


@pytest.mark.parametrize(
    "use",
    [
        lambda: 1 + "a",
        lambda: "a" + 1,
        lambda: [1] + (2,),
        lambda: (1,) + [2],
        lambda: {1} + {2},
        lambda: {} + {},
        lambda: [] - [],
        lambda: [1] * 1.5,
        lambda: "a" * [],
        lambda: {} < {},
        lambda: [1] < (2,),
        lambda: 1 < "a",
        lambda: [1, "a"] < [1, 2],
        lambda: -[],
        lambda: ~{},
        lambda: None + 1,
        lambda: {} | [],
        lambda: 3 in 5,
        lambda: int()[0],
        lambda: 1 @ 2,
        lambda: [1] == [1],
        lambda: {1: 2} == {1: 2.0},
        lambda: [1, [2, (3,)]] == [1, [2, (3,)]],
        lambda: (1, [2]) == (1, [2]),
        lambda: [1] == (1,),
        lambda: {1, 2} >= {1},
        lambda: 2**10 // 3 % 7 << 2 | 1,
        lambda: divmod([], 2),
        lambda: 1 < 2 < 3 > 2,
    ],
)
def test_operands_that_do_not_fit(use):
    def fn(x, items):
        try:
            result = use()
        except TypeError as error:
            result = str(error)
        return x + 1, result

    check(fn, X, [1])


def test_module_functions():
    def fn(x, items):
        return (
            operator.getitem(items, 0),
            operator.contains(items, 2),
            operator.not_(items),
            operator.truth(items),
            operator.is_(items, items),
            operator.is_not(items, None),
            operator.concat([x], items),
            operator.index(3),
            operator.countOf(items, 1),
            operator.indexOf(items, 2),
            operator.itemgetter(0, -1)(items),
            operator.attrgetter("shape", "dtype.is_floating_point")(x),
            operator.methodcaller("add", 1, alpha=2)(x),
            operator.setitem(items, 0, x),
            operator.iadd(items, [3]) is items,
        )

    check(fn, X, [1, 2])


def test_getters_from_outside():
    first, key = operator.itemgetter(0), operator.itemgetter("k")

    def fn(x, get):
        return (
            first([x, 1]),
            get({"k": x}),
            sorted([(2, 1), (1, 2)], key=operator.itemgetter(1)),
        )

    check(lambda x: fn(x, key), X)


def test_constant_folding_keeps_identity():
    def fn(x, a, b):
        longest = max(a, b)
        longest.append(1)
        joined = [a] + [b]
        joined[0].append(2)
        return x + 1, longest is b, joined[1] is b, operator.is_(a, [3]), a is b

    check(fn, X, [3], [4])


def test_mixed_tensor_and_number():
    def fn(x, n):
        return n * x - (n // 2) + x**n / n, n > 1, (x > n).any(), 2.5 * x % n

    check(fn, X, 3)


def test_chained_comparison_of_numbers():
    def fn(x, n):
        if 0 < n <= 3 and n != 2:
            return x + n
        return x

    check(fn, X, 3)
    check(fn, X, 2)


def test_powers_of_negative_numbers():
    """Graphs print the operator as `-2 ** x`, which would be the negative of a power."""

    def of_tensors(x):
        return (-2) ** x, pow(-2.0, x), operator.pow(-3, x.double()), (-2) ** x.int(), x**-2

    class Number(int):
        pass

    def of_objects(x):
        return Number(-2) ** x, Number(2) ** x

    def of_arrays(x):
        array = x.numpy()
        return torch.from_numpy((-2.0) ** array), np.float32(-2) ** x

    def of_sizes(x, n):
        return (-2) ** x.shape[0] * x, pow(-3, n), (-n) ** 2, (-1.5) ** n, n**3

    x = torch.arange(1.0, 5.0)
    check(of_tensors, x)
    check(of_tensors, x, backend="inductor", graphs=None)
    check(of_arrays, x)
    check(of_objects, x)
    testing.check_recompiles(of_sizes, [(torch.ones(n), n - 4) for n in (2, 3, 4, 5, 7)], None)


class Sequence:
    def __abs__(self):
        return 3

    def __getitem__(self, index):
        return index

    def __add__(self, other):
        return ["added", other]


def test_functions_of_operator_by_special_methods():
    def fn(x):
        own = Sequence()
        joined = (
            operator.concat(own, [1]),
            operator.concat("a", "b"),
            operator.iconcat("a", "b"),
        )
        return operator.abs(x - 1), operator.abs(own), operator.abs(-3), joined

    check(fn, X, fullgraph=True)


class Overriding:
    """No tensor, but torch hands it its functions."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return "own", function.__name__


class ComparesItself(Overriding):
    __hash__ = object.__hash__

    def __eq__(self, other):
        return "own =="


def test_objects_that_override_torch_functions_answer_comparisons():
    def fn(x):
        y, other, equal = x + 1, Overriding(), ComparesItself()
        answers = y == other, y != other, other == y, other != y, y < other, other > y
        own = y == equal, equal == y, y != equal
        return y, answers, own, y in [other], [y] == [other], y == "text", y != "text"

    check(fn, X, fullgraph=True)


class Field:
    """Knows powers modulo, of its own kind only."""

    def __init__(self, value):
        self.value = value

    def __pow__(self, other, mod=None):
        if not isinstance(other, Field):
            return NotImplemented
        return Field(pow(self.value, other.value, getattr(mod, "value", mod)))

    def __rpow__(self, other):
        return "never with three"


class Turn(int):
    def __pow__(self, other, mod=None):
        return "turned", int(self), other, mod


class Shy(int):
    def __pow__(self, other, mod=None):
        return NotImplemented


class Tally(int):
    pass


class OnlyReflected:
    def __rpow__(self, other):
        return 1


def test_powers_modulo():
    def fn(x, number):
        mine = pow(Field(3), Field(5), Field(7)), pow(Field(3), Field(5), 7)
        turned = pow(Turn(3), number, 7), pow(Turn(3), 5, Tally(7))
        plain = pow(2, number, 7), pow(Tally(2), 5, number), pow(True, Tally(4), number)
        return x + 1, [m.value for m in mine], turned, plain, pow(3, Turn(5), 7)

    check(fn, X, Tally(10))


@pytest.mark.parametrize(
    "values",
    [
        (Field(3), 5, 7), (3, Field(5), 7), (3, 5, Field(7)), (object(), 5, 7), (Shy(3), 5, 7),
        (3, Shy(5), 7), (Tally(3), Tally(5), 2.0), ([], Tally(1), "a"), (Tally(2), 2.5, 7),
        (Tally(2), 3, 0), (OnlyReflected(), 1, 7), (2, 1, OnlyReflected()), (Tally(2), -1, 4),
    ],
)  # fmt: skip
def test_powers_modulo_of_what_does_not_fit(values):
    def fn(x, values):
        try:
            return x + 1, pow(*values)
        except (TypeError, ValueError, AttributeError) as error:
            return x + 2, type(error), str(error)

    compiled = minidynamo.compile(fn, backend="eager")
    testing.assert_same(compiled(X, values), fn(X, values))
