// The operators' C++ implementations, registered with torch's dispatcher through its stable C interface.
//
// Why the C interface and not TORCH_LIBRARY_IMPL: it needs one header and no C++ object of torch's, so that the build
// takes seconds instead of a minute, needs no XPU build of torch, and does not depend on torch's C++ ABI. Every operator
// here has the same form, `name(Tensor t0, …, Tensor tn, int plan) -> ()`: tensors in the plan's slot order, then the
// plan's id. A tensor that a plan does without is passed with no elements.
#pragma once

#include <dlfcn.h>

#include <limits>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "submit.hpp"

namespace xm {

inline void torch_check(AOTITorchError status, const char* call) {
  if (status != AOTI_TORCH_SUCCESS) fail("torch: ", call, " failed");
}

// The handles on a boxed stack belong to the callee.
struct Tensors {
  AtenTensorHandle handle[kMaxSlots] = {};
  int count = 0;
  ~Tensors() {
    for (int i = 0; i < count; ++i) aoti_torch_delete_tensor_object(handle[i]);
  }
};

// ---- the queue of a call -------------------------------------------------------------------------------------------

inline std::atomic<sycl::queue*> standalone_queue{nullptr};  // for tensors of the CPU key (OpenCL CPU device)

inline sycl::queue& torch_queue(int32_t device_index) {
  using Get = AOTITorchError (*)(int32_t, void**);
  static const Get get = []() -> Get {  // only an XPU build of torch has it, and torch's libraries are loaded locally
    for (const char* name : {"libtorch_xpu.so", "libtorch_cpu.so", "libtorch.so"})
      if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD))
        if (void* found = dlsym(library, "aoti_torch_get_current_xpu_stream")) return reinterpret_cast<Get>(found);
    return nullptr;
  }();
  if (!get) fail("this torch has no aoti_torch_get_current_xpu_stream: wanted an XPU build of torch 2.7 or newer");
  void* queue = nullptr;
  torch_check(get(device_index, &queue), "aoti_torch_get_current_xpu_stream");
  return *static_cast<sycl::queue*>(queue);
}

inline sycl::queue& queue_of(AtenTensorHandle tensor) {
  int32_t type = 0, index = 0;
  aoti_torch_get_device_type(tensor, &type);
  if (type == aoti_torch_device_type_xpu()) {
    aoti_torch_get_device_index(tensor, &index);
    return torch_queue(index);
  }
  sycl::queue* queue = standalone_queue.load(std::memory_order_acquire);
  if (!queue) fail("a CPU tensor, and no standalone queue is set: these operators run on XPU tensors");
  return *queue;
}

// ---- checks of a call ----------------------------------------------------------------------------------------------

template <class Dim> std::string shape_text(const Dim* dims, int64_t rank, int64_t tokens) {
  std::ostringstream text;
  text << "[";
  for (int64_t i = 0; i < rank; ++i) text << (i ? ", " : "") << (dims[i] == kTokens ? tokens : dims[i]);
  text << "]";
  return text.str();
}

constexpr int64_t kMaxOffset = std::numeric_limits<int32_t>::max();

struct Place {
  int32_t type = 0, index = 0;

  explicit Place(AtenTensorHandle tensor) {
    aoti_torch_get_device_type(tensor, &type);
    aoti_torch_get_device_index(tensor, &index);
  }
  bool operator==(const Place& other) const { return type == other.type && index == other.index; }
};

// Compares a tensor with its slot; BadArgument's form: argument, got, wanted.
inline void check(AtenTensorHandle tensor, const Slot& slot, int64_t tokens, int64_t workspace_bytes, void** pointer,
                  int32_t* stride) {
  int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
  int32_t dtype = 0;
  aoti_torch_get_dim(tensor, &rank);
  aoti_torch_get_sizes(tensor, &sizes);
  aoti_torch_get_strides(tensor, &strides);
  aoti_torch_get_dtype(tensor, &dtype);
  aoti_torch_get_data_ptr(tensor, pointer);
  if (slot.absent) {
    int64_t elements = 0;
    aoti_torch_get_numel(tensor, &elements);
    if (elements) fail(slot.name, ": got ", elements, " elements, wanted none: the plan was made without it");
    return;
  }
  if (dtype != slot.dtype) fail(slot.name, ".dtype: got torch's dtype ", dtype, ", wanted ", slot.dtype_name);
  if (slot.shape.size() == 1 && slot.shape[0] == kAtLeast) {
    if (rank != 1 || sizes[0] < workspace_bytes)
      fail(slot.name, ".shape: got ", shape_text(sizes, rank, 0), ", wanted one dimension of at least ", workspace_bytes,
           " bytes");
  } else {
    bool same = rank == static_cast<int64_t>(slot.shape.size());
    for (int64_t i = 0; same && i < rank; ++i) same = sizes[i] == (slot.shape[i] == kTokens ? tokens : slot.shape[i]);
    if (!same)
      fail(slot.name, ".shape: got ", shape_text(sizes, rank, 0), ", wanted ",
           shape_text(slot.shape.data(), slot.shape.size(), tokens));
  }
  int64_t expected = 1;
  for (int64_t i = rank - 1; i >= (slot.row_stride ? 1 : 0); --i) {
    if (sizes[i] != 1 && strides[i] != expected)
      fail(slot.name, ".stride(", i, "): got ", strides[i], ", wanted ", expected, ": call .contiguous() once, at load");
    expected *= sizes[i];
  }
  const int64_t apart = rank && sizes[0] != 1 ? strides[0] : expected;
  if (slot.row_stride && apart > kMaxOffset / tokens)
    fail(slot.name, ".stride(0): got ", apart, ", wanted at most ", kMaxOffset / tokens,
         ": the kernels count elements in 32 bits; call .contiguous()");
  *stride = static_cast<int32_t>(apart);
  if (reinterpret_cast<uintptr_t>(*pointer) % slot.alignment)
    fail(slot.name, ".data_ptr(): got an address that is not a multiple of ", slot.alignment, " bytes, wanted one: ",
         "call .contiguous()");
  if (slot.row_stride && *stride * slot.item_bytes % slot.alignment)
    fail(slot.name, ".stride(0): got ", *stride, ", wanted rows that lie a multiple of ", slot.alignment, " bytes apart");
}

// ---- the boxed function --------------------------------------------------------------------------------------------

inline void run(const Plan& plan, const Tensors& tensors) {
  if (static_cast<size_t>(tensors.count) != plan.slots.size())
    fail("plan ", plan.id, " (", plan.what, ") is for ", plan.slots.size(), " tensors, got ", tensors.count);
  int64_t tokens = 0;
  torch_check(aoti_torch_get_size(tensors.handle[plan.tokens_slot], 0, &tokens), "size(0)");
  if (tokens == 0) return;
  const Program* program =
      tokens < static_cast<int64_t>(plan.programs.size()) ? plan.programs[tokens].get() : nullptr;
  if (!program)
    fail(plan.slots[plan.tokens_slot].name, ".shape[0]: got ", tokens, " tokens, wanted 1..", plan.programs.size() - 1,
         " as the plan was made for (", plan.what, ")");
  Bound bound;
  const Place place(tensors.handle[plan.tokens_slot]);
  for (int i = 0; i < tensors.count; ++i) {
    if (!(Place(tensors.handle[i]) == place))
      fail(plan.slots[i].name, ".device: got another one than ", plan.slots[plan.tokens_slot].name, "'s, wanted one device");
    check(tensors.handle[i], plan.slots[i], tokens, program->workspace_bytes, &bound.pointer[i], &bound.stride[i]);
  }
  submit(queue_of(tensors.handle[plan.tokens_slot]), *program, bound);
}

inline void boxed(StableIValue* stack, uint64_t arguments, uint64_t) {
  Tensors tensors;
  if (arguments < 2 || arguments - 1 > kMaxSlots) fail("an operator of ", arguments, " arguments: wanted tensors, plan");
  tensors.count = static_cast<int>(arguments - 1);
  for (int i = 0; i < tensors.count; ++i) tensors.handle[i] = reinterpret_cast<AtenTensorHandle>(stack[i]);
  run(plans.find(static_cast<int64_t>(stack[arguments - 1])), tensors);
}

// Registers `boxed` for an operator of namespace xpu_moe under a dispatch key ("XPU", or "CPU" for the OpenCL device).
inline void register_operator(const char* name, const char* key) {
  TorchLibraryHandle library = nullptr;  // kept for the life of the process
  torch_check(aoti_torch_library_init_impl("xpu_moe", key, __FILE__, __LINE__, &library), "library_init_impl");
  torch_check(aoti_torch_library_impl(library, name, &boxed), "library_impl");
}

}  // namespace xm
