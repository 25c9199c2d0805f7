// Where the compiler calls (-fsanitize=thread, without its run-time library) for every plain load and store of a kernel.
#include "machine.hpp"

namespace machine {
void plain(const void* pointer, u32 bytes, bool writes);
}

#define HOOKS(N)                                                                                \
    extern "C" void __tsan_read##N(void* p) { machine::plain(p, N, false); }                    \
    extern "C" void __tsan_write##N(void* p) { machine::plain(p, N, true); }                    \
    extern "C" void __tsan_unaligned_read##N(void* p) { machine::plain(p, N, false); }          \
    extern "C" void __tsan_unaligned_write##N(void* p) { machine::plain(p, N, true); }          \
    extern "C" void __tsan_volatile_read##N(void* p) { machine::plain(p, N, false); }           \
    extern "C" void __tsan_volatile_write##N(void* p) { machine::plain(p, N, true); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

extern "C" void __tsan_read_range(void* p, unsigned long bytes) { machine::plain(p, (machine::u32)bytes, false); }
extern "C" void __tsan_write_range(void* p, unsigned long bytes) { machine::plain(p, (machine::u32)bytes, true); }
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
