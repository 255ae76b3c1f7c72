// State of torch that the frame hook asks for.
#include <torch/csrc/jit/frontend/tracer.h>

extern "C" int md_torch_is_tracing(void) { return torch::jit::tracer::isTracing(); }
