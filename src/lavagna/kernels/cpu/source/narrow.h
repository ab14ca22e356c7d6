// One step of the recurrence S_t = S_{t-1} D_t + v_t k_t^T, o_t = S_t q_t where a head's memory is narrow: a vector holds
// neighboring heads, which don't know of each other, so that nothing is summed over lanes but what heads share.
//
// Rows of n numbers a head lie block by block, a vector of heads each: [block][number][lane].
#pragma once

#include "pack.h"
#include "survival.h"

namespace lavagna {

enum class Read { kNone, kAfter, kBefore };

// Of some neighboring heads: how many vectors they fill, and how many numbers each has. One decay serves all keys, or each one.
struct Extent {
    Index blocks, keys, values, decays;
};

// Rows of one step. Where all heads share their keys, q and k are rows of one head. `beta`, a number a head, is how much of what
// a faded memory has under the key is erased before the write.
template <class N>
struct Step {
    using T = typename N::Scalar;
    const T *q, *k, *v, *beta;
    // Logarithms of decays where they are split as they are used, else their parts.
    const T *x, *rest, *keep;
};

template <class N>
inline N number_of(const typename N::Scalar* row, Index i) {
    return N::load(row + i * kLanes<typename N::Scalar> * N::kParts);
}

// What is left of a number of block j.
template <class N>
inline N faded(const Extent& e, const Step<N>& s, Index j, Index n, N was, N write) {
    using T = typename N::Scalar;
    const Index d = (j * e.decays + (e.decays == 1 ? 0 : n)) * kLanes<T> * N::kParts;
    return kept_besides(was, (Mask<T>)load_vector(s.keep + d), add(N::load(s.rest + d), was, write));
}

template <class N, bool kShared>
inline N key_of(const Extent& e, const typename N::Scalar* row, Index j, Index n) {
    return kShared ? N::splat(row, n) : number_of<N>(row, j * e.keys + n);
}

// What one value's row of block j has under the key once it has faded.
template <class N, bool kShared>
inline N found_in(const Extent& e, const Step<N>& s, Index j, const typename N::Scalar* memory) {
    N found = N::zero();
    for (Index n = 0; n < e.keys; ++n)
        found = add(key_of<N, kShared>(e, s.k, j, n), faded(e, s, j, n, number_of<N>(memory, n), N::zero()), found);
    return found;
}

// From one memory to the next, which may be the same. kUnit: one key and one value. kLog: logarithms come, of real decays.
template <class N, Read kRead, bool kLog, bool kShared, bool kUnit, bool kErase>
void fold_heads(const Extent& e, const Step<N>& s, const typename N::Scalar* from, typename N::Scalar* to,
                typename N::Scalar* output) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    const Index keys = kUnit ? 1 : e.keys, values = kUnit ? 1 : e.values;
    N q = kShared && kUnit ? N::splat(s.q, 0) : N::zero(), k = kShared && kUnit ? N::splat(s.k, 0) : N::zero();
    for (Index j = 0; j < e.blocks; ++j)
        for (Index r = j * values; r < (j + 1) * values; ++r) {
            N v = number_of<N>(s.v, r), read = N::zero();
            if constexpr (kErase) v = take(number_of<N>(s.beta, j), found_in<N, kShared>(e, s, j, from + r * keys * one), v);
            for (Index n = 0; n < keys; ++n) {
                if (!kUnit || !kShared) {
                    if (kRead != Read::kNone) q = key_of<N, kShared>(e, s.q, j, n);
                    k = key_of<N, kShared>(e, s.k, j, n);
                }
                const Index at = (r * keys + n) * one;
                const N was = N::load(from + at), write = k * v;
                N now;
                if constexpr (kLog) {
                    now = {survive<T>(load_vector(s.x + j * one)).of(was.re, write.re)};
                } else {
                    now = faded(kUnit ? Extent{e.blocks, 1, 1, 1} : e, s, j, n, was, write);
                }
                now.store(to + at);
                if (kRead == Read::kAfter) read = add(q, now, read);
                if (kRead == Read::kBefore) read = add(q, was, read);
            }
            if (kRead != Read::kNone) read.store(output + r * one);
        }
}

// Rows of what the way back of one step takes and gives. Gradients of shared keys are sums over the blocks, a vector a number,
// to be added to.
template <class N>
struct Back {
    using T = typename N::Scalar;
    const T *d_output, *before, *after;
    T *memory, *d_v, *d_x, *d_q, *d_k, *d_beta;
};

template <class N>
inline void gather(typename N::Scalar* row, Index i, N x, bool fresh) {
    typename N::Scalar* at = row + i * kLanes<typename N::Scalar> * N::kParts;
    (fresh ? x : x + N::load(at)).store(at);
}

// G is the gradient of S_t when a step begins, and that of S_{t-1} when it ends.
//     G += dO q        dv = G k        dk = G v        dq = dO S_t        G = D G        d(log D) = G S_{t-1}
// Where w = v - beta f is written in place of v, with f = D S_{t-1} k found, and df = -beta dv:
//     dk = G w + df D S_{t-1}        d(beta) = -dv f        G += df k before it fades
template <class N, bool kBefore, bool kKeys, bool kShared, bool kUnit, bool kErase>
void unfold_heads(const Extent& e, const Step<N>& s, const Back<N>& d) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    const Index keys = kUnit ? 1 : e.keys, values = kUnit ? 1 : e.values, decays = kUnit ? 1 : e.decays;
    for (Index j = 0; j < e.blocks; ++j) {
        N faint = N::zero(), d_beta = N::zero();
        for (Index r = j * values; r < (j + 1) * values; ++r) {
            const bool first = r == j * values;
            const typename N::Scalar *const before = d.before + r * keys * one, *const after = d.after + r * keys * one;
            typename N::Scalar* const memory = d.memory + r * keys * one;
            const N d_output = number_of<N>(d.d_output, r);
            N v = number_of<N>(s.v, r).conj(), d_v = N::zero(), d_found = N::zero();
            if constexpr (kErase) {
                for (Index n = 0; n < keys; ++n) {
                    N g = number_of<N>(memory, n);
                    if (!kBefore) g = add(d_output, key_of<N, kShared>(e, s.q, j, n).conj(), g);
                    d_v = add(g, key_of<N, kShared>(e, s.k, j, n).conj(), d_v);
                }
                const N beta = number_of<N>(s.beta, j).conj(), found = found_in<N, kShared>(e, s, j, before).conj();
                v = take(beta, found, v), d_beta = take(d_v, found, d_beta), d_found = take(beta, d_v, N::zero());
            }
            for (Index n = 0; n < keys; ++n) {
                const N q = key_of<N, kShared>(e, s.q, j, n).conj(), k = key_of<N, kShared>(e, s.k, j, n).conj();
                const Index decay = j * decays + (decays == 1 ? 0 : n);
                const N was = number_of<N>(before, n), rest = number_of<N>(s.rest, decay).conj();
                N g = number_of<N>(memory, n);
                if (!kBefore) g = add(d_output, q, g);
                N d_key = g * v;
                if constexpr (kErase) {
                    d_key = add(d_found, faded(e, s, j, n, was, N::zero()).conj(), d_key);
                    g = add(d_found, k, g);
                } else {
                    d_v = add(g, k, d_v);
                }
                N gone = kept_besides(g, (Mask<T>)load_vector(s.keep + decay * one), rest * g);
                const N logarithm = was.conj() * gone;
                if (decays == 1) faint = faint + logarithm;
                else gather(d.d_x, decay, logarithm, first);
                if (kKeys) {
                    const Index to = kShared ? n : j * keys + n;
                    gather(d.d_k, to, d_key, first && !kShared);
                    gather(d.d_q, to, d_output * (kBefore ? was : number_of<N>(after, n)).conj(), first && !kShared);
                }
                if (kBefore) gone = add(d_output, q, gone);
                gone.store(memory + n * one);
            }
            d_v.store(d.d_v + r * one);
        }
        if (decays == 1) faint.store(d.d_x + j * one);
        if (kErase) d_beta.store(d.d_beta + j * one);
    }
}

}  // namespace lavagna
