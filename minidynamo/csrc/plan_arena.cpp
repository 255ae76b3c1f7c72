// Planned memory at run time: arenas, and the tensors in them that operators are given.
#include "plan.h"

#include <c10/core/InferenceMode.h>

#include "plan_blocks.h"

namespace minidynamo {

namespace {

std::shared_ptr<void> allocate_arena(const Arena& arena) {
  if (arena.nbytes == 0) {
    return nullptr;
  }
  auto block = std::make_shared<c10::DataPtr>(allocate_block(arena.nbytes, arena.device));
  return std::shared_ptr<void>(block, block->get());
}

// A storage inside the arena that keeps the arena alive.
c10::Storage storage_in(const std::shared_ptr<void>& memory, const MemoryGroup& group,
                        c10::Device device) {
  auto* holder = new std::shared_ptr<void>(memory);
  auto release = [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); };
  c10::DataPtr data(static_cast<char*>(memory.get()) + group.offset, holder, release, device);
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(group.nbytes),
                      std::move(data), nullptr, /*resizable=*/false);
}

void keep_tensor(int32_t slot, const Program& program, RunState& state) {
  const SlotInfo& info = program.slots[slot];
  const MemoryGroup& group = program.groups[info.group];
  c10::Storage& storage = state.storages[info.group];
  if (!storage) {
    storage = storage_in(state.arenas[group.arena], group, program.arenas[group.arena].device);
  }
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), plain_keys(program.arenas[group.arena].device),
      c10::scalarTypeToTypeMeta(info.layout.dtype));
  auto itemsize = static_cast<int64_t>(c10::elementSize(info.layout.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      info.layout.fixed_size, info.layout.fixed_stride, info.byte_offset / itemsize);
  state.tensors[slot] = std::move(tensor);
}

}  // namespace

std::unique_ptr<RunState> make_state(const Program& program) {
  auto state = std::make_unique<RunState>();
  size_t n_slots = program.slots.size();
  state->data.resize(n_slots, nullptr);
  state->refs.resize(n_slots, nullptr);
  state->tensors.resize(n_slots);
  state->integers.resize(program.inputs.size(), 0);
  state->symbols.resize(program.n_symbols, 0);
  state->expressions.resize(program.expressions.size(), 0);
  state->pointers.resize(program.max_args, nullptr);
  state->launch_values.resize(program.tritons.empty() ? 0 : program.max_args);
  state->storages.resize(program.groups.size());
  state->arenas.resize(program.arenas.size());
  for (size_t slot = 0; slot < n_slots; ++slot) {
    state->refs[slot] = &state->tensors[slot];
  }
  if (program.keeps_memory) {
    attach_memory(program, *state);
  }
  return state;
}

void attach_memory(const Program& program, RunState& state) {
  c10::InferenceMode normal(false);  // what is kept may be used in either mode
  for (size_t i = 0; i < program.arenas.size(); ++i) {
    state.arenas[i] = allocate_arena(program.arenas[i]);
  }
  for (int32_t slot : program.planned_slots) {
    const SlotInfo& info = program.slots[slot];
    const MemoryGroup& group = program.groups[info.group];
    state.data[slot] =
        static_cast<char*>(state.arenas[group.arena].get()) + group.offset + info.byte_offset;
    if (info.needs_tensor) {
      keep_tensor(slot, program, state);
    }
  }
}

void detach_memory(const Program& program, RunState& state) {
  for (int32_t slot : program.planned_slots) {
    state.tensors[slot].reset();
    state.data[slot] = nullptr;
  }
  for (c10::Storage& storage : state.storages) {
    storage = c10::Storage();
  }
  for (std::shared_ptr<void>& arena : state.arenas) {
    arena.reset();
  }
}

bool is_reusable(const Program& program, const RunState& state) {
  if (!program.keeps_memory) {
    return true;
  }
  for (int32_t slot : program.planned_slots) {
    const SlotInfo& info = program.slots[slot];
    if (!info.needs_tensor) {
      continue;
    }
    const at::Tensor& tensor = state.tensors[slot];
    bool untouched = tensor.use_count() == 1 && tensor.sizes().equals(info.layout.fixed_size) &&
                     tensor.strides().equals(info.layout.fixed_stride);
    if (!untouched) {
      return false;
    }
  }
  for (size_t group = 0; group < state.storages.size(); ++group) {
    if (state.storages[group] && state.storages[group].use_count() != program.groups[group].kept + 1) {
      return false;
    }
  }
  return true;
}

}  // namespace minidynamo
