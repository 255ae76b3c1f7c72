// Where the C stack of the current thread ends.
#define _GNU_SOURCE
#include <pthread.h>

#include "hook.h"

void md_measure_stack(MdThread* thread) {
  pthread_attr_t attributes;
  void* low = NULL;
  size_t size = 0;
  thread->stack_hard = (char*)1;  // unknown bounds: there is always room
  thread->stack_soft = (char*)1;
  thread->stack_end = (char*)1;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) {
    return;
  }
  if (pthread_attr_getstack(&attributes, &low, &size) == 0 && size >= 64 * 1024) {
    size_t margin = size / 8 < 256 * 1024 ? size / 8 : 256 * 1024;
    thread->stack_hard = (char*)low + margin;
    thread->stack_soft = (char*)low + 2 * margin;
    thread->stack_end = (char*)low + size;
  }
  pthread_attr_destroy(&attributes);
}
