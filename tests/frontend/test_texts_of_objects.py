"""Texts that show addresses are made behind the graph; texts of sets and partials."""

from __future__ import annotations

import collections
import functools
import re

import pytest
import torch
from testing import CountingBackend, check, check_recompiles

import minidynamo

X = torch.arange(4.0)


class Plain:
    pass


class Named:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"<{self.name}>"


class Listed(set):
    pass


class Frozen(frozenset):
    pass


def one():
    pass


def two():
    pass


def compiled(fn, *args):
    minidynamo.reset()
    counter = CountingBackend()
    result = minidynamo.compile(fn, backend=counter, fullgraph=True)(*args)
    assert len(counter.graphs) == 1
    return result


def test_address_of_an_object():
    def fn(x, given):
        made = Plain()
        return x + 1, made, str(made), repr(made), f"{made!r}, {given}: {made}"

    given = Plain()
    _, made, text, shown, joined = compiled(fn, X, given)
    assert text == shown == repr(made)
    assert joined == f"{made!r}, {given}: {made}"


def test_address_of_an_object_in_an_error():
    def fn(x, given):
        if x.shape[0] == 4:
            raise ValueError(f"bad {given}")
        return x

    given = Plain()
    with pytest.raises(ValueError, match=re.escape(f"bad {given}")):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(X, given)


def test_what_looks_into_such_a_text_breaks_the_graph():
    def fn(x):
        made = Plain()
        return x + 1, repr(made).split(" at ")[0], str(made) == repr(made)

    check(fn, X, graphs=1)


def test_functions():
    def fn(x):
        def inner():
            return x

        return x + 1, inner, str(inner), str(one), f"{one}", repr(one).split(" at ")[0]

    _, inner, text, *rest = compiled(fn, X)
    assert text == repr(inner)
    assert rest == [repr(one), repr(one), repr(one).split(" at ")[0]]


def test_another_function_recompiles():
    def fn(x, function):
        return x + len(str(function)), str(function)

    check_recompiles(fn, [(X, one), (X, one), (X, two)], graphs=2)


def test_percent_with_one_object():
    def fn(x, given):
        named = Named(given)
        return x + 1, "%s|" % named, "%4r" % [named], "%s" % {"a": named}, "%.2s" % type(x)

    for given in ("a", "b"):
        assert compiled(fn, X, given)[1:] == fn(X, given)[1:]


def test_sets():
    def fn(x):
        own = {Named("a")}
        texts = [repr(own), str(frozenset(own)), f"{own}", repr([own])]
        texts += [repr(set()), repr(frozenset()), repr({1, 2})]
        return x + 1, texts, [repr(kind(own)) for kind in (Listed, Frozen)], repr(Listed())

    check(fn, X, graphs=None)
    counter = check(lambda x: (x + 1, repr({Named("a")}), repr(Frozen([1]))), X)
    assert counter.op_count == 1


def test_partials():
    def fn(x):
        made = functools.partial(max, 1, key=len)
        return x + 1, repr(made), str(functools.partial(made, Named("b"))), f"{SHORT}"

    check(fn, X, fullgraph=True)


SHORT = functools.partial(int, base=2)


def test_weakref_attribute_of_a_new_object():
    def fn(x):
        return x + 1 if Plain().__weakref__ is None else x

    check(fn, X, fullgraph=True)


def test_sums_of_texts():
    plain = Plain()

    def fn(x):
        text = "a " + str(plain) + f"{x.sum()}"
        text += "!"
        try:
            collections.deque([1]).remove(plain)
        except ValueError as error:
            return x + 1, text, str(error), "it says: " + str(error), error.args
        return x

    check(fn, X, graphs=1)


def test_other_operators_on_texts_break():
    plain = Plain()

    def fn(x):
        text = "a " + str(plain)
        return x + 1, text == "b", text * 2, text + text

    check(fn, X)
    with pytest.raises(TypeError):
        minidynamo.compile(lambda x: (x + 1, "a" + str(plain) + 1), backend="eager")(X)


class Formatted:
    part = 3

    def __init__(self, log):
        self.log = log

    def __format__(self, spec):
        self.log.append(spec)
        return f"F{spec}"

    def __repr__(self):
        return "made"


class Missing(dict):
    def __missing__(self, key):
        return f"<{key}>"


class Template(str):
    pass


TEMPLATES = (
    "{}|{.part}|{!r:>6}",
    "{0:>4}{0!s}{0.part:05d}{1[0]!a} {{}}",
    "{a[k]}{:{}}{:{w}}",
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_fields_of_templates(template):
    def fn(x, log):
        made = Formatted(log)
        named = {"a": {"k": [made]}, "w": 4}
        args = (made, [made, 1], "q")
        return x + 1, template.format(made, made, *args[2:], 7, **named), template.format(*args)

    check(fn, X, [], graphs=None)

    def whole(x):
        own = Named("a")
        texts = ["{}, {}".format(own, {1: own}), "{a}{b}".format_map(Missing(a=own))]
        texts += [Template("{:>5}").format(str(own)), str.format("{} {}", x.shape, own)]
        return x + 1, texts, "{}{!r}".format(Listed([own]), Plain)

    check(whole, X, fullgraph=True)


BAD = "{.zz} {0}{} {}{0} {1} {9} {a} {!z} {:5} { {0:{1:{2}}} {0[x]} {0.part.x}".split()


@pytest.mark.parametrize("template", BAD)
def test_bad_templates(template):
    def fn(x):
        try:
            return x + 1, template.format(Formatted([]), [Named("a")], Named("b"))
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            return x + 2, type(error), str(error)

    check(fn, X, fullgraph=True)
    check(lambda x: (x + 1, "{}".format_map({})), X)


class Whole(int):
    pass


class Word(str):
    pass


class Indexed:
    def __index__(self):
        return 65


def test_numbers_and_hashes_of_subclasses():
    def fn(x, given):
        new = Whole(9)
        texts = [bin(new), hex(given), oct(new), chr(given), chr(Indexed()), f"{re}"]
        hashes = [hash(new) == 9, hash(Word("a")) == hash("a"), hash(given) == hash(int(given))]
        return x + 1, texts, hashes, id(None), id(True)

    check_recompiles(fn, [(X, Whole(66)), (X, Whole(67)), (X, Whole(66))], graphs=2)
    check(lambda x: (x + 1, bin(2.5)), X)
    check(lambda x: (x + 1, chr(Whole(-1))), X)


def test_addresses_of_objects():
    def fn(x, given):
        new = Plain()
        return x + 1, new, id(new), id(given)

    given = [1]
    _, new, address, known = compiled(fn, X, given)
    assert (address, known) == (id(new), id(given))


class Titled(type):
    def __repr__(cls):
        return f"<titled {cls.__name__}>"


class Spoken(type):
    def __str__(cls):
        return "spoken " + cls.__name__


class Mute(type):
    def __str__(cls):
        return 3


class Page(metaclass=Titled):
    pass


class Voice(metaclass=Spoken):
    pass


class Silent(metaclass=Mute):
    pass


def test_classes_whose_metaclass_says_how_they_are_shown():
    def fn(x, page, voice):
        texts = [str(page), repr(page), f"{page} {page!r}", "%s %r" % (page, page)]
        texts += [str(voice), repr(voice), f"{voice}", str([page, voice])]
        return x + 1, texts, "{}".format(Page), str(Plain), str(type(page)), str(Titled)

    check(fn, X, Page, Voice, fullgraph=True)
    check(lambda x: (x + 1, str(Silent)), X)


def test_texts_with_the_items_of_a_dict():
    class Missing(dict):
        def __missing__(self, key):
            return "?" + key

    def fn(x, table):
        texts = ["%(a)s %(b)05.2f %(o)r" % table, "%s" % Missing(a=1)]
        texts.append("%(a)s %(q)s" % Missing(a=3))
        try:
            texts.append("%(missing)s" % table)
        except KeyError as error:
            texts.append(str(error))
        return x + 1, texts

    for table in ({"a": 1, "b": 2.5, "o": ["x"]}, {"a": 2, "b": 1.5, "o": Voice}):
        check(fn, X, table, fullgraph=True)


def test_texts_follow_the_items():
    def fn(x, table):
        return x + 1, "%(a)s" % table

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    table = {"a": 1}
    for value in (1, 2, 3, "text"):
        table["a"] = value
        assert compiled(X, table)[1] == str(value)


def test_letters_that_a_table_translates():
    table = {97: "z", 98: None}

    def fn(x):
        return x + 1, "abc".translate(table), "abc".translate({99: 120})

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    assert compiled(X)[1:] == ("zc", "abx")
    table[97] = "y"
    assert compiled(X)[1:] == ("yc", "abx")
