// minidynamo::attention: what `inductor/passes/attention.py` makes of attention that is written out. It calls
// torch's fused operator where that is sure to give the same, and computes the scores otherwise.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace minidynamo {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Scores below it stay finite in float32 whatever finite mask is added.
constexpr double kLargestBound = 1e30;
// exp(-x) is 0 in float32 from here.
constexpr double kVanishes = 104;

// The largest magnitude; not a number where one is not.
double largest(const Tensor& x) {
  const bool dense = x.is_non_overlapping_and_dense();
  const auto [least, most] = at::aminmax(dense ? x.as_strided({x.numel()}, {1}) : x);
  const double low = least.item<double>(), high = most.item<double>();
  return std::isnan(low) ? low : std::max(-low, high);
}

// What is added to the scores, as small as the masks are; undefined where there is none.
Tensor added(const OptionalTensor& bias, const OptionalTensor& hidden, const Tensor& like) {
  if (!hidden) {
    return bias ? *bias : Tensor();
  }
  const Tensor nothing = at::scalar_tensor(-kInfinity, like.options());
  const Tensor rest = bias ? *bias : at::scalar_tensor(0, like.options());
  return at::where(*hidden, nothing, rest);
}

Tensor written_out(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
                   const OptionalTensor& hidden, double fill, double scale) {
  Tensor scores = at::matmul(query, key.transpose(-2, -1)).mul_(scale);
  if (bias) {
    scores.add_(*bias);
  }
  if (hidden) {
    scores.masked_fill_(*hidden, fill);
  }
  return at::matmul(at::softmax(scores, -1), value);
}

// softmax(query @ key.T * scale + bias, and `fill` where `hidden`) @ value. All have batch and heads first; bias
// and hidden are broadcast to the scores. A finite fill comes without bias.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
                 const OptionalTensor& hidden, double fill, double scale) {
  const double bound = largest(query) * largest(key) * static_cast<double>(query.size(-1)) * scale;
  const bool vanishes = !hidden || fill + bound < -kVanishes;
  if (!(bound < kLargestBound) || !vanishes) {  // a NaN is no bound either
    return written_out(query, key, value, bias, hidden, fill, scale);
  }
  Tensor mask = added(bias, hidden, query), dead;
  OptionalTensor whole;
  if (mask.defined()) {
    dead = at::amax(mask, -1, true) == -kInfinity;
    if (mask.size(-1) != key.size(-2) || mask.stride(-1) != 1) {
      auto size = mask.sizes().vec();
      size.back() = key.size(-2);
      mask = mask.expand(size).contiguous();
    }
    whole = mask.expand({query.size(0), query.size(1), query.size(2), key.size(2)});
  }
  Tensor result =
      std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, false, whole, scale));
  if (dead.defined() && dead.any().item<bool>()) {
    // The operator gives zeros there. Equal scores have equal weights; those of -inf give NaN.
    const Tensor instead = fill == -kInfinity ? at::scalar_tensor(NAN, value.options()) : value.mean(-2, true);
    result = at::where(dead, instead, result);
  }
  return result;
}

// The layout of the fused operator's result: heads inside of rows.
Tensor attention_meta(const Tensor& query, const Tensor&, const Tensor& value, const OptionalTensor&,
                      const OptionalTensor&, double, double) {
  const auto size = query.sym_sizes();
  return at::empty_symint({size[0], size[2], size[1], value.sym_size(3)}, query.options()).transpose(1, 2);
}

Tensor attention_cpu(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
                     const OptionalTensor& hidden, double fill, double scale) {
  const at::NoGradGuard no_grad;
  const Tensor result = attention(query, key, value, bias, hidden, fill, scale);
  return result.transpose(1, 2).contiguous().transpose(1, 2);
}

}  // namespace

TORCH_LIBRARY(minidynamo, library) {
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? hidden, float fill, float scale)"
      " -> Tensor");
}
TORCH_LIBRARY_IMPL(minidynamo, CPU, library) { library.impl("attention", attention_cpu); }
TORCH_LIBRARY_IMPL(minidynamo, Meta, library) { library.impl("attention", attention_meta); }

}  // namespace minidynamo
