// The hot road: submit a program's launches to a queue. Allocates no device memory and never waits.
#pragma once

#include "trace.hpp"

namespace xm {

namespace sx = sycl::ext::oneapi::experimental;

// Measures our own host code: everything is done but the submission itself.
inline std::atomic<bool> launches_are_noop{false};
inline std::atomic<int64_t> launches_skipped{0};

struct Bound {
  void* pointer[kMaxSlots];
  int32_t stride[kMaxSlots];
};

inline void set_arguments(sycl::handler& handler, const Launch& launch, const Bound& bound) {
  int index = 0;
  for (const Argument& argument : launch.arguments) {
    switch (argument.kind) {
      case Kind::tensor:
        handler.set_arg(index, static_cast<void*>(static_cast<char*>(bound.pointer[argument.value]) + argument.extra));
        break;
      case Kind::stride:
        handler.set_arg(index, sx::raw_kernel_arg(&bound.stride[argument.value], sizeof(int32_t)));
        break;
      case Kind::null:
        handler.set_arg(index, static_cast<void*>(nullptr));
        break;
      default: {
        const int32_t word = static_cast<int32_t>(argument.value);  // a float's bits travel the same way
        handler.set_arg(index, sx::raw_kernel_arg(&word, sizeof word));
      }
    }
    ++index;
  }
}

inline void submit(sycl::queue& queue, const Program& program, const Bound& bound) {
  const bool traced = trace.on.load(std::memory_order_relaxed);
  for (const Launch& launch : program.launches) {
    if (launches_are_noop.load(std::memory_order_relaxed)) {
      launches_skipped.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    auto fill = [&](sycl::handler& handler) {
      set_arguments(handler, launch, bound);
      handler.parallel_for(launch.range, *launch.kernel);
    };
    if (traced)
      trace.timed(queue, launch.name, [&] { return queue.submit(fill); });
    else
      sx::submit(queue, fill);  // without an event: nothing here ever waits for one
  }
}

}  // namespace xm
