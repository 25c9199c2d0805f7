// The machine that the host run stands in for: work-items, shared local memory, barriers, and counted global memory.
//
// Groups are independent; the work-items of a group take turns. Two ways of running them:
//   fibers   (default) one OS thread steps through the items of a group, from barrier to barrier, in an order drawn
//            from a seed; several OS threads share the groups. Fast, and every seed is another schedule.
//   threads  (XPU_MOE_HOST_THREADS) one OS thread an item, groups in sequence: what the sanitizers understand.
// SLM is filled with 0xCD before each group. Whatever breaks a rule of the hardware aborts with a line on stderr.
#pragma once

#include <pthread.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace xpu_moe::host {

[[noreturn]] inline void die(const char* what, long a = 0, long b = 0) {
  std::fprintf(stderr, "esimd host: %s (%ld, %ld)\n", what, a, b);
  std::abort();
}

// ---- global memory ----

struct Traffic {
  uint64_t loaded = 0, stored = 0, prefetched = 0, loads = 0, stores = 0;
  void add(const Traffic& o) {
    loaded += o.loaded, stored += o.stored, prefetched += o.prefetched, loads += o.loads, stores += o.stores;
  }
};

// Loads and stores of each byte of a piece of memory, in counters of the caller's.
struct Watch {
  uintptr_t begin, end;
  uint16_t *loads, *stores;
};

inline std::vector<Watch> watches;  // changed between launches only
inline thread_local Traffic traffic;

__attribute__((no_sanitize("coverage"))) inline void note(uintptr_t at, size_t bytes, bool store) {
  for (const Watch& w : watches) {
    const uintptr_t lo = at > w.begin ? at : w.begin, hi = at + bytes < w.end ? at + bytes : w.end;
    uint16_t* counts = store ? w.stores : w.loads;
    for (uintptr_t b = lo; b < hi; ++b) __atomic_fetch_add(&counts[b - w.begin], uint16_t(1), __ATOMIC_RELAXED);
  }
}

// memcpy and not an assignment: the sanitizers see it. Out of line: the compiler must not merge two messages.
__attribute__((noinline, no_sanitize("coverage"))) inline void load(void* to, const void* from, size_t bytes) {
  traffic.loaded += bytes, ++traffic.loads;
  note(reinterpret_cast<uintptr_t>(from), bytes, false);
  std::memcpy(to, from, bytes);
}
__attribute__((noinline, no_sanitize("coverage"))) inline void store(void* to, const void* from, size_t bytes) {
  traffic.stored += bytes, ++traffic.stores;
  note(reinterpret_cast<uintptr_t>(to), bytes, true);
  std::memcpy(to, from, bytes);
}

// ---- work-items and SLM ----

constexpr size_t SLM_BYTES = 65536;

struct Group {
  size_t id[3];
  std::vector<char> slm = std::vector<char>(SLM_BYTES);
  std::atomic<size_t> declared{0};
  std::function<void()> wait;  // the barrier

  void reset() {
    std::memset(slm.data(), 0xCD, SLM_BYTES);
    declared = 0;
  }
};

struct Item {
  Group* group = nullptr;
  size_t local[3] = {0, 0, 0};
  size_t get_group(int d) const { return group->id[d]; }
  size_t get_local_id(int d) const { return local[d]; }
};

inline thread_local Item item;

inline void declare_slm(size_t bytes) {
  if (bytes > SLM_BYTES) die("slm_init beyond the SLM of a core", long(bytes), long(SLM_BYTES));
  size_t seen = item.group->declared;
  while (seen < bytes && !item.group->declared.compare_exchange_weak(seen, bytes)) {
  }
}

inline char* slm(size_t offset, size_t bytes) {
  if (offset + bytes > item.group->declared.load(std::memory_order_relaxed))
    die("SLM access beyond slm_init", long(offset), long(bytes));
  return item.group->slm.data() + offset;
}

inline void barrier() { item.group->wait(); }

// ---- launch ----

struct Shape {
  size_t groups[3], local[3];
  size_t count() const { return groups[0] * groups[1] * groups[2]; }
  size_t items() const { return local[0] * local[1] * local[2]; }
  void place(Group& g, size_t n) const {
    g.id[2] = n % groups[2], g.id[1] = n / groups[2] % groups[1], g.id[0] = n / groups[2] / groups[1];
  }
  Item at(Group& g, size_t n) const {
    Item i;
    i.group = &g;
    i.local[2] = n % local[2], i.local[1] = n / local[2] % local[1], i.local[0] = n / local[2] / local[1];
    return i;
  }
};

inline uint64_t scramble(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

inline std::vector<size_t> order(size_t n, uint64_t seed) {
  std::vector<size_t> o(n);
  for (size_t i = 0; i < n; ++i) o[i] = i;
  if (seed != 0)
    for (size_t i = n; i > 1; --i) std::swap(o[i - 1], o[scramble(seed * 0x10001 + i) % i]);
  return o;
}

#ifdef XPU_MOE_HOST_THREADS

inline Traffic launch(const Shape& shape, const std::function<void()>& kernel, uint64_t seed) {
  Traffic total;
  std::mutex lock;
  for (size_t n : order(shape.count(), seed)) {
    Group group;
    pthread_barrier_t meeting;
    pthread_barrier_init(&meeting, nullptr, unsigned(shape.items()));
    group.reset();
    group.wait = [&] { pthread_barrier_wait(&meeting); };
    shape.place(group, n);
    std::vector<std::thread> threads;
    for (size_t i : order(shape.items(), seed))
      threads.emplace_back([&, i] {
        item = shape.at(group, i);
        traffic = Traffic{};
        kernel();
        std::lock_guard<std::mutex> hold(lock);
        total.add(traffic);
      });
    for (std::thread& t : threads) t.join();
    pthread_barrier_destroy(&meeting);
  }
  return total;
}

#else

// The items of one group as fibers on the calling thread.
class Fibers {
  static constexpr size_t STACK = 1 << 20;
  enum State { READY, WAITING, DONE };
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK]};
    State state;
  };
  std::vector<Fiber> fibers_;
  ucontext_t scheduler_;
  const std::function<void()>* kernel_;
  size_t running_ = 0;

  static void enter(unsigned high, unsigned low) {
    auto* self = reinterpret_cast<Fibers*>(uintptr_t(high) << 32 | low);
    (*self->kernel_)();
    self->leave(DONE);
  }
  void leave(State state) {
    Fiber& fiber = fibers_[running_];
    fiber.state = state;
    swapcontext(&fiber.context, &scheduler_);
  }

 public:
  explicit Fibers(size_t items) : fibers_(items) {}

  void run(const Shape& shape, Group& group, const std::function<void()>& kernel, uint64_t seed) {
    kernel_ = &kernel;
    group.wait = [this] { leave(WAITING); };
    const auto self = reinterpret_cast<uintptr_t>(this);
    for (Fiber& f : fibers_) {
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.get(), f.context.uc_stack.ss_size = STACK, f.context.uc_link = nullptr;
      makecontext(&f.context, reinterpret_cast<void (*)()>(enter), 2, unsigned(self >> 32), unsigned(self));
      f.state = READY;
    }
    for (uint64_t phase = 1;; ++phase) {
      size_t done = 0, waiting = 0;
      for (size_t i : order(fibers_.size(), seed ? seed + phase : 0)) {
        running_ = i;
        item = shape.at(group, i);
        swapcontext(&scheduler_, &fibers_[i].context);
        (fibers_[i].state == DONE ? done : waiting) += 1;
      }
      if (waiting == 0) return;
      if (done != 0) die("a barrier that not every work-item reaches", long(waiting), long(done));
    }
  }
};

inline Traffic launch(const Shape& shape, const std::function<void()>& kernel, uint64_t seed) {
  const std::vector<size_t> groups = order(shape.count(), seed);
  std::atomic<size_t> next{0};
  Traffic total;
  std::mutex lock;
  auto work = [&] {
    Group group;
    Fibers fibers(shape.items());
    traffic = Traffic{};
    for (size_t n; (n = next++) < groups.size();) {
      group.reset();
      shape.place(group, groups[n]);
      fibers.run(shape, group, kernel, seed ? scramble(seed + groups[n]) : 0);
    }
    std::lock_guard<std::mutex> hold(lock);
    total.add(traffic);
  };
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < std::min(4u, std::max(1u, std::thread::hardware_concurrency())); ++i)
    workers.emplace_back(work);
  for (std::thread& t : workers) t.join();
  return total;
}

#endif

}  // namespace xpu_moe::host
