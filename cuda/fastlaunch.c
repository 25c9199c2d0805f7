// A callable that enqueues one prepared kernel launch: fastlaunch.Launch(enqueue, config, stream_at, function, slots,
// head, count, complain)(stream, pointer 0, …, pointer count - 1).
//
// All arguments are addresses: of cuLaunchKernelEx, the launch configuration, its stream field, the function, the table
// of parameter addresses, and the `count` 8-byte parameters that change from call to call. `complain(code)` raises for a
// CUresult that is not 0. The interpreter lock is held throughout, so the shared parameter buffer needs no other.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

typedef int (*enqueue_t)(const void*, void*, void**, void**);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    enqueue_t enqueue;
    void* config;
    uint64_t* stream;
    void* function;
    void** slots;
    uint64_t* head;
    Py_ssize_t count;
    PyObject* complain;
} Launch;

static PyObject* launch_call(PyObject* object, PyObject* const* arguments, size_t flags, PyObject* names) {
    Launch* self = (Launch*)object;
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    if (given != self->count + 1 || (names && PyTuple_GET_SIZE(names))) {
        PyErr_Format(PyExc_TypeError, "launch: got %zd arguments, wanted a stream and %zd pointers", given, self->count);
        return NULL;
    }
    *self->stream = PyLong_AsUnsignedLongLongMask(arguments[0]);
    for (Py_ssize_t i = 0; i < self->count; ++i) self->head[i] = PyLong_AsUnsignedLongLongMask(arguments[i + 1]);
    if (PyErr_Occurred()) return NULL;
    int code = self->enqueue(self->config, self->function, self->slots, NULL);
    if (code == 0) Py_RETURN_NONE;
    return PyObject_CallFunction(self->complain, "i", code);
}

static PyObject* launch_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    unsigned long long enqueue, config, stream, function, slots, head;
    Py_ssize_t count;
    PyObject* complain;
    if (!PyArg_ParseTuple(arguments, "KKKKKKnO", &enqueue, &config, &stream, &function, &slots, &head, &count, &complain))
        return NULL;
    Launch* self = (Launch*)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->vectorcall = launch_call;
    self->enqueue = (enqueue_t)(uintptr_t)enqueue;
    self->config = (void*)(uintptr_t)config;
    self->stream = (uint64_t*)(uintptr_t)stream;
    self->function = (void*)(uintptr_t)function;
    self->slots = (void**)(uintptr_t)slots;
    self->head = (uint64_t*)(uintptr_t)head;
    self->count = count;
    self->complain = Py_NewRef(complain);   // a bound method: keeps the buffers' owner alive
    return (PyObject*)self;
}

static void launch_dealloc(PyObject* object) {
    Py_XDECREF(((Launch*)object)->complain);
    Py_TYPE(object)->tp_free(object);
}

static PyTypeObject LaunchType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "fastlaunch.Launch",
    .tp_basicsize = sizeof(Launch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = launch_new,
    .tp_dealloc = launch_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Launch, vectorcall),
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fastlaunch", NULL, -1, NULL};

PyMODINIT_FUNC PyInit_fastlaunch(void) {
    if (PyType_Ready(&LaunchType) < 0) return NULL;
    PyObject* made = PyModule_Create(&module);
    if (made && PyModule_AddObjectRef(made, "Launch", (PyObject*)&LaunchType) < 0) Py_CLEAR(made);
    return made;
}
