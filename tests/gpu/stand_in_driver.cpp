// A CUDA driver for machines without a GPU: launches call a function of the program
// (stand_in_set_launch), which gets the cubin, the kernel's name, the grid and the parameters.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Launch = int (*)(const void* cubin, size_t bytes, const char* name, unsigned x, unsigned y,
                       unsigned z, unsigned threads, unsigned shared, void* stream, void** params);

struct Function {
  const std::vector<char>* cubin;
  std::string name;
};

Launch launch = nullptr;
thread_local std::vector<void*> contexts{reinterpret_cast<void*>(0x10)};

template <class Number>
size_t number(const char* at) {
  Number value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// The length of an ELF file: one of its two tables, of segments and of sections, is its end.
size_t length(const char* elf) {
  size_t segments = number<uint64_t>(elf + 32) + number<uint16_t>(elf + 54) * number<uint16_t>(elf + 56);
  size_t sections = number<uint64_t>(elf + 40) + number<uint16_t>(elf + 58) * number<uint16_t>(elf + 60);
  return std::max(segments, sections);
}

}  // namespace

extern "C" {

void stand_in_set_launch(Launch function) { launch = function; }

int cuInit(unsigned) { return 0; }

int cuGetErrorString(int, const char** text) {
  *text = "stand-in error";
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(0x10L + 0x10 * device);
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int) { return 0; }

int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  contexts.push_back(context);
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}

int cuCtxGetCurrent(void** context) {
  *context = contexts.back();
  return 0;
}

int cuCtxSetCurrent(void* context) {
  contexts.back() = context;
  return 0;
}

int cuModuleLoadData(void** module, const void* image) {
  const char* elf = static_cast<const char*>(image);
  *module = new std::vector<char>(elf, elf + length(elf));
  return 0;
}

int cuModuleUnload(void* module) {
  delete static_cast<std::vector<char>*>(module);
  return 0;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = new Function{static_cast<std::vector<char>*>(module), name};
  return 0;
}

int cuFuncSetAttribute(void*, int, int) { return 0; }

int cuLaunchKernel(void* handle, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                   unsigned, unsigned shared, void* stream, void** params, void**) {
  const Function& function = *static_cast<Function*>(handle);
  return launch(function.cubin->data(), function.cubin->size(), function.name.c_str(), x, y, z,
                threads, shared, stream, params);
}

}  // extern "C"
