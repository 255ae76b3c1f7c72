// minidynamo::one_hot: at::one_hot as an operator. That one is taken apart before fake tensors see it, and on those
// it does not look at its data: a class that does not exist was a row of zeros.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace {

at::Tensor one_hot(const at::Tensor& self, int64_t classes) {
  return at::one_hot(self, classes);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(minidynamo, library) {
  library.def("one_hot(Tensor self, int classes) -> Tensor");
}
TORCH_LIBRARY_IMPL(minidynamo, CompositeExplicitAutograd, library) {
  library.impl("one_hot", one_hot);
}
