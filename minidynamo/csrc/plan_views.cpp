// Results of a run that share memory, made views for autograd.
#include "plan.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <numeric>

namespace minidynamo {

namespace {

using c10::DispatchKey;

// The slot whose memory a call's only result shows; kNone for other operators.
int32_t viewed(const ExternStep& step) {
  const auto& schema = step.op.schema();
  if (schema.arguments().empty() || schema.returns().size() != 1) {
    return kNone;
  }
  const c10::AliasInfo* from = schema.arguments()[0].alias_info();
  bool view = from != nullptr && !from->isWrite() && schema.returns()[0].alias_info() != nullptr;
  bool plain = step.outs.size() == 1 && step.outs[0].kind == OutNode::Kind::Slot &&
               step.args[0].kind == ArgNode::Kind::Slot;
  return view && plain ? step.args[0].index : kNone;
}

// What a step makes and what it is a view of; kNone for steps that make no view.
std::pair<int32_t, int32_t> view_of(const Step& step, const Program& program) {
  if (step.kind == StepKind::View) {
    return {program.views[step.index].slot, program.views[step.index].base};
  }
  if (step.kind == StepKind::Restride) {
    return {program.restrides[step.index].slot, program.restrides[step.index].source};
  }
  if (step.kind == StepKind::Extern) {
    const ExternStep& call = program.externs[step.index];
    int32_t base = viewed(call);
    return {base == kNone ? kNone : call.outs[0].index, base};
  }
  return {kNone, kNone};
}

}  // namespace

void track_views(Program& program) {
  std::vector<int32_t> root(program.slots.size());
  std::iota(root.begin(), root.end(), 0);
  for (const Step& step : program.steps) {
    auto [slot, base] = view_of(step, program);
    if (slot != kNone && program.slots[base].kind == SlotKind::Value) {
      root[slot] = root[base];
    }
  }
  std::vector<int32_t> results(program.slots.size(), 0);
  for (const Output& output : program.outputs) {
    if (output.kind == Output::Kind::Slot && output.last) {
      ++results[root[output.index]];
    }
  }
  for (Step& step : program.steps) {
    int32_t slot = view_of(step, program).first;
    step.tracked = slot != kNone && root[slot] != slot && results[root[slot]] > 1;
  }
}

ViewTracking::ViewTracking()
    : excluded_(c10::impl::tls_is_dispatch_key_excluded(DispatchKey::ADInplaceOrView)) {
  c10::impl::tls_set_dispatch_key_excluded(DispatchKey::ADInplaceOrView, false);
}

ViewTracking::~ViewTracking() {
  c10::impl::tls_set_dispatch_key_excluded(DispatchKey::ADInplaceOrView, excluded_);
}

}  // namespace minidynamo
