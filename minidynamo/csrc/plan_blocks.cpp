#include "plan_blocks.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace minidynamo {

namespace {

constexpr size_t kSmallest = 1024 * 1024;  // below, the C library keeps freed memory itself
constexpr size_t kGranule = 64 * 1024;
constexpr size_t kHugePage = 2 * 1024 * 1024;
constexpr size_t kMostBlocks = 512;

struct Block {
  void* memory;
  size_t nbytes;
  ~Block() { std::free(memory); }
};

size_t default_limit() {
  auto pages = static_cast<size_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
  size_t share = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 16;
  return std::clamp(share, size_t{256} << 20, size_t{4} << 30);
}

class Pool {
 public:
  // The smallest block that is large enough and not a quarter too large; the latest of equal ones.
  std::unique_ptr<Block> take(size_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto best = blocks_.end();
    for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
      bool fits = (*it)->nbytes >= nbytes && (*it)->nbytes - nbytes <= nbytes / 4;
      if (fits && (best == blocks_.end() || (*it)->nbytes <= (*best)->nbytes)) {
        best = it;
      }
    }
    if (best == blocks_.end()) {
      return nullptr;
    }
    std::unique_ptr<Block> block = std::move(*best);
    blocks_.erase(best);
    bytes_ -= block->nbytes;
    return block;
  }

  void give_back(std::unique_ptr<Block> block) {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes_ += block->nbytes;
    blocks_.push_back(std::move(block));
    trim();
  }

  size_t limit(size_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(limit_, nbytes);
    trim();
    return nbytes;
  }

  size_t limit() {
    std::lock_guard<std::mutex> lock(mutex_);
    return limit_;
  }

  size_t bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
  }

  std::mutex& mutex() { return mutex_; }

 private:
  void trim() {
    size_t count = 0;
    while (count < blocks_.size() && (bytes_ > limit_ || blocks_.size() - count > kMostBlocks)) {
      bytes_ -= blocks_[count++]->nbytes;
    }
    blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> blocks_;  // oldest first
  size_t bytes_ = 0;
  size_t limit_ = default_limit();
};

// Never destroyed: tensors may be dropped after the library's own destructors ran.
Pool& pool() {
  static Pool* instance = [] {
    auto* created = new Pool();
    static Pool* forked = created;
    pthread_atfork([] { forked->mutex().lock(); }, [] { forked->mutex().unlock(); },
                   [] { forked->mutex().unlock(); });
    return created;
  }();
  return *instance;
}

std::unique_ptr<Block> new_block(size_t nbytes) {
  void* memory = nullptr;
  TORCH_CHECK(posix_memalign(&memory, kHugePage, nbytes) == 0,
              "can't allocate memory: a compiled graph asked for ", nbytes, " bytes");
  madvise(memory, nbytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // a hint, may be refused
  return std::unique_ptr<Block>(new Block{memory, nbytes});
}

// Like ATen's allocator: memory profiles see what is handed out, not what waits here.
void release(void* context) {
  c10::profiledCPUMemoryReporter().Delete(static_cast<Block*>(context)->memory);
  pool().give_back(std::unique_ptr<Block>(static_cast<Block*>(context)));
}

}  // namespace

c10::DataPtr allocate_block(size_t nbytes, c10::Device device) {
  if (!device.is_cpu()) {
    c10::DeviceGuard guard(device);
    return c10::GetAllocator(device.type())->allocate(nbytes);
  }
  if (nbytes < kSmallest) {
    return c10::GetCPUAllocator()->allocate(nbytes);
  }
  size_t rounded = (nbytes + kGranule - 1) / kGranule * kGranule;
  TORCH_CHECK(rounded >= nbytes, "can't allocate memory: the size overflows");
  std::unique_ptr<Block> block = pool().take(rounded);
  if (!block) {
    block = new_block(rounded);
  }
  Block* context = block.release();
  c10::profiledCPUMemoryReporter().New(context->memory, nbytes);
  return c10::DataPtr(context->memory, context, &release, c10::kCPU);
}

size_t pooled_bytes() {
  return pool().bytes();
}

size_t limit_pool(size_t nbytes) {
  return pool().limit(nbytes);
}

size_t pool_limit() {
  return pool().limit();
}

}  // namespace minidynamo
