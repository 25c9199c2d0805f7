// Opt-in tracing of every submitted kernel (XPU_MOE_TRACE_KERNELS=1).
//
// A queue with profiling gives the device's own start and end of each kernel; on one without, the host waits after each
// submission and the time holds the submission too ("clock": "host"). A queue that records a graph is only counted.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <iomanip>

#include "plan.hpp"

namespace xm {

class Trace {
 public:
  std::atomic<bool> on{false};

  template <class Submit> void timed(sycl::queue& queue, const std::string& name, Submit submit) {
    namespace sx = sycl::ext::oneapi::experimental;
    if (queue.ext_oneapi_get_state() == sx::queue_state::recording) {
      submit();
      std::lock_guard lock(mutex_);
      kernels_[name].recorded++;
      return;
    }
    auto start = std::chrono::steady_clock::now();
    sycl::event event = submit();
    const bool profiling = queue.has_property<sycl::property::queue::enable_profiling>();
    if (profiling) {
      std::lock_guard lock(mutex_);
      pending_.push_back({name, event});
      if (pending_.size() > 4096) harvest();
      return;
    }
    event.wait_and_throw();
    std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    std::lock_guard lock(mutex_);
    kernels_[name].microseconds.push_back(took.count());
    kernels_[name].host = true;
  }

  std::string json() {
    std::lock_guard lock(mutex_);
    harvest();
    std::ostringstream out;
    out << std::fixed << std::setprecision(2) << "{";
    const char* comma = "";
    for (auto& [name, kernel] : kernels_) {
      auto& us = kernel.microseconds;
      std::sort(us.begin(), us.end());
      out << comma << "\"" << name << "\": {\"count\": " << us.size() + kernel.recorded << ", \"recorded\": "
          << kernel.recorded << ", \"clock\": \"" << (kernel.host ? "host" : "device") << "\"";
      if (!us.empty())
        out << ", \"median_us\": " << at(us, 0.5) << ", \"p95_us\": " << at(us, 0.95) << ", \"max_us\": " << us.back();
      out << "}";
      comma = ", ";
    }
    out << "}";
    return out.str();
  }

  void clear() {
    std::lock_guard lock(mutex_);
    pending_.clear();
    kernels_.clear();
  }

 private:
  struct Kernel {
    std::vector<double> microseconds;
    size_t recorded = 0;
    bool host = false;
  };
  struct Pending {
    std::string name;
    sycl::event event;
  };

  // Nearest rank: the smallest value that at least `part` of the values do not exceed.
  static double at(const std::vector<double>& sorted, double part) {
    size_t rank = static_cast<size_t>(part * static_cast<double>(sorted.size()) + 0.999999);
    return sorted[std::min(sorted.size(), std::max<size_t>(rank, 1)) - 1];
  }

  void harvest() {
    using namespace sycl::info::event_profiling;
    for (auto& [name, event] : pending_) {
      event.wait();
      auto ns = event.get_profiling_info<command_end>() - event.get_profiling_info<command_start>();
      kernels_[name].microseconds.push_back(static_cast<double>(ns) / 1000.0);
    }
    pending_.clear();
  }

  std::mutex mutex_;
  std::map<std::string, Kernel> kernels_;
  std::deque<Pending> pending_;
};

inline Trace trace;

}  // namespace xm
