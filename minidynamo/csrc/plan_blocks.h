// Large blocks of CPU memory that come back to a pool when their last tensor goes.
//
// Fresh memory from the system costs a page fault every 4 KiB when it is first written, which for a
// large tensor takes longer than computing it; the C library hands blocks above its mmap threshold
// (at most 32 MiB) back to the system every time they are freed.
#ifndef MINIDYNAMO_PLAN_BLOCKS_H
#define MINIDYNAMO_PLAN_BLOCKS_H

#include <c10/core/Allocator.h>

#include <cstddef>

namespace minidynamo {

// Uninitialised memory, aligned to 64 bytes at least, as an owning pointer that any thread may drop.
// Throws c10::Error when there is not enough.
// On other devices than the CPU this is the device's own caching allocator.
c10::DataPtr allocate_block(size_t nbytes, c10::Device device);

// Bytes that wait in the pool.
size_t pooled_bytes();
// How many may; the oldest blocks go first. Returns what the limit was.
size_t limit_pool(size_t nbytes);
size_t pool_limit();

}  // namespace minidynamo

#endif
