// The selective scan over one segment of steps, for one block of channels: a vector holds neighboring channels, so that reads
// are sums of vectors; a block's memory, a vector for each of its numbers, stays in the nearest cache while the steps go by.
//
//     S_t = 2^(dt_t a) S_{t-1} + dt_t x_t b_t        y_t = sum over n of S_t c_t + D x_t        a = A / ln 2
#pragma once

#include "survival.h"

namespace lavagna {

// Vectors of channels side by side: what is shared by all channels is loaded once for them.
constexpr int kSide = 2;

template <class T>
constexpr Index kBlock = kSide * kLanes<T>;

// The real steps of a segment: rows of channels `stride` numbers apart, rows of b and c `keys` apart.
template <class T>
struct Stretch {
    Index size, keys, stride;
    T *dt, *x, *b, *c;
};

// One block's numbers, key by key (keys, kBlock).
template <class T>
struct Block {
    const T *decay, *skip;
    T* memory;
};

// Forward: reads replace x. One vector of channels at a time, so that all constants of the power stay in registers.
template <class T, bool kFar>
void scan_forward(const Stretch<T>& s, Index at, const Block<T>& block) {
    const Index keys = s.keys;
    for (Index w = 0; w < kBlock<T>; w += kLanes<T>) {
        const T *const decay = block.decay + w, *b = s.b, *c = s.c, *steps = s.dt + at + w;
        T *const memory = block.memory + w, *row = s.x + at + w;
        const Vector<T> skip = load_vector(block.skip + w);
        for (Index t = 0; t < s.size; ++t, b += keys, c += keys, steps += s.stride, row += s.stride) {
            const Vector<T> x = load_vector(row), dt = load_vector(steps), write = dt * x;
            Vector<T> y = skip * x;
            for (Index n = 0; n < keys; ++n) {
                const Index i = n * kBlock<T>;
                const Survival<T> survival = survive<T, kFar>(dt, load_vector(decay + i));
                const Vector<T> now = survival.of(load_vector(memory + i), write * all(b[n]));
                store_vector(memory + i, now);
                y += now * all(c[n]);
            }
            store_vector(row, y);
        }
    }
}

// What the backward pass has of a segment besides: gradients of reads, and room.
template <class T>
struct Unrolled {
    const T* d_y;
    // States before each step and after the last (size + 1, keys, kBlock); rests of decays (size, keys, kBlock).
    T *states, *rests;
    // Sums over channels, still a number a lane: (size, keys, lanes).
    T *d_b, *d_c;
};

// The gradients of one block: its memory's, (keys, kBlock), and, summed over steps, those of A and D.
template <class T>
struct BlockGradients {
    T *memory, *a, *skip;
};

// The states of a segment once more, from `states[0]`.
template <class T, bool kFar>
void scan_again(const Stretch<T>& s, Index at, const Block<T>& block, const Unrolled<T>& u) {
    const Index keys = s.keys, tile = keys * kBlock<T>;
    for (Index w = 0; w < kBlock<T>; w += kLanes<T>) {
        const T *const decay = block.decay + w, *b = s.b;
        T *before = u.states + w, *rests = u.rests + w;
        for (Index t = 0; t < s.size; ++t, b += keys, before += tile, rests += tile) {
            const Vector<T> dt = load_vector(s.dt + t * s.stride + at + w);
            const Vector<T> write = dt * load_vector(s.x + t * s.stride + at + w);
            for (Index n = 0; n < keys; ++n) {
                const Index i = n * kBlock<T>;
                const Survival<T> survival = survive<T, kFar>(dt, load_vector(decay + i));
                survival.store(rests + i);
                store_vector(before + tile + i, survival.of(load_vector(before + i), write * all(b[n])));
            }
        }
    }
}

// Back over a segment, with G the gradient of S: gradients of dt and x replace them.
//     G_t += dy_t c_t        H = 2^(dt a) G_t (the gradient of S_{t-1})        d(dt A) = H S_{t-1}
template <class T>
void scan_backward(const Stretch<T>& s, Index at, const Block<T>& block, const Unrolled<T>& u, const BlockGradients<T>& d) {
    constexpr Index lanes = kLanes<T>;
    const Index keys = s.keys, tile = keys * kBlock<T>;
    const T* const decay = block.decay;
    T *const gradient = d.memory, *const d_a = d.a;
    for (Index t = s.size - 1; t >= 0; --t) {
        const T *const b = s.b + t * keys, *const c = s.c + t * keys, *const rests = u.rests + t * tile;
        const T *const before = u.states + t * tile, *const after = before + tile;
        T *const d_b = u.d_b + t * keys * lanes, *const d_c = u.d_c + t * keys * lanes;
        T *const steps = s.dt + t * s.stride + at, *const row = s.x + t * s.stride + at;
        Vector<T> dt[kSide], write[kSide], d_y[kSide], d_dt[kSide], d_write[kSide];
#pragma GCC unroll 4
        for (int w = 0; w < kSide; ++w) {
            dt[w] = load_vector(steps + w * lanes);
            write[w] = dt[w] * load_vector(row + w * lanes);
            d_y[w] = load_vector(u.d_y + t * s.stride + at + w * lanes);
            d_dt[w] = d_write[w] = Vector<T>{};
        }
        for (Index n = 0; n < keys; ++n) {
            const Vector<T> written = all(b[n]), read = all(c[n]);
            Vector<T> to_b = load_vector(d_b + n * lanes), to_c = load_vector(d_c + n * lanes);
#pragma GCC unroll 4
            for (int w = 0; w < kSide; ++w) {
                const Index i = n * kBlock<T> + w * lanes;
                const Vector<T> a = load_vector(decay + i), g = d_y[w] * read + load_vector(gradient + i);
                const Vector<T> faded = Survival<T>::load(rests + i).of(g);
                store_vector(gradient + i, faded);
                to_c += load_vector(after + i) * d_y[w];
                to_b += g * write[w];
                d_write[w] += g * written;
                const Vector<T> logarithm = faded * load_vector(before + i);
                d_dt[w] += logarithm * a;
                store_vector(d_a + i, logarithm * dt[w] + load_vector(d_a + i));
            }
            store_vector(d_b + n * lanes, to_b);
            store_vector(d_c + n * lanes, to_c);
        }
#pragma GCC unroll 4
        for (int w = 0; w < kSide; ++w) {
            const Vector<T> x = load_vector(row + w * lanes), skip = load_vector(block.skip + w * lanes);
            store_vector(steps + w * lanes, d_write[w] * x + d_dt[w] * all<T>(T(0.69314718055994531)));
            store_vector(row + w * lanes, d_write[w] * dt[w] + skip * d_y[w]);
            store_vector(d.skip + w * lanes, d_y[w] * x + load_vector(d.skip + w * lanes));
        }
    }
}

}  // namespace lavagna
