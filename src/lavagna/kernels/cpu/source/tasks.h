// A call's work, shared out: tasks that don't know of each other, so that no number depends on how many threads there are.
#pragma once

#include "vector.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace lavagna {

// While it lives, numbers too small to be normal are zeros: on an x86 each costs as much as a hundred others. Strong decays
// make many of them, and any decay does in the end, where nothing more is written.
class Flush {
  public:
#ifdef __SSE__
    Flush() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(before_ | kZeros); }
    ~Flush() { __builtin_ia32_ldmxcsr(before_); }

  private:
    // For results and for operands.
    static constexpr unsigned kZeros = 0x8000 | 0x0040;
    const unsigned before_;
#else
    Flush() {}
#endif
};

// Call back with each of so many tasks, on up to so many threads.
template <class Task>
inline void each_task(Index tasks, Index threads, Task task) {
    if (threads <= 1 || tasks == 1) {
        for (Index i = 0; i < tasks; ++i) task(i);
        return;
    }
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (Index i = 0; i < tasks; ++i) task(i);
}

// Call back with the first and the end of a share of so many for each thread, the same one at each call, since its cache may
// still hold it; shares are multiples of `whole`.
template <class Share>
inline void each_share(Index count, Index whole, Index threads, Share share) {
    const Index size = ((count + threads - 1) / threads + whole - 1) / whole * whole;
    if (threads <= 1 || size >= count) return share(0, count);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (Index first = 0; first < count; first += size) share(first, first + size < count ? first + size : count);
}

}  // namespace lavagna
