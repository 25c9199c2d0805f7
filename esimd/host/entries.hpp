// Kernels by name, called with packed arguments: the common part of the library and of the stand-alone driver.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "machine.hpp"

namespace xpu_moe::host {

union Argument {
  void* pointer;
  int32_t integer;
  float real;
};

template <class T>
T unpack(const Argument& a) {
  if constexpr (std::is_pointer_v<T>) return static_cast<T>(const_cast<void*>(static_cast<const void*>(a.pointer)));
  if constexpr (std::is_same_v<T, int>) return a.integer;
  if constexpr (std::is_same_v<T, float>) return a.real;
}

struct Entry {
  int count;
  std::function<void(const Argument*)> call;
};

inline std::map<std::string, Entry>& entries() {
  static std::map<std::string, Entry> table;
  return table;
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), const Argument* a, std::index_sequence<I...>) {
  kernel(unpack<A>(a[I])...);
}

template <class... A>
bool enter(const char* name, void (*kernel)(A...)) {
  entries()[name] = Entry{
      int(sizeof...(A)), [kernel](const Argument* a) { call(kernel, a, std::index_sequence_for<A...>{}); }};
  return true;
}

#define XPU_MOE_HOST_ENTRY(name) static const bool entered_##name = ::xpu_moe::host::enter(#name, name);

inline Traffic run(const char* name, const Shape& shape, const Argument* arguments, int count, uint64_t seed) {
  const auto found = entries().find(name);
  if (found == entries().end()) die((std::string("no kernel ") + name).c_str());
  if (found->second.count != count) die((std::string("arguments of ") + name).c_str(), count, found->second.count);
  return launch(shape, [&] { found->second.call(arguments); }, seed);
}

}  // namespace xpu_moe::host
