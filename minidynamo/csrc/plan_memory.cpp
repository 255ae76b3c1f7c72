// Where the buffers of a plan lie. Small buffers of known size that nothing outside the plan can see
// are laid out once in one arena, by lifetime; their steps then cost nothing at run time, and the
// arena stays with the run state between calls. All other tensors are made when their step runs and
// dropped after the last step that reads them. Where an arena would be as large as such tensors are,
// only the smallest buffers lie in it: it is held while others take the most memory.
// A GPU's allocator is quick, and orders memory by stream: its arenas last for a call.
#include "plan.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace minidynamo {

namespace {

constexpr size_t kAlignment = 256;  // what GPU kernels count on; CPU kernels want 64

// Larger buffers are made when they are needed, and freed as soon as inputs are: all of them in one
// block would hold the memory of the call's fullest moment from its begin to its end.
constexpr size_t kLargestTogether = 1024 * 1024;
// The same where they would take more than that together. To fill one takes much longer than to
// make it.
constexpr size_t kSmallTogether = 256 * 1024;

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Bytes from a tensor's first element to the end of its last one. Throws on overflow.
size_t extent(const Layout& layout, c10::ScalarType dtype) {
  return at::detail::computeStorageNbytes(layout.fixed_size, layout.fixed_stride,
                                          c10::elementSize(dtype));
}

class MemoryPlanner {
 public:
  MemoryPlanner(Program& program, const std::vector<SlotUses>& uses, std::vector<bool> pinned)
      : program_(program), uses_(uses), pinned_(std::move(pinned)),
        root_(program.slots.size(), kNone), offset_(program.slots.size(), 0),
        layout_(program.slots.size()), unplanned_(program.slots.size(), false),
        nbytes_(program.slots.size(), 0) {}

  void plan() {
    for (const Step& step : program_.steps) {
      join(step);
    }
    for (size_t slot = 0; slot < root_.size(); ++slot) {
      if (root_[slot] != kNone && pinned_[slot]) {
        unplanned_[root_[slot]] = true;
      }
    }
    if (fullest() > kLargestTogether) {
      for (const auto& [root, device] : device_) {
        unplanned_[root] = unplanned_[root] || (device.is_cpu() && nbytes_[root] > kSmallTogether);
      }
    }
    make_groups();
    find_lifetimes();
    place_groups();
    find_dead();
  }

 private:
  bool planned(int32_t slot) const { return root_[slot] != kNone && !unplanned_[root_[slot]]; }

  // Puts the slot of a memory step into the group of the buffer under it.
  void join(const Step& step) {
    if (step.kind == StepKind::Alloc) {
      const AllocStep& alloc = program_.allocs[step.index];
      bool known = alloc.device.is_cpu() || (alloc.device.is_cuda() && alloc.device.has_index());
      if (known && alloc.layout.nbytes <= kLargestTogether && alloc.layout.fixed) {
        device_.emplace(alloc.slot, alloc.device);
        root_[alloc.slot] = alloc.slot;
        layout_[alloc.slot] = alloc.layout;
        nbytes_[alloc.slot] = alloc.layout.nbytes;
      }
    } else if (step.kind == StepKind::Reuse) {
      const ReuseStep& reuse = program_.reuses[step.index];
      layout_[reuse.slot] = reuse.layout;
      attach(reuse.slot, reuse.source, 0, reuse.layout.fixed);
    } else if (step.kind == StepKind::View) {
      const ViewStep& view = program_.views[step.index];
      if (root_[view.base] == kNone) {
        return;
      }
      c10::ScalarType dtype = layout_[view.base].dtype;
      layout_[view.slot] = view.layout;
      layout_[view.slot].dtype = dtype;
      bool usable = view.layout.fixed && view.offset.expression == kNone && view.offset.value >= 0 &&
                    view.offset.value <= static_cast<int64_t>(nbytes_[root_[view.base]]) &&
                    (view.relative || offset_[view.base] == 0);
      attach(view.slot, view.base,
             view.offset.value * static_cast<int64_t>(c10::elementSize(dtype)), usable);
    }
  }

  void attach(int32_t slot, int32_t base, int64_t bytes, bool usable) {
    int32_t root = root_[base];
    if (root == kNone) {
      return;
    }
    root_[slot] = root;
    offset_[slot] = offset_[base] + bytes;
    size_t itemsize = c10::elementSize(layout_[slot].dtype);
    bool fits = usable && offset_[slot] + extent(layout_[slot], layout_[slot].dtype) <= nbytes_[root];
    if (!fits || offset_[slot] % itemsize != 0) {
      unplanned_[root] = true;  // the step itself checks again, and raises where it is wrong
    }
  }

  // Bytes that planned buffers take at once, at most.
  size_t fullest() const {
    std::vector<int32_t> first(root_.size(), kNone), last(root_.size(), kNone);
    for (size_t index = 0; index < uses_.size(); ++index) {
      for (int32_t slot : uses_[index].reads) {
        if (planned(slot)) {
          int32_t root = root_[slot];
          first[root] = first[root] == kNone ? static_cast<int32_t>(index) : first[root];
          last[root] = static_cast<int32_t>(index);
        }
      }
    }
    std::vector<int64_t> held(uses_.size() + 1, 0);
    for (size_t root = 0; root < first.size(); ++root) {
      if (first[root] != kNone) {
        held[first[root]] += static_cast<int64_t>(nbytes_[root]);
        held[last[root] + 1] -= static_cast<int64_t>(nbytes_[root]);
      }
    }
    std::partial_sum(held.begin(), held.end(), held.begin());
    return static_cast<size_t>(*std::max_element(held.begin(), held.end()));
  }

  int32_t arena_on(c10::Device device) {
    for (size_t i = 0; i < program_.arenas.size(); ++i) {
      if (program_.arenas[i].device == device) {
        return static_cast<int32_t>(i);
      }
    }
    // The device's own allocator keeps freed memory, in the order of its stream.
    program_.keeps_memory &= device.is_cpu();
    program_.arenas.push_back({device, 0});
    return static_cast<int32_t>(program_.arenas.size()) - 1;
  }

  void make_groups() {
    std::vector<int32_t> group_of_root(root_.size(), kNone);
    for (size_t slot = 0; slot < root_.size(); ++slot) {
      if (!planned(static_cast<int32_t>(slot))) {
        continue;
      }
      int32_t& group = group_of_root[root_[slot]];
      if (group == kNone) {
        group = static_cast<int32_t>(program_.groups.size());
        program_.groups.push_back({nbytes_[root_[slot]], 0, INT32_MAX, -1, 0,
                                   arena_on(device_.at(root_[slot]))});
      }
      SlotInfo& info = program_.slots[slot];
      c10::Device device = device_.at(root_[slot]);
      TORCH_CHECK_VALUE(!info.needs_data || info.device_type == device.type(), "slot ", slot,
                        " is not on the device of the kernel that takes it");
      info.kind = SlotKind::Planned;
      info.group = group;
      info.byte_offset = offset_[slot];
      info.layout = layout_[slot];
      program_.groups[group].kept += info.needs_tensor;
      program_.planned_slots.push_back(static_cast<int32_t>(slot));
    }
    for (Step& step : program_.steps) {
      step.skipped = (step.kind == StepKind::Alloc && planned(program_.allocs[step.index].slot)) ||
                     (step.kind == StepKind::Reuse && planned(program_.reuses[step.index].slot)) ||
                     (step.kind == StepKind::View && planned(program_.views[step.index].slot));
    }
  }

  void find_lifetimes() {
    for (size_t index = 0; index < program_.steps.size(); ++index) {
      if (program_.steps[index].skipped) {
        continue;
      }
      for (int32_t slot : uses_[index].reads) {
        if (program_.slots[slot].kind == SlotKind::Planned) {
          MemoryGroup& group = program_.groups[program_.slots[slot].group];
          group.first = std::min(group.first, static_cast<int32_t>(index));
          group.last = static_cast<int32_t>(index);
        }
      }
    }
  }

  // Largest first, each at the lowest offset that is free during its whole life.
  void place_groups() {
    std::vector<MemoryGroup*> order;
    for (MemoryGroup& group : program_.groups) {
      if (group.last >= 0 && group.nbytes > 0) {
        order.push_back(&group);
      }
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto* a, const auto* b) { return a->nbytes > b->nbytes; });
    std::vector<MemoryGroup*> placed;  // by offset
    for (MemoryGroup* group : order) {
      size_t offset = 0;
      for (const MemoryGroup* other : placed) {
        bool together = group->arena == other->arena && group->first <= other->last &&
                        other->first <= group->last;
        if (!together) {
          continue;
        }
        if (offset + group->nbytes <= other->offset) {
          break;
        }
        offset = std::max(offset, aligned(other->offset + other->nbytes));
      }
      group->offset = offset;
      size_t& nbytes = program_.arenas[group->arena].nbytes;
      nbytes = std::max(nbytes, offset + group->nbytes);
      placed.insert(std::upper_bound(placed.begin(), placed.end(), group,
                                     [](const auto* a, const auto* b) { return a->offset < b->offset; }),
                    group);
    }
  }

  // After which step each tensor of the run is dropped; outputs are read after the last.
  void find_dead() {
    std::vector<int32_t> last(program_.slots.size(), kNone);
    for (size_t index = 0; index < uses_.size(); ++index) {
      for (const auto* slots : {&uses_[index].reads, &uses_[index].defines}) {
        for (int32_t slot : *slots) {
          last[slot] = static_cast<int32_t>(index);
        }
      }
    }
    for (size_t slot = 0; slot < last.size(); ++slot) {
      SlotKind kind = program_.slots[slot].kind;
      if (kind != SlotKind::Value && kind != SlotKind::Input) {
        continue;
      }
      program_.owned_slots.push_back(static_cast<int32_t>(slot));
      if (last[slot] == kNone || last[slot] >= static_cast<int32_t>(program_.steps.size())) {
        continue;
      }
      Step& step = program_.steps[last[slot]];
      (kind == SlotKind::Value ? step.dead : step.dead_inputs)
          .push_back(static_cast<int32_t>(slot));
    }
    std::erase_if(program_.steps, [](const Step& step) { return step.skipped; });
  }

  Program& program_;
  const std::vector<SlotUses>& uses_;
  std::vector<bool> pinned_;
  std::vector<int32_t> root_;      // the slot of the buffer that a slot lies in
  std::vector<int64_t> offset_;    // bytes from the buffer's start
  std::vector<Layout> layout_;
  std::vector<bool> unplanned_;    // by root
  std::unordered_map<int32_t, c10::Device> device_;  // by root
  std::vector<size_t> nbytes_;     // by root
};

}  // namespace

void plan_memory(Program& program, const std::vector<SlotUses>& uses, std::vector<bool> pinned) {
  MemoryPlanner(program, uses, std::move(pinned)).plan();
}

}  // namespace minidynamo
