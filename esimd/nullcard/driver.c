// A Level Zero driver that is Intel's own, but for what it refuses on a card that is not there: keeping memory resident.
// The loader takes every other table from Intel's library, on which this one depends.
#define _GNU_SOURCE
#include <dlfcn.h>

enum { MAKE_MEMORY_RESIDENT = 4, EVICT_MEMORY = 5 };  // places in ze_context_dditable_t (ze_ddi.h)

static int done(void) { return 0; }

int zeGetContextProcAddrTable(int version, void** table) {
    int (*real)(int, void**) = (int (*)(int, void**))dlsym(dlopen("libze_intel_gpu.so.1", RTLD_NOW), "zeGetContextProcAddrTable");
    const int result = real(version, table);
    table[MAKE_MEMORY_RESIDENT] = table[EVICT_MEMORY] = (void*)done;
    return result;
}
