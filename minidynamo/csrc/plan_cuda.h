// Compiled GPU kernels through the CUDA driver, which is looked up at run time: the build needs no
// CUDA. Failures throw std::runtime_error.
#ifndef MINIDYNAMO_PLAN_CUDA_H
#define MINIDYNAMO_PLAN_CUDA_H

#include <string>

namespace minidynamo {

// One function of a cubin, loaded into the primary context of a device. It stays loaded as long as
// the process lives: a launch may still run, or be part of a CUDA graph, when its plan is gone, and
// unloading waits for the GPU. The same function is loaded once.
class CudaFunction {
 public:
  // Loads the file; `shared` bytes of dynamic shared memory are asked for where that is over 48 KiB.
  static const CudaFunction* load(const std::string& path, const std::string& name, int device,
                                  unsigned shared);

  // Launches on a stream (a CUstream of the device). Does nothing when the grid is empty.
  void launch(const unsigned grid[3], unsigned threads, void* stream, void** params) const;

 private:
  CudaFunction() = default;
  void* context_ = nullptr;
  void* function_ = nullptr;
  unsigned shared_ = 0;
  std::string name_;
};

}  // namespace minidynamo

#endif
