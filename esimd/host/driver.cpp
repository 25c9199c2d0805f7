// A host module as a program of its own, for the sanitizers: reads a script of lines.
//
//     buffer NAME BYTES FILE                        FILE "-": poison (0xA5). Exact size: a byte further is an error
//     watch NAME                                    count loads and stores of its bytes
//     launch KERNEL gx gy gz lx ly lz SEED ARG ...  ARG: b:NAME, n (null), i:INT, f:FLOAT
//     save NAME FILE
//
// Ends with one line a watched buffer: NAME, loads (total, fewest and most of a byte), stores (the same), plain. `plain`
// counts dereferences in all watched buffers that are no messages; only the coverage build sees them.
#include <cinttypes>
#include <fstream>
#include <iostream>
#include <sstream>

namespace {

using namespace xpu_moe::host;

struct Buffer {
  size_t bytes = 0;
  char* data = nullptr;
  std::vector<uint16_t> loads, stores;
};

std::map<std::string, Buffer> buffers;
std::atomic<uint64_t> plain_accesses{0};

Buffer& buffer(const std::string& name) {
  const auto found = buffers.find(name);
  if (found == buffers.end()) die(("no buffer " + name).c_str());
  return found->second;
}

void make(const std::string& name, size_t bytes, const std::string& file) {
  Buffer& b = buffers[name];
  b.bytes = bytes;
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, bytes ? bytes : 1)) die("out of memory", long(bytes));
  b.data = static_cast<char*>(memory);
  std::memset(b.data, 0xA5, bytes);
  if (file == "-") return;
  std::ifstream in(file, std::ios::binary);
  in.read(b.data, long(bytes));
  if (size_t(in.gcount()) != bytes) die(("short file " + file).c_str(), long(in.gcount()), long(bytes));
}

Argument argument(const std::string& word) {
  Argument a;
  a.pointer = nullptr;
  const std::string value = word.size() > 2 ? word.substr(2) : "";
  if (word[0] == 'b') a.pointer = buffer(value).data;
  if (word[0] == 'i') a.integer = int32_t(std::stoll(value));
  if (word[0] == 'f') a.real = std::stof(value);
  return a;
}

void range(const std::vector<uint16_t>& counts) {
  uint64_t total = 0;
  unsigned low = counts.empty() ? 0 : 65535, high = 0;
  for (uint16_t c : counts) total += c, low = std::min<unsigned>(low, c), high = std::max<unsigned>(high, c);
  std::printf(" %" PRIu64 " %u %u", total, low, high);
}

}  // namespace

#if defined(__has_feature)
#if __has_feature(coverage_sanitizer)
#define XPU_MOE_COUNT(n)                                                                             \
  __attribute__((no_sanitize("coverage"))) static void count_##n(void* p) {                          \
    if (item.group == nullptr) return;                                                               \
    const auto at = reinterpret_cast<uintptr_t>(p);                                                  \
    for (const Watch& w : watches)                                                                   \
      if (at < w.end && at + n > w.begin) plain_accesses.fetch_add(1, std::memory_order_relaxed);    \
  }                                                                                                  \
  extern "C" __attribute__((no_sanitize("coverage"))) void __sanitizer_cov_load##n(void* p) { count_##n(p); } \
  extern "C" __attribute__((no_sanitize("coverage"))) void __sanitizer_cov_store##n(void* p) { count_##n(p); }
XPU_MOE_COUNT(1) XPU_MOE_COUNT(2) XPU_MOE_COUNT(4) XPU_MOE_COUNT(8) XPU_MOE_COUNT(16)
#endif
#endif

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s SCRIPT\n", argv[0]), 2;
  std::ifstream script(argv[1]);
  for (std::string line; std::getline(script, line);) {
    std::istringstream words(line);
    std::string what, name, file;
    words >> what >> name;
    if (what == "buffer") {
      size_t bytes;
      words >> bytes >> file;
      make(name, bytes, file);
    } else if (what == "watch") {
      Buffer& b = buffer(name);
      b.loads.assign(b.bytes, 0), b.stores.assign(b.bytes, 0);
      const auto at = reinterpret_cast<uintptr_t>(b.data);
      watches.push_back({at, at + b.bytes, b.loads.data(), b.stores.data()});
    } else if (what == "launch") {
      Shape shape;
      for (size_t& n : shape.groups) words >> n;
      for (size_t& n : shape.local) words >> n;
      uint64_t seed;
      words >> seed;
      std::vector<Argument> arguments;
      for (std::string word; words >> word;) arguments.push_back(argument(word));
      run(name.c_str(), shape, arguments.data(), int(arguments.size()), seed);
    } else if (what == "save") {
      words >> file;
      std::ofstream(file, std::ios::binary).write(buffer(name).data, long(buffer(name).bytes));
    } else if (!what.empty()) {
      die(("what is " + what).c_str());
    }
  }
  for (const auto& [name, b] : buffers) {
    if (b.loads.empty()) continue;
    std::printf("%s", name.c_str());
    range(b.loads);
    range(b.stores);
    std::printf(" %" PRIu64 "\n", plain_accesses.load());
  }
  for (auto& [name, b] : buffers) std::free(b.data);
  return 0;
}
