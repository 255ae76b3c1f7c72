// Operators that look at what they are given where they run, and not where they are traced.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace {

// minidynamo::one_hot: at::one_hot as an operator. That one is taken apart before fake tensors see it, and on those
// it does not look at its data: a class that does not exist was a row of zeros.
at::Tensor one_hot(const at::Tensor& self, int64_t classes) {
  return at::one_hot(self, classes);
}

// minidynamo::assert_sizes: raises if a tensor has others. While tracing they are equal by what was asserted.
void assert_sizes(const at::Tensor& self, at::IntArrayRef sizes) {
  TORCH_CHECK(self.sizes() == sizes, "Runtime assertion failed: a tensor has sizes ", self.sizes(), ", not ", sizes);
}

void assert_sizes_meta(const at::Tensor& self, c10::SymIntArrayRef sizes) {}

}  // namespace

TORCH_LIBRARY_FRAGMENT(minidynamo, library) {
  library.def("one_hot(Tensor self, int classes) -> Tensor");
  library.def("assert_sizes(Tensor self, SymInt[] sizes) -> ()");
}
TORCH_LIBRARY_IMPL(minidynamo, CompositeExplicitAutograd, library) {
  library.impl("one_hot", one_hot);
  library.impl("assert_sizes", assert_sizes);
}
TORCH_LIBRARY_IMPL(minidynamo, Meta, library) { library.impl("assert_sizes", assert_sizes_meta); }
