// C interface of a host module (a shared library): what host/library.py calls.
extern "C" {

struct esimd_host_traffic {
  uint64_t loaded, stored, prefetched, loads, stores;
};

void esimd_host_watch(const void* begin, uint64_t bytes, uint16_t* loads, uint16_t* stores) {
  const auto at = reinterpret_cast<uintptr_t>(begin);
  xpu_moe::host::watches.push_back({at, at + bytes, loads, stores});
}
void esimd_host_unwatch() { xpu_moe::host::watches.clear(); }

void esimd_host_run(
    const char* kernel, const uint64_t* groups, const uint64_t* local, const void* arguments, int count, uint64_t seed,
    esimd_host_traffic* out) {
  xpu_moe::host::Shape shape;
  for (int d = 0; d < 3; ++d) shape.groups[d] = groups[d], shape.local[d] = local[d];
  const auto t =
      xpu_moe::host::run(kernel, shape, static_cast<const xpu_moe::host::Argument*>(arguments), count, seed);
  *out = {t.loaded, t.stored, t.prefetched, t.loads, t.stores};
}
}
