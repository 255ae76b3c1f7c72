"""Modules whose type is the program's own."""

import builtins
import types

import torch
from testing import check

_log = []


class Recording(types.ModuleType):
    def __getattribute__(self, name):
        _log.append(("get", name))
        return types.ModuleType.__getattribute__(self, name)

    def __setattr__(self, name, value):
        _log.append(("set", name))
        types.ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name):
        _log.append(("delete", name))
        types.ModuleType.__delattr__(self, name)


class Hiding(types.ModuleType):
    @property
    def __dict__(self):
        return "hidden"


_recording, _hiding = Recording("recording"), Hiding("hiding")


def test_methods_of_the_type_run_where_the_program_runs_them():
    def fn(x):
        _log.clear()
        _recording.size = 12
        found = _recording.size
        del _recording.size
        return x + found, list(_log)

    check(fn, torch.ones(2))


def test_dict_is_what_the_type_says():
    def fn(x):
        _hiding.size = 3
        return x + _hiding.size, _hiding.__dict__

    check(fn, torch.ones(2))


def test_builtins_that_the_program_changes():
    def fn(x):
        real = builtins.len
        found = [len([x])]
        try:
            builtins.len = lambda value: 7
            found.append(len([x]))
        finally:
            builtins.len = real
        return x + found[1], found, len([x])

    check(fn, torch.ones(2), fullgraph=True)


def test_builtins_that_the_program_deletes():
    def fn(x):
        builtins.added_name = 3
        found = x + added_name  # noqa: F821
        del builtins.added_name
        try:
            return found + added_name  # noqa: F821
        except NameError as error:
            return found, str(error)

    check(fn, torch.ones(2), graphs=None)
