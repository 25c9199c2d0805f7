// Behind an emulated kernel: what the host calls. KERNEL is its name.
#pragma once

extern "C" {
extern char __ehdr_start[] __attribute__((visibility("hidden")));  // the bounds of this library, from the linker
extern char _end[] __attribute__((visibility("hidden")));
void emulated_body(const machine::u64* slots) { words::call(KERNEL, slots); }
const char* emulated_constants() { return __ehdr_start; }
const char* emulated_constants_end() { return _end; }
}
