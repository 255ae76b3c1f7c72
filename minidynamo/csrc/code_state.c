// What the hook keeps on code objects: per region the list of entries, in co_extra, so that it is
// freed with the code object. All states are also in one list, for reset().
#include "hook.h"

Py_ssize_t md_extra_index = -1;
static MdCodeState registry;  // head of the ring of all states

// Takes all entries off a list; the caller drops them when nothing is in an unfinished state.
static void detach_entries(MdRegionState* state, PyObject* doomed) {
  MdEntry** entries = state->entries;
  Py_ssize_t count = state->count;
  state->entries = NULL;
  state->count = 0;
  state->capacity = 0;
  state->version++;
  for (Py_ssize_t i = 0; i < count; i++) {
    entries[i]->owner = NULL;
    md_callables_forget(entries[i]);
    if (doomed != NULL && PyList_Append(doomed, (PyObject*)entries[i]) < 0) {
      PyErr_Clear();  // out of memory: drop it here instead of later
    }
    Py_DECREF(entries[i]);
  }
  PyMem_Free(entries);
}

static void free_state(void* pointer) {
  MdCodeState* state = (MdCodeState*)pointer;
  if (state == NULL) {
    return;
  }
  state->previous->next = state->next;
  state->next->previous = state->previous;
  MdRegionState* regions = state->regions;
  state->regions = NULL;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  while (regions != NULL) {
    MdRegionState* next = regions->next;
    detach_entries(regions, NULL);
    PyMem_Free(regions);
    regions = next;
  }
  PyErr_Restore(type, value, traceback);
  PyMem_Free(state);
}

MdCodeState* md_state_ensure(PyCodeObject* code) {
  MdCodeState* state = md_state_get(code);
  if (state != NULL) {
    return state;
  }
  state = PyMem_Calloc(1, sizeof(MdCodeState));
  if (state == NULL) {
    PyErr_NoMemory();
    return NULL;
  }
  if (_PyCode_SetExtra((PyObject*)code, md_extra_index, state) < 0) {
    PyMem_Free(state);
    if (!PyErr_Occurred()) {
      PyErr_NoMemory();
    }
    return NULL;
  }
  state->code = code;
  state->next = registry.next;
  state->previous = &registry;
  registry.next->previous = state;
  registry.next = state;
  return state;
}

MdRegionState* md_region_state_get(MdCodeState* state, MdRegion* region) {
  MdRegionState* found = state->regions;
  while (found != NULL && found->region != region) {
    found = found->next;
  }
  return found;
}

MdRegionState* md_region_state_ensure(MdCodeState* state, MdRegion* region) {
  MdRegionState* found = md_region_state_get(state, region);
  if (found != NULL) {
    return found;
  }
  found = PyMem_Calloc(1, sizeof(MdRegionState));
  if (found == NULL) {
    PyErr_NoMemory();
    return NULL;
  }
  found->region = region;
  found->next = state->regions;
  state->regions = found;
  return found;
}

int md_state_add(MdCodeState* state, MdRegion* region, MdEntry* entry) {
  MdRegionState* list = md_region_state_ensure(state, region);
  if (list == NULL) {
    return -1;
  }
  if (list->count == list->capacity) {
    Py_ssize_t capacity = list->capacity ? 2 * list->capacity : 4;
    MdEntry** entries = PyMem_Realloc(list->entries, capacity * sizeof(MdEntry*));
    if (entries == NULL) {
      PyErr_NoMemory();
      return -1;
    }
    list->entries = entries;
    list->capacity = capacity;
  }
  memmove(list->entries + 1, list->entries, list->count * sizeof(MdEntry*));
  list->entries[0] = (MdEntry*)Py_NewRef((PyObject*)entry);
  list->count++;
  list->version++;
  entry->owner = state;
  return 0;
}

static void remove_at(MdRegionState* state, Py_ssize_t i) {
  MdEntry* entry = state->entries[i];
  state->count--;
  memmove(state->entries + i, state->entries + i + 1, (state->count - i) * sizeof(MdEntry*));
  state->version++;
  entry->owner = NULL;
  md_callables_forget(entry);
  Py_DECREF(entry);
}

static void move_to_front(MdRegionState* state, MdEntry* entry) {
  for (Py_ssize_t i = 0; i < state->count; i++) {
    if (state->entries[i] == entry) {
      memmove(state->entries + 1, state->entries, i * sizeof(MdEntry*));
      state->entries[0] = entry;
      state->version++;
      return;
    }
  }
}

// Guards may run Python code, which may change the list: then the walk starts again, so that
// no entry is missed; a list that keeps changing is a miss in the end.
MdEntry* md_lookup(MdRegionState* state, PyObject* const* localsplus, PyFunctionObject* func,
                   PyObject** fetched, Py_ssize_t* tried) {
  int restarts = 0;
  *tried = 0;
  for (Py_ssize_t i = 0; i < state->count;) {
    MdEntry* entry = state->entries[i];
    if (!entry->valid) {
      remove_at(state, i);
      i = 0;
      *tried = 0;
      continue;
    }
    Py_INCREF(entry);
    unsigned version = state->version;
    if (md_entry_check(entry, localsplus, func, fetched)) {
      entry->hits++;
      if (i > 0 || version != state->version) {
        move_to_front(state, entry);
      }
      return entry;
    }
    int changed = version != state->version;
    Py_DECREF(entry);
    if (changed || version != state->version) {
      if (++restarts > 8) {
        return NULL;
      }
      i = 0;
      *tried = 0;
      continue;
    }
    i++;
    (*tried)++;
  }
  return NULL;
}

PyObject* md_region_state_list(MdRegionState* state) {
  PyObject* list = PyList_New(state->count);
  if (list != NULL) {
    for (Py_ssize_t i = 0; i < state->count; i++) {
      PyList_SET_ITEM(list, i, Py_NewRef((PyObject*)state->entries[i]));
    }
  }
  return list;
}

// A dying region: nobody can be looking at its lists.
void md_states_forget_region(MdRegion* region) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* doomed = PyList_New(0);
  for (MdCodeState* state = registry.next; state != &registry; state = state->next) {
    MdRegionState** link = &state->regions;
    while (*link != NULL && (*link)->region != region) {
      link = &(*link)->next;
    }
    MdRegionState* found = *link;
    if (found != NULL) {
      *link = found->next;
      detach_entries(found, doomed);
      PyMem_Free(found);
    }
  }
  Py_XDECREF(doomed);
  PyErr_Restore(type, value, traceback);
}

// Functions ------------------------------------------------------------------------------------

static PyObject* reset(PyObject* module, PyObject* unused) {
  PyObject* doomed = PyList_New(0);
  if (doomed == NULL) {
    return NULL;
  }
  for (MdCodeState* state = registry.next; state != &registry; state = state->next) {
    for (MdRegionState* list = state->regions; list != NULL; list = list->next) {
      list->skip = MD_ASK;
      detach_entries(list, doomed);
    }
  }
  Py_DECREF(doomed);
  Py_RETURN_NONE;
}

static PyObject* entries(PyObject* module, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs < 1 || nargs > 2 || !PyCode_Check(args[0]) ||
      (nargs == 2 && args[1] != Py_None && !Py_IS_TYPE(args[1], &MdRegion_Type))) {
    PyErr_SetString(PyExc_TypeError, "entries(code, region=None)");
    return NULL;
  }
  PyObject* wanted = nargs == 2 && args[1] != Py_None ? args[1] : NULL;
  PyObject* result = PyList_New(0);
  MdCodeState* state = md_state_get((PyCodeObject*)args[0]);
  MdRegionState* list = state != NULL ? state->regions : NULL;
  for (; result != NULL && list != NULL; list = list->next) {
    for (Py_ssize_t i = 0; i < list->count; i++) {
      if ((wanted == NULL || (PyObject*)list->region == wanted) &&
          PyList_Append(result, (PyObject*)list->entries[i]) < 0) {
        Py_CLEAR(result);
        break;
      }
    }
  }
  return result;
}

static PyObject* skip_code(PyObject* module, PyObject* args, PyObject* kwargs) {
  static char* names[] = {"code", "recursive", NULL};
  PyObject* code;
  int recursive = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|p:skip_code", names, &PyCode_Type, &code,
                                   &recursive)) {
    return NULL;
  }
  MdCodeState* state = md_state_ensure((PyCodeObject*)code);
  if (state == NULL) {
    return NULL;
  }
  state->skip = recursive ? MD_SKIP_RECURSIVE : MD_SKIP;
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"reset", reset, METH_NOARGS,
     "drops all entries of all code objects and what the callbacks said of skipping"},
    {"entries", (PyCFunction)(void (*)(void))entries, METH_FASTCALL,
     "entries(code, region=None) -> list of Entry, most recently hit first in each region"},
    {"skip_code", (PyCFunction)(void (*)(void))skip_code, METH_VARARGS | METH_KEYWORDS,
     "skip_code(code, recursive=False): this code always runs in eager, in every region, and "
     "with recursive nothing below it is offered either; reset() does not undo it"},
    {NULL}};

int md_init_code_state(PyObject* module) {
  registry.next = registry.previous = &registry;
  md_extra_index = _PyEval_RequestCodeExtraIndex(free_state);
  if (md_extra_index < 0) {
    PyErr_SetString(PyExc_ImportError, "no code extra index is left in this process");
    return -1;
  }
  return PyModule_AddFunctions(module, functions);
}
