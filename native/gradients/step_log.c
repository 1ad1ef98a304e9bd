/*
 * The gradients and waits of one step, for ranks of `hvscale profile --gradients`.
 *
 * A Python extension of the stable ABI, so that one build serves every CPython from 3.10 on. It does
 * what the class StepLog in hvscale/profiling/record/rank_side/gradient_recorder.py does, which
 * stands in where this library cannot be loaded, in half its time. The global interpreter lock makes
 * each method atomic.
 */
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The last tensor of a name. */
struct known {
    uint32_t number;
    unsigned long long elements;
    long process_set;
    PyObject *dtype;
};

/* A growing array of fixed-size items. */
struct column {
    void *items;
    size_t count, capacity;
};

struct log {
    PyObject_HEAD
    PyObject *indices; /* a dict: the index into `known` by name */
    struct column known;
    struct column steps; /* uint64_t by tensor: the step that enqueued it last */
    uint64_t step;
    /* Of each enqueue: uint32_t and uint64_t. */
    struct column tensors, enqueued;
    /* Of each wait, which is one or more calls of synchronize() with no enqueue between them. */
    struct column positions, handles, begins, ends, blocked;
    bool wait_is_open; /* the next call of synchronize() may belong to the last wait */
    PyObject *numel, *dtype;
};

#define AT(column, type, index) (((type *)(column).items)[index])

static bool reserve(struct column *column, size_t item_size, size_t more)
{
    if (column->count + more <= column->capacity)
        return true;
    size_t capacity = column->capacity ? column->capacity : 64;
    while (capacity < column->count + more)
        capacity *= 2;
    void *items = realloc(column->items, capacity * item_size);
    if (!items) {
        PyErr_NoMemory();
        return false;
    }
    column->items = items;
    column->capacity = capacity;
    return true;
}

/* Forget the first items. */
static void remove_first(struct column *column, size_t item_size, size_t number)
{
    column->count -= number;
    if (column->count)
        memmove(column->items, (char *)column->items + number * item_size, column->count * item_size);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1000000000 * (uint64_t)now.tv_sec + (uint64_t)now.tv_nsec;
}

static bool append(struct log *log, uint32_t number, uint64_t time)
{
    if (!reserve(&log->tensors, sizeof(uint32_t), 1) || !reserve(&log->enqueued, sizeof(uint64_t), 1))
        return false;
    AT(log->tensors, uint32_t, log->tensors.count++) = number;
    AT(log->enqueued, uint64_t, log->enqueued.count++) = time;
    AT(log->steps, uint64_t, number) = log->step;
    return true;
}

/* Whether `tensor` is the known one: 1, 0, or -1 with an exception set. */
static int is_known(struct log *log, const struct known *known, PyObject *tensor, PyObject *process_set)
{
    long set = PyLong_AsLong(process_set);
    if (set == -1 && PyErr_Occurred())
        return -1;
    PyObject *dtype = PyObject_GetAttr(tensor, log->dtype);
    if (!dtype)
        return -1;
    Py_DECREF(dtype); /* only compared */
    if (dtype != known->dtype || set != known->process_set)
        return 0;
    PyObject *numel = PyObject_CallMethodObjArgs(tensor, log->numel, NULL);
    if (!numel)
        return -1;
    unsigned long long elements = PyLong_AsUnsignedLongLong(numel);
    Py_DECREF(numel);
    if (PyErr_Occurred())
        return -1;
    return elements == known->elements;
}

static bool check_count(Py_ssize_t given, Py_ssize_t expected)
{
    if (given != expected)
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, not %zd", expected, given);
    return given == expected;
}

/*
 * enqueue(tensor, name, process_set): notes a tensor that is known and not yet in this step, and
 * returns 0. For any other tensor, which the caller has to add, it returns the time in ns.
 */
static PyObject *enqueue(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    struct log *log = (struct log *)self;
    uint64_t time = now_ns();
    if (!check_count(count, 3))
        return NULL;
    PyObject *index = PyDict_GetItemWithError(log->indices, arguments[1]);
    if (!index) {
        if (PyErr_Occurred())
            return NULL;
        return PyLong_FromUnsignedLongLong(time);
    }
    struct known known = AT(log->known, struct known, PyLong_AsSsize_t(index));
    /* The tensor's own methods may run any Python code, and with it this log's methods. */
    Py_INCREF(known.dtype);
    int found = is_known(log, &known, arguments[0], arguments[2]);
    Py_DECREF(known.dtype);
    if (found < 0)
        return NULL;
    if (!found || AT(log->steps, uint64_t, known.number) == log->step)
        return PyLong_FromUnsignedLongLong(time);
    return append(log, known.number, time) ? PyLong_FromLong(0) : NULL;
}

/* The number of a tensor, or -1 with an exception set. */
static int64_t tensor_number(PyObject *object)
{
    unsigned long number = PyLong_AsUnsignedLong(object);
    if (PyErr_Occurred())
        return -1;
    if (number >= UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "too many tensors");
        return -1;
    }
    return (int64_t)number;
}

/* Whether there is room to note the step of the tensor. */
static bool reserve_steps(struct log *log, int64_t number)
{
    size_t needed = (size_t)number + 1;
    if (needed <= log->steps.count)
        return true;
    if (!reserve(&log->steps, sizeof(uint64_t), needed - log->steps.count))
        return false;
    memset(&AT(log->steps, uint64_t, log->steps.count), 0, (needed - log->steps.count) * sizeof(uint64_t));
    log->steps.count = needed;
    return true;
}

/* know(name, number, elements, dtype, process_set): the last tensor of this name, for enqueue(). */
static PyObject *know(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    struct log *log = (struct log *)self;
    if (!check_count(count, 5))
        return NULL;
    struct known made = {.dtype = arguments[3]};
    int64_t number = tensor_number(arguments[1]);
    made.elements = number < 0 ? 0 : PyLong_AsUnsignedLongLong(arguments[2]);
    made.process_set = PyErr_Occurred() ? 0 : PyLong_AsLong(arguments[4]);
    if (PyErr_Occurred() || !reserve_steps(log, number) || !reserve(&log->known, sizeof(struct known), 1))
        return NULL;
    made.number = (uint32_t)number;
    PyObject *index = PyDict_GetItemWithError(log->indices, arguments[0]);
    if (!index && PyErr_Occurred())
        return NULL;
    Py_INCREF(made.dtype);
    if (index) {
        struct known *known = &AT(log->known, struct known, PyLong_AsSsize_t(index));
        PyObject *before = known->dtype;
        *known = made;
        Py_DECREF(before);
        Py_RETURN_NONE;
    }
    index = PyLong_FromSize_t(log->known.count);
    int failed = index ? PyDict_SetItem(log->indices, arguments[0], index) : -1;
    Py_XDECREF(index);
    if (failed) {
        Py_DECREF(made.dtype);
        return NULL;
    }
    AT(log->known, struct known, log->known.count++) = made;
    Py_RETURN_NONE;
}

/* has(number): whether the tensor was enqueued in this step. */
static PyObject *has(PyObject *self, PyObject *object)
{
    struct log *log = (struct log *)self;
    int64_t number = tensor_number(object);
    if (number < 0)
        return NULL;
    return PyBool_FromLong((size_t)number < log->steps.count && AT(log->steps, uint64_t, number) == log->step);
}

/* add(number, time): notes an enqueue, in ns. */
static PyObject *add(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    struct log *log = (struct log *)self;
    if (!check_count(count, 2))
        return NULL;
    int64_t number = tensor_number(arguments[0]);
    unsigned long long time = number < 0 ? 0 : PyLong_AsUnsignedLongLong(arguments[1]);
    if (PyErr_Occurred() || !reserve_steps(log, number) || !append(log, (uint32_t)number, time))
        return NULL;
    Py_RETURN_NONE;
}

/* wait(begin, end): a call of synchronize(), in ns. */
static PyObject *note_wait(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    struct log *log = (struct log *)self;
    if (!check_count(count, 2))
        return NULL;
    uint64_t begin = PyLong_AsUnsignedLongLong(arguments[0]), end = PyLong_AsUnsignedLongLong(arguments[1]);
    if (PyErr_Occurred())
        return NULL;
    size_t last = log->positions.count;
    uint32_t position = (uint32_t)log->tensors.count;
    if (last && log->wait_is_open && AT(log->positions, uint32_t, last - 1) == position) {
        AT(log->handles, uint32_t, last - 1)++;
        AT(log->ends, uint64_t, last - 1) = end;
        AT(log->blocked, uint64_t, last - 1) += end - begin;
        Py_RETURN_NONE;
    }
    if (!reserve(&log->positions, sizeof(uint32_t), 1) || !reserve(&log->handles, sizeof(uint32_t), 1)
        || !reserve(&log->begins, sizeof(uint64_t), 1) || !reserve(&log->ends, sizeof(uint64_t), 1)
        || !reserve(&log->blocked, sizeof(uint64_t), 1))
        return NULL;
    AT(log->positions, uint32_t, log->positions.count++) = position;
    AT(log->handles, uint32_t, log->handles.count++) = 1;
    AT(log->begins, uint64_t, log->begins.count++) = begin;
    AT(log->ends, uint64_t, log->ends.count++) = end;
    AT(log->blocked, uint64_t, log->blocked.count++) = end - begin;
    log->wait_is_open = true;
    Py_RETURN_NONE;
}

/* end_wait(): later calls of synchronize() are another wait. */
static PyObject *end_wait(PyObject *self, PyObject *nothing)
{
    (void)nothing;
    ((struct log *)self)->wait_is_open = false;
    Py_RETURN_NONE;
}

/* size(): how many enqueues and waits there are. */
static PyObject *size(PyObject *self, PyObject *nothing)
{
    (void)nothing;
    struct log *log = (struct log *)self;
    return Py_BuildValue("nn", (Py_ssize_t)log->tensors.count, (Py_ssize_t)log->positions.count);
}

static void begin_next_step(struct log *log, size_t enqueues)
{
    log->step++;
    log->wait_is_open = false;
    for (size_t i = 0; i < log->tensors.count; i++)
        AT(log->steps, uint64_t, AT(log->tensors, uint32_t, i)) = log->step;
    for (size_t i = 0; i < log->positions.count; i++)
        AT(log->positions, uint32_t, i) -= (uint32_t)enqueues;
}

/* take(enqueues, waits): the columns of so many, in the order of the file; the rest is the next step's. */
static PyObject *take(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    struct log *log = (struct log *)self;
    if (!check_count(count, 2))
        return NULL;
    size_t enqueues = PyLong_AsSize_t(arguments[0]), waits = PyLong_AsSize_t(arguments[1]);
    if (PyErr_Occurred())
        return NULL;
    if (enqueues > log->tensors.count || waits > log->positions.count)
        return PyErr_Format(PyExc_ValueError, "a step cannot have %zu enqueues and %zu waits", enqueues, waits);
    struct {
        struct column *column;
        size_t item_size, number;
    } parts[] = {
        {&log->tensors, sizeof(uint32_t), enqueues}, {&log->positions, sizeof(uint32_t), waits},
        {&log->handles, sizeof(uint32_t), waits},    {&log->enqueued, sizeof(uint64_t), enqueues},
        {&log->begins, sizeof(uint64_t), waits},     {&log->ends, sizeof(uint64_t), waits},
        {&log->blocked, sizeof(uint64_t), waits},
    };
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        bytes += parts[i].number * parts[i].item_size;
    PyObject *columns = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (!columns)
        return NULL;
    char *to = PyBytes_AsString(columns);
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        size_t length = parts[i].number * parts[i].item_size;
        if (length)
            memcpy(to, parts[i].column->items, length);
        to += length;
        remove_first(parts[i].column, parts[i].item_size, parts[i].number);
    }
    begin_next_step(log, enqueues);
    return columns;
}

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    (void)arguments, (void)keywords;
    struct log *log = (struct log *)PyType_GenericAlloc(type, 0);
    if (!log)
        return NULL;
    log->step = 1;
    log->indices = PyDict_New();
    log->numel = PyUnicode_InternFromString("numel");
    log->dtype = PyUnicode_InternFromString("dtype");
    if (log->indices && log->numel && log->dtype)
        return (PyObject *)log;
    Py_DECREF(log);
    return NULL;
}

static void destroy(PyObject *self)
{
    struct log *log = (struct log *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(log->indices);
    Py_XDECREF(log->numel);
    Py_XDECREF(log->dtype);
    for (size_t i = 0; i < log->known.count; i++)
        Py_DECREF(AT(log->known, struct known, i).dtype);
    struct column *columns[] = {&log->known,   &log->steps,  &log->tensors, &log->enqueued, &log->positions,
                                &log->handles, &log->begins, &log->ends,    &log->blocked};
    for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); i++)
        free(columns[i]->items);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

static PyMethodDef methods[] = {
    {"enqueue", FAST(enqueue), NULL},
    {"know", FAST(know), NULL},
    {"has", has, METH_O, NULL},
    {"add", FAST(add), NULL},
    {"wait", FAST(note_wait), NULL},
    {"end_wait", end_wait, METH_NOARGS, NULL},
    {"size", size, METH_NOARGS, NULL},
    {"take", FAST(take), NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)make},
    {Py_tp_dealloc, (void *)destroy},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "step_log.StepLog",
    .basicsize = sizeof(struct log),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "step_log", .m_size = -1};

PyMODINIT_FUNC PyInit_step_log(void)
{
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&spec);
    if (made && type && PyModule_AddObjectRef(made, "StepLog", type) == 0) {
        Py_DECREF(type);
        return made;
    }
    Py_XDECREF(type);
    Py_XDECREF(made);
    return NULL;
}
