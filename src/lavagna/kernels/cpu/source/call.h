// A call as it comes from Python: one block of 64-bit integers, read into sizes, strides and pointers.
#pragma once

#include <cstdint>

#include "vector.h"

namespace lavagna {

enum class Element : Index { kFloat = 0, kDouble = 1, kBfloat = 2 };

// One tensor (b, t, heads, n): its last axis is dense, the others have strides in numbers; 0 repeats.
struct Operand {
    const void* data;
    Index batch, time, head;
    // How many heads of v share one head of this tensor.
    Index group;
    Index element;
    Index complex;

    explicit operator bool() const { return data != nullptr; }
    Index at(Index b, Index t, Index h) const { return b * batch + t * time + h / group * head; }
};

struct Call {
    // Sizes. `decays` is the last axis of log_decay; `segment` steps lie between two kept states.
    Index rows, steps, heads, keys, values, decays, segment, parts, threads;
    // Choices.
    Index element, complex, before, decayed;
    // Borders of packed sequences, rows + 1 of them, or null where every row has all steps; which steps are real, or null.
    const Index* offsets;
    const uint8_t* mask;
    // `erase` is beta where `decayed`, else left; without `right`, the key is erased along, if anything is.
    Operand q, k, v, log_decay, step, erase, right;
    // (rows, heads, values, keys), dense.
    const void* state;
    void* last;
    // (b, t, heads, values), dense: reads, and where they are kept what each step wrote or found, in the wide dtype.
    void* output;
    void* found;
    // States at the start of each segment, (kept, heads, values, row of keys).
    void* kept;
    // Backward: gradients that come, and those that go, one for each part of the values, (parts, b, t, heads, n) dense.
    Operand d_output;
    const void* d_last;
    void *d_q, *d_k, *d_v, *d_log_decay, *d_erase, *d_right, *d_state;

    Index batch() const { return offsets ? 1 : rows; }
};

// One sequence: where its steps lie, and which kept states are its own.
struct Sequence {
    Index batch, first, end, kept;
};

// Of any call with these sizes.
template <class C>
inline Sequence sequence(const C& call, Index row) {
    if (!call.offsets) {
        Index pieces = (call.steps + call.segment - 1) / call.segment;
        return {row, 0, call.steps, row * pieces};
    }
    // A row starts at most one piece later for each sequence before it than if there were no borders.
    return {0, call.offsets[row], call.offsets[row + 1], call.offsets[row] / call.segment + row};
}

}  // namespace lavagna
