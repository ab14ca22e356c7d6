// A call's work, shared out: tasks that don't know of each other, so that no number depends on how many threads there are.
#pragma once

#include "vector.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace lavagna {

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
