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

}  // namespace lavagna
