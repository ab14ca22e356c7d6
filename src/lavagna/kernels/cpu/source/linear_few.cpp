// A linear map of few rows, y = x W^T + bias, which is bound by how fast W can be read: each of its numbers once, in order.
//
// A sum takes the numbers of a row in chunks of whole vectors, by two totals in turn, whatever else is computed beside it:
// it depends neither on the number of threads nor on how many rows x has.
#include "chunk.h"
#include "tasks.h"

namespace lavagna {
namespace {

// Sums side by side, so that one does not wait for its own last product; of several rows of x or of W.
constexpr int kSums = 4;
// Bytes up to which it pays to call for the rows after those at hand, and not for what is further on in them.
constexpr Index kAhead = 12288;

struct Map {
    // x (rows, in) dense, W (out, in) with its last axis dense; bytes of W's numbers: 4 float, 2 bfloat, 1 integer.
    Index rows, in, out, stride, bytes, threads;
    // What x and y hold, and what the bias does.
    Index element, bias_element;
    const void* x;
    const void* weight;
    const void* bias;
    // One factor a row of W, or null.
    const float* scale;
    void* y;
};

// Adds the products of one chunk of `kOut` rows of W, and as much of `kRows` rows of x.
template <class W, int kRows, int kOut>
inline void take(const float* x, Index wide, const W* weight, Index stride, Index ahead, Floats (&totals)[2][kSums]) {
    constexpr int kParts = Chunk<W>::kParts;
#pragma GCC unroll 4
    for (int o = 0; o < kOut; ++o) {
        // An address alone: it may lie beyond the last row.
        __builtin_prefetch((const void*)((uintptr_t)(weight + o * stride) + ahead));
        const Chunk<W> own(weight + o * stride);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int p = 0; p < kParts; ++p)
                totals[p % 2][o * kRows + r] += load_vector(x + r * wide + p * kLanes<float>) * own.part[p];
    }
}

// Sums of `kRows` rows of x (each `wide` numbers) with `kOut` rows of W: (kOut, kRows).
template <class W, int kRows, int kOut>
inline void products(const float* x, Index wide, const W* weight, Index stride, Index in, float* sums) {
    Floats totals[2][kSums] = {};
    Index at = 0;
    // What is read next, told to the processor, which by itself finds the start of each row anew; half as fast without.
    const Index group = kOut * stride * Index(sizeof(W)), ahead = group <= kAhead ? group : kAhead / 6;
    for (; at + kChunk<W> <= in; at += kChunk<W>) take<W, kRows, kOut>(x + at, wide, weight + at, stride, ahead, totals);
    if (at < in) {
        // Behind the end of a row lies another one, or nothing.
        W rest[kOut * kChunk<W>] = {};
        for (int o = 0; o < kOut; ++o) std::memcpy(rest + o * kChunk<W>, weight + o * stride + at, (in - at) * sizeof(W));
        take<W, kRows, kOut>(x + at, wide, rest, kChunk<W>, 0, totals);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kSums; ++i) totals[0][i] += totals[1][i];
    sum_many<4>(totals[0], sums);
}

// Some rows of W with some rows of x.
template <class W, int kRows>
void some(const Map& map, const float* x, Index wide, Index row, Index first, Index last) {
    constexpr int kOut = kSums / kRows;
    const bool narrow = map.element == Index(Element::kBfloat);
    for (Index o = first; o < last;) {
        const W* weight = (const W*)map.weight + o * map.stride;
        float sums[kSums];
        const int many = last - o >= kOut ? kOut : 1;
        if (many == kOut)
            products<W, kRows, kOut>(x, wide, weight, map.stride, map.in, sums);
        else
            products<W, kRows, 1>(x, wide, weight, map.stride, map.in, sums);
        for (int i = 0; i < many; ++i, ++o)
            for (int r = 0; r < kRows; ++r) {
                float y = sums[i * kRows + r];
                if (map.scale) y *= map.scale[o];
                if (map.bias)
                    y += map.bias_element == Index(Element::kBfloat) ? from_bfloat(((const uint16_t*)map.bias)[o])
                                                                     : ((const float*)map.bias)[o];
                const Index at = (row + r) * map.out + o;
                if (narrow)
                    ((uint16_t*)map.y)[at] = to_bfloat(y);
                else
                    ((float*)map.y)[at] = y;
            }
    }
}

template <class W>
void part(const Map& map, const float* x, Index wide, Index first, Index last) {
    Index row = 0;
    for (; row + 4 <= map.rows; row += 4) some<W, 4>(map, x + row * wide, wide, row, first, last);
    if (map.rows - row == 3) some<W, 3>(map, x + row * wide, wide, row, first, last);
    if (map.rows - row == 2) some<W, 2>(map, x + row * wide, wide, row, first, last);
    if (map.rows - row == 1) some<W, 1>(map, x + row * wide, wide, row, first, last);
}

template <class W>
void serve(const Map& map) {
    const Index wide = (map.in + kChunk<W> - 1) / kChunk<W> * kChunk<W>;
    const Operand given{map.x, 0, 0, 0, 1, map.element, 0};
    Scratch<float> x(map.rows * wide);
    for (Index r = 0; r < map.rows; ++r) {
        read(x.get() + r * wide, given, r * map.in, map.in);
        std::memset(x.get() + r * wide + map.in, 0, (wide - map.in) * sizeof(float));
    }
    spread<W>(x.get(), map.rows * wide);
    // A share is whole groups of rows, and begins where another cache line of y does.
    each_share(map.out, 16, map.threads, [&](Index first, Index end) { part<W>(map, x.get(), wide, first, end); });
}

}  // namespace
}  // namespace lavagna

extern "C" __attribute__((visibility("default"))) void lavagna_linear_few(const int64_t* block) {
    const auto& map = *reinterpret_cast<const lavagna::Map*>(block);
    if (map.bytes == 4) lavagna::serve<float>(map);
    else if (map.bytes == 2) lavagna::serve<uint16_t>(map);
    else lavagna::serve<int8_t>(map);
}
