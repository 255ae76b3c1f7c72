#include "plan_cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace minidynamo {

namespace {

// The checksum that inductor/runtime/cache.py puts behind a file: text (PTX) must do without.
constexpr char kTrailer[] = "\nmd:sum1:";
constexpr std::ptrdiff_t kTrailerBytes = sizeof kTrailer - 1 + 32;
constexpr unsigned kSharedWithoutAsking = 48 * 1024;
constexpr int kMaxDynamicSharedSize = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

// The driver's functions, with the C interface's types reduced to what they are: int results and
// devices, pointers for handles.
struct Driver {
  int (*init)(unsigned);
  int (*error_string)(int, const char**);
  int (*retain)(void** context, int device);
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*current)(void** context);
  int (*load)(void** module, const void* image);
  int (*get_function)(void** function, void* module, const char* name);
  int (*set_attribute)(void* function, int attribute, int value);
  int (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                unsigned shared, void* stream, void** params, void** extra);
};

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw std::runtime_error(std::string("the CUDA driver has no ") + name);
  }
}

Driver open_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error(
        "the CUDA driver (libcuda.so.1) cannot be loaded: a GPU kernel needs an NVIDIA driver");
  }
  Driver driver;
  find(library, "cuInit", driver.init);
  find(library, "cuGetErrorString", driver.error_string);
  find(library, "cuDevicePrimaryCtxRetain", driver.retain);
  find(library, "cuCtxPushCurrent_v2", driver.push);
  find(library, "cuCtxPopCurrent_v2", driver.pop);
  find(library, "cuCtxGetCurrent", driver.current);
  find(library, "cuModuleLoadData", driver.load);
  find(library, "cuModuleGetFunction", driver.get_function);
  find(library, "cuFuncSetAttribute", driver.set_attribute);
  find(library, "cuLaunchKernel", driver.launch);
  return driver;
}

const Driver& driver() {
  static const Driver instance = open_driver();
  return instance;
}

void check(int result, const std::string& what) {
  if (result == 0) {
    return;
  }
  const char* text = nullptr;
  driver().error_string(result, &text);
  throw std::runtime_error(what + ": " + (text != nullptr ? text : "CUDA error") + " (" +
                           std::to_string(result) + ")");
}

// Makes a context current for a scope, where it is not already.
class ContextGuard {
 public:
  explicit ContextGuard(void* context) {
    void* current = nullptr;
    check(driver().current(&current), "cuCtxGetCurrent");
    if (current != context) {
      check(driver().push(context), "cuCtxPushCurrent");
      pushed_ = true;
    }
  }
  ~ContextGuard() {
    void* ignored = nullptr;
    if (pushed_) {
      driver().pop(&ignored);
    }
  }

 private:
  bool pushed_ = false;
};

std::vector<char> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("cannot read GPU kernel " + path);
  }
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (static_cast<std::ptrdiff_t>(bytes.size()) >= kTrailerBytes &&
      std::equal(kTrailer, kTrailer + sizeof kTrailer - 1, bytes.end() - kTrailerBytes)) {
    bytes.resize(bytes.size() - kTrailerBytes);
  }
  bytes.push_back('\0');  // PTX text must end with one
  return bytes;
}

}  // namespace

const CudaFunction* CudaFunction::load(const std::string& path, const std::string& name, int device,
                                       unsigned shared) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::tuple<std::string, std::string, int>, CudaFunction>();
  std::lock_guard<std::mutex> lock(mutex);
  auto key = std::make_tuple(path, name, device);
  if (auto known = loaded.find(key); known != loaded.end()) {
    return &known->second;
  }
  std::vector<char> image = read_file(path);
  check(driver().init(0), "cuInit");
  CudaFunction made;
  made.name_ = name;
  made.shared_ = shared;
  check(driver().retain(&made.context_, device), "cuDevicePrimaryCtxRetain");
  ContextGuard guard(made.context_);
  void* module = nullptr;
  check(driver().load(&module, image.data()), "loading " + path);
  check(driver().get_function(&made.function_, module, name.c_str()),
        "finding " + name + " in " + path);
  if (shared > kSharedWithoutAsking) {
    check(driver().set_attribute(made.function_, kMaxDynamicSharedSize, static_cast<int>(shared)),
          name + " needs " + std::to_string(shared) + " bytes of shared memory");
  }
  return &loaded.emplace(key, made).first->second;
}

void CudaFunction::launch(const unsigned grid[3], unsigned threads, void* stream,
                          void** params) const {
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) {
    return;
  }
  ContextGuard guard(context_);
  check(driver().launch(function_, grid[0], grid[1], grid[2], threads, 1, 1, shared_, stream, params,
                        nullptr),
        "launching " + name_);
}

}  // namespace minidynamo
