// Calls of other functions of the library, one after another.
#include <cstdint>

// How many calls, then for each the function and its block.
extern "C" __attribute__((visibility("default"))) void lavagna_run(const int64_t* block) {
    using Function = void (*)(const int64_t*);
    for (int64_t i = 0; i < block[0]; ++i)
        reinterpret_cast<Function>(block[2 * i + 1])(reinterpret_cast<const int64_t*>(block[2 * i + 2]));
}
