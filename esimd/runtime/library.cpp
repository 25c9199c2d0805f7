// The launch library: loads SPIR-V, keeps plans, submits. One translation unit, built by plain g++ against the SYCL
// headers of the runtime that the process has loaded (build.py); a C interface for the cold road, torch operators for
// the hot one. A queue argument is the address of a sycl::queue of the same libsycl major version.
#include <cstring>

#include "torch_ops.hpp"

namespace {

using xm::guarded;
namespace sx = sycl::ext::oneapi::experimental;

struct Module {
  sycl::kernel_bundle<sycl::bundle_state::executable> executable;
};

sycl::queue& queue_at(void* address) {
  if (!address) xm::fail("queue: got a null address");
  return *static_cast<sycl::queue*>(address);
}

std::string device_json(const sycl::device& device) {
  std::ostringstream out;
  auto flag = [](bool value) { return value ? "true" : "false"; };
  out << "{\"name\": \"" << device.get_info<sycl::info::device::name>() << "\", \"driver\": \""
      << device.get_info<sycl::info::device::driver_version>() << "\", \"gpu\": " << flag(device.is_gpu())
      << ", \"esimd\": " << flag(device.has(sycl::aspect::ext_intel_esimd))
      << ", \"usm_device\": " << flag(device.has(sycl::aspect::usm_device_allocations))
      << ", \"usm_shared\": " << flag(device.has(sycl::aspect::usm_shared_allocations))
      << ", \"local_memory\": " << device.get_info<sycl::info::device::local_mem_size>()
      << ", \"max_work_group\": " << device.get_info<sycl::info::device::max_work_group_size>()
      << ", \"sub_group_sizes\": [";
  const char* comma = "";
  for (size_t size : device.get_info<sycl::info::device::sub_group_sizes>()) {
    out << comma << size;
    comma = ", ";
  }
  out << "]}";
  return out.str();
}

}  // namespace

extern "C" {

const char* xm_error() { return xm::last_error.c_str(); }

// The libsycl that these headers belong to: major * 100 + minor (8xx for oneAPI 2025, 9xx for 2026).
int xm_built_for() { return __LIBSYCL_MAJOR_VERSION * 100 + __LIBSYCL_MINOR_VERSION; }

// ---- queues and memory of our own: the OpenCL CPU device, or a GPU without torch -------------------------------------
void* xm_queue(int gpu, int profiling) {
  return guarded<void*>(nullptr, [&]() -> void* {
    sycl::property_list properties{sycl::property::queue::in_order{}};
    if (profiling) properties = {sycl::property::queue::in_order{}, sycl::property::queue::enable_profiling{}};
    return gpu ? new sycl::queue(sycl::gpu_selector_v, properties) : new sycl::queue(sycl::cpu_selector_v, properties);
  });
}
int xm_use_for_cpu_tensors(void* queue) {
  return guarded<int>(-1, [&] { xm::standalone_queue.store(&queue_at(queue)); return 0; });
}
void* xm_alloc(void* queue, size_t bytes) {
  return guarded<void*>(nullptr, [&] {
    void* memory = sycl::malloc_shared(bytes, queue_at(queue));
    if (!memory) xm::fail("shared USM: ", bytes, " bytes are not to be had");
    return memory;
  });
}
void xm_free(void* queue, void* memory) { guarded<int>(0, [&] { sycl::free(memory, queue_at(queue)); return 0; }); }
int xm_wait(void* queue) {
  return guarded<int>(-1, [&] { queue_at(queue).wait_and_throw(); return 0; });
}
// JSON; valid until the next call in this thread.
const char* xm_device(void* queue) {
  static thread_local std::string text;
  return guarded<const char*>(nullptr, [&] { text = device_json(queue_at(queue).get_device()); return text.c_str(); });
}

// ---- modules and kernels; never freed: plans and captured graphs point to them ----------------------------------------
// `options` go to the driver's compiler as they are ("-vc-codegen" for ESIMD).
void* xm_module(void* queue, const void* bytes, size_t size, const char* options) {
  return guarded<void*>(nullptr, [&]() -> void* {
    sycl::queue& q = queue_at(queue);
    std::vector<std::byte> spirv(size);
    std::memcpy(spirv.data(), bytes, size);
    auto source = sx::create_kernel_bundle_from_source(q.get_context(), sx::source_language::spirv, spirv);
    const std::vector<sycl::device> devices{q.get_device()};  // not every device of the context
    std::string log;
    try {
      if (options && *options)
        return new Module{sx::build(source, devices,
            sx::properties{sx::build_options{std::vector<std::string>{options}}, sx::save_log{&log}})};
      return new Module{sx::build(source, devices, sx::properties{sx::save_log{&log}})};
    } catch (const std::exception& error) {
      xm::fail("the driver refuses the module: ", error.what(), log.empty() ? "" : "\n", log);
    }
  });
}
void* xm_kernel(void* module, const char* name) {
  return guarded<void*>(nullptr, [&]() -> void* {
    auto* found = static_cast<Module*>(module);
    return new sycl::kernel(found->executable.ext_oneapi_get_kernel(name));
  });
}
int xm_kernel_arguments(const void* kernel) {
  return guarded<int>(-1, [&] {
    return static_cast<int>(static_cast<const sycl::kernel*>(kernel)->get_info<sycl::info::kernel::num_args>());
  });
}

// ---- plans -----------------------------------------------------------------------------------------------------------
void* xm_plan(int64_t id, const char* what, int tokens_slot, int64_t limit) {
  return guarded<void*>(nullptr, [&]() -> void* {
    auto plan = std::make_unique<xm::Plan>();
    plan->id = id;
    plan->what = what;
    plan->tokens_slot = tokens_slot;
    plan->programs.resize(static_cast<size_t>(limit) + 1);
    return plan.release();
  });
}
int xm_plan_slot(void* plan, const char* name, int dtype, const char* dtype_name, int row_stride, int absent,
                 int64_t alignment, int64_t item_bytes, const int64_t* shape, int rank) {
  return guarded<int>(-1, [&] {
    auto& slots = static_cast<xm::Plan*>(plan)->slots;
    if (slots.size() == xm::kMaxSlots) xm::fail("plan: more than ", xm::kMaxSlots, " tensors");
    slots.push_back({name, dtype, dtype_name, row_stride != 0, absent != 0, alignment, item_bytes,
                     {shape, shape + rank}});
    return 0;
  });
}
int xm_plan_program(void* plan, int64_t tokens, int64_t workspace_bytes, const int64_t* words, size_t count) {
  return guarded<int>(-1, [&] {
    static_cast<xm::Plan*>(plan)->programs.at(static_cast<size_t>(tokens)) =
        xm::read_program(words, count, workspace_bytes);
    return 0;
  });
}
// Takes the plan over: 1 = added, 0 = one of that id was there (the new one is dropped), -1 = error.
int xm_plan_add(void* plan) {
  return guarded<int>(-1, [&] {
    return xm::plans.add(std::unique_ptr<xm::Plan>(static_cast<xm::Plan*>(plan))) ? 1 : 0;
  });
}

// ---- torch -----------------------------------------------------------------------------------------------------------
int xm_register(const char* operator_name, const char* key) {
  return guarded<int>(-1, [&] { xm::register_operator(operator_name, key); return 0; });
}

// ---- graphs without torch (which captures by the same SYCL interface): for tests ---------------------------------------
void* xm_graph_begin(void* queue) {
  return guarded<void*>(nullptr, [&]() -> void* {
    sycl::queue& q = queue_at(queue);
    auto graph = std::make_unique<sx::command_graph<sx::graph_state::modifiable>>(q.get_context(), q.get_device());
    graph->begin_recording(q);
    return graph.release();
  });
}
// Ends the recording; returns what xm_graph_replay takes.
void* xm_graph_end(void* queue, void* graph) {
  return guarded<void*>(nullptr, [&]() -> void* {
    std::unique_ptr<sx::command_graph<sx::graph_state::modifiable>> recorded(
        static_cast<sx::command_graph<sx::graph_state::modifiable>*>(graph));
    recorded->end_recording(queue_at(queue));
    return new sx::command_graph<sx::graph_state::executable>(recorded->finalize());
  });
}
int xm_graph_replay(void* queue, void* executable) {
  return guarded<int>(-1, [&] {
    queue_at(queue).ext_oneapi_graph(*static_cast<sx::command_graph<sx::graph_state::executable>*>(executable));
    return 0;
  });
}

// ---- measuring -------------------------------------------------------------------------------------------------------
void xm_noop(int on) { xm::launches_are_noop.store(on != 0); }
int64_t xm_skipped() { return xm::launches_skipped.exchange(0); }
void xm_trace(int on) { xm::trace.on.store(on != 0); }
void xm_trace_clear() { xm::trace.clear(); }
const char* xm_trace_json() {
  static thread_local std::string text;
  return guarded<const char*>(nullptr, [&] { text = xm::trace.json(); return text.c_str(); });
}

}  // extern "C"
