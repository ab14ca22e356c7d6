// Some numbers of a row as vectors: narrow ones widened by as few instructions as there are.
#pragma once

#include "pack.h"

namespace lavagna {

using Floats = Vector<float>;

// A chunk of a row as vectors of wide numbers. Narrow ones are taken out of words by shifts: number i lies in part i % kParts,
// and what they are multiplied by is spread the same way.
template <class W>
struct Chunk {
    using Scalar = W;
    static constexpr int kParts = 2;
    Vector<W> part[kParts];
    explicit Chunk(const W* from) : part{load_vector(from), load_vector(from + kLanes<W>)} {}
};

template <>
struct Chunk<uint16_t> {
    using Scalar = float;
    static constexpr int kParts = 2;
    Floats part[kParts];
    explicit Chunk(const uint16_t* from) {
        Words both;
        std::memcpy(&both, from, sizeof both);
        part[0] = (Floats)(both << 16);
        part[1] = (Floats)(both & 0xffff0000u);
    }
};

template <>
struct Chunk<int8_t> {
    using Scalar = float;
    static constexpr int kParts = 4;
    Floats part[kParts];
    explicit Chunk(const int8_t* from) {
        Mask<float> four;
        std::memcpy(&four, from, sizeof four);
        part[0] = __builtin_convertvector((Mask<float>)((Words)four << 24) >> 24, Floats);
        part[1] = __builtin_convertvector((Mask<float>)((Words)four << 16) >> 24, Floats);
        part[2] = __builtin_convertvector((Mask<float>)((Words)four << 8) >> 24, Floats);
        part[3] = __builtin_convertvector(four >> 24, Floats);
    }
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "chunks take the numbers of a word from its low end");

template <class W>
constexpr Index kChunk = Chunk<W>::kParts * kLanes<typename Chunk<W>::Scalar>;

// Numbers in the order in which chunks of W have theirs, and with `kBack` as they were.
template <class W, bool kBack = false, class T = typename Chunk<W>::Scalar>
void spread(T* x, Index count) {
    if (sizeof(W) == sizeof(T)) return;
    constexpr Index parts = Chunk<W>::kParts;
    T given[kChunk<W>];
    for (Index start = 0; start < count; start += kChunk<W>) {
        std::memcpy(given, x + start, sizeof given);
        for (Index i = 0; i < kChunk<W>; ++i) {
            const Index place = i % parts * kLanes<T> + i / parts;
            x[start + (kBack ? i : place)] = given[kBack ? place : i];
        }
    }
}

}  // namespace lavagna
