// Large pages for large results: to touch many small ones for the first time takes longer than a pass over them.
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

// Where a new block lies, and its bytes. Where there are no large pages, nothing happens.
extern "C" __attribute__((visibility("default"))) void lavagna_large_pages(const int64_t* block) {
#if defined(MADV_HUGEPAGE)
    const int64_t page = sysconf(_SC_PAGESIZE), first = (block[0] + page - 1) / page * page, end = block[0] + block[1];
    if (first < end) madvise(reinterpret_cast<void*>(first), (end - first) / page * page, MADV_HUGEPAGE);
#else
    (void)block;
#endif
}
