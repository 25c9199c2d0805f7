// What a call of an operator does, decided before the first call and only read afterwards.
//
// A Plan belongs to one case (shapes, dtypes, device). It holds what is expected of each tensor (a Slot) and, for each
// number of tokens M that it serves, a Program: the launches with their geometry and arguments. The host code of a call is
// therefore: find the plan, compare the tensors with the slots, submit. Geometry has one source, Python's launch files.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <sycl/sycl.hpp>

#include "errors.hpp"

namespace xm {

constexpr int kMaxSlots = 16;
constexpr int kMaxArguments = 24;
constexpr int64_t kTokens = -1;    // a dimension of M rows
constexpr int64_t kAtLeast = -2;   // a one-dimensional buffer: at least the program's bytes

// What a tensor argument must look like.
struct Slot {
  std::string name;
  int32_t dtype = 0;               // torch's code
  std::string dtype_name;
  bool row_stride = false;         // the rows may lie apart (the stride of dimension 0 is an argument of the kernel)
  bool absent = false;             // no elements wanted (an optional tensor that this plan does without)
  int64_t alignment = 1;           // of the data pointer and of the rows, bytes
  int64_t item_bytes = 1;
  std::vector<int64_t> shape;      // kTokens where M stands
};

enum class Kind : int64_t {
  tensor = 0,   // pointer of slot `value`, plus `extra` bytes
  int32 = 1,    // the literal `value`
  float32 = 2,  // the literal whose bits are `value`
  stride = 3,   // stride of dimension 0 of slot `value`, in elements, as int32
  null = 4,     // a null pointer
};

struct Argument {
  Kind kind;
  int64_t value;
  int64_t extra;
};

struct Launch {
  const sycl::kernel* kernel;
  std::string name;
  sycl::nd_range<3> range{sycl::range<3>(1, 1, 1), sycl::range<3>(1, 1, 1)};
  std::vector<Argument> arguments;
};

struct Program {
  int64_t workspace_bytes = 0;
  std::vector<Launch> launches;
};

struct Plan {
  int64_t id;
  std::string what;                // the case in words, for messages
  std::vector<Slot> slots;
  int tokens_slot = 0;             // whose dimension 0 is M
  std::vector<std::unique_ptr<Program>> programs;  // by M; null where not served
};

// Plans are added under a lock and never removed or changed: a captured graph or a running call may use one.
class Plans {
 public:
  const Plan& find(int64_t id) const {
    std::shared_lock lock(mutex_);
    auto found = plans_.find(id);
    if (found == plans_.end())
      fail("plan ", id, " is not known in this process: the backend's `prepare` (or `bind`) makes it, and a compiled "
           "graph that outlived its process needs that first");
    return *found->second;
  }

  // False when a plan of that id is there already.
  bool add(std::unique_ptr<Plan> plan) {
    std::unique_lock lock(mutex_);
    return plans_.emplace(plan->id, std::move(plan)).second;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<int64_t, std::unique_ptr<const Plan>> plans_;
};

inline Plans plans;

// Reads a program from the flat form that Python hands over, see plan.py: per launch
//   kernel address, name length, the name a byte a word, 3 x groups, 3 x local size, n, n x (kind, value, extra)
inline std::unique_ptr<Program> read_program(const int64_t* words, size_t count, int64_t workspace_bytes) {
  auto program = std::make_unique<Program>();
  program->workspace_bytes = workspace_bytes;
  size_t at = 0;
  auto next = [&]() -> int64_t {
    if (at >= count) fail("program: the flat form ends early at word ", at);
    return words[at++];
  };
  while (at < count) {
    Launch launch;
    launch.kernel = reinterpret_cast<const sycl::kernel*>(next());
    for (int64_t length = next(); length > 0; --length) launch.name.push_back(static_cast<char>(next()));
    size_t groups[3], local[3];
    for (size_t& extent : groups) extent = static_cast<size_t>(next());
    for (size_t& extent : local) extent = static_cast<size_t>(next());
    launch.range = {{groups[0] * local[0], groups[1] * local[1], groups[2] * local[2]}, {local[0], local[1], local[2]}};
    for (int64_t n = next(); n > 0; --n) {
      auto kind = static_cast<Kind>(next());
      int64_t value = next(), extra = next();
      launch.arguments.push_back({kind, value, extra});
    }
    if (launch.arguments.size() > kMaxArguments) fail(launch.name, ": more than ", kMaxArguments, " arguments");
    program->launches.push_back(std::move(launch));
  }
  return program;
}

}  // namespace xm
