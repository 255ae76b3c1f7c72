// A CUDA runtime for machines without a GPU: device memory is host memory, streams are names,
// kernels of libraries do nothing. stand_in_gpu.py adds a function that gives 0 for every other
// one that torch wants.

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <map>
#include <mutex>

namespace {

constexpr int kDevices = 2;
thread_local int current_device = 0;

long nothing() { return 0; }

std::mutex mutex;
std::map<char*, size_t>& live() {
  static auto& instance = *new std::map<char*, size_t>();  // address -> bytes of device memory
  return instance;
}

cudaError_t allocate(void** pointer, size_t bytes) {
  if (posix_memalign(pointer, 512, bytes + 1) != 0) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(*pointer, 0xAB, bytes);  // nobody may count on zeros
  return cudaSuccess;
}

cudaError_t stamp(cudaEvent_t event) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *reinterpret_cast<double*>(event) = now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
  return cudaSuccess;
}

// What a program does while a stream is captured, it writes down itself.
enum { kBegin, kEnd, kLaunch };
using Capture = void (*)(int what, unsigned long graph);
Capture capture = nullptr;
cudaStream_t captured = nullptr;
unsigned long graphs = 0;

}  // namespace

#undef cudaGetDeviceProperties

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "stand-in GPU");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->totalGlobalMem = 80ull << 30;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->regsPerMultiprocessor = 65536;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->l2CacheSize = 50 << 20;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount      ? 132
           : attribute == cudaDevAttrComputeCapabilityMajor ? 9
           : attribute == cudaDevAttrWarpSize               ? 32
                                                            : 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  cudaError_t result = allocate(pointer, bytes);
  std::lock_guard<std::mutex> lock(mutex);
  live()[static_cast<char*>(*pointer)] = bytes;
  return result;
}

// Bytes from this address to the end of the device memory that it is in; 0 if it is in none.
size_t stand_in_room(void* pointer) {
  std::lock_guard<std::mutex> lock(mutex);
  auto at = static_cast<char*>(pointer);
  auto next = live().upper_bound(at);
  if (next == live().begin()) {
    return 0;
  }
  auto [start, bytes] = *std::prev(next);
  return at < start + bytes ? start + bytes - at : 0;
}

cudaError_t cudaFree(void* pointer) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    live().erase(static_cast<char*>(pointer));
  }
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return allocate(pointer, bytes);
}

cudaError_t cudaFreeHost(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = 70ull << 30;
  *total = 80ull << 30;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(to, value, bytes);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  static long last = 0x1000;
  *stream = reinterpret_cast<cudaStream_t>(last += 16);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

void stand_in_set_capture(Capture function) { capture = function; }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  captured = stream;
  capture(kBegin, ++graphs);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  captured = nullptr;
  *graph = reinterpret_cast<cudaGraph_t>(graphs);
  capture(kEnd, graphs);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  bool active = captured != nullptr && stream == captured;
  *status = active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  if (id != nullptr) {
    *id = graphs;
  }
  return cudaStreamIsCapturing(stream, status);
}
#endif

cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  capture(kLaunch, reinterpret_cast<unsigned long>(exec));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = static_cast<cudaEvent_t>(std::calloc(1, sizeof(double)));
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  std::free(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) { return stamp(event); }

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t, unsigned) {
  return stamp(event);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = static_cast<float>(*reinterpret_cast<double*>(end) -
                                     *reinterpret_cast<double*>(start));
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t) { return "stand-in error"; }

const char* cudaGetErrorName(cudaError_t) { return "cudaErrorStandIn"; }

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->type = cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  *function = driver == nullptr ? nullptr : dlsym(driver, name);
  if (*function == nullptr) {
    *function = reinterpret_cast<void*>(nothing);
  }
  if (result != nullptr) {
    *result = cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int room, int device) {
  std::snprintf(text, room, "0000:%02x:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static char room[1 << 16];
  *address = room;
  return cudaSuccess;
}

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}

}  // extern "C"
