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

// Rows of one step. Where all heads share their keys, q and k are rows of one head.
template <class N>
struct Step {
    using T = typename N::Scalar;
    const T *q, *k, *v;
    // Logarithms of decays where they are split as they are used, else their parts.
    const T *x, *rest, *keep;
};

template <class N>
inline N number_of(const typename N::Scalar* row, Index i) {
    return N::load(row + i * kLanes<typename N::Scalar> * N::kParts);
}

// From one memory to the next, which may be the same. kUnit: one key and one value. kLog: logarithms come, of real decays.
template <class N, Read kRead, bool kLog, bool kShared, bool kUnit>
void fold_heads(const Extent& e, const Step<N>& s, const typename N::Scalar* from, typename N::Scalar* to,
                typename N::Scalar* output) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    const Index keys = kUnit ? 1 : e.keys, values = kUnit ? 1 : e.values, decays = kUnit ? 1 : e.decays;
    N q = kShared && kUnit ? N::splat(s.q, 0) : N::zero(), k = kShared && kUnit ? N::splat(s.k, 0) : N::zero();
    for (Index j = 0; j < e.blocks; ++j)
        for (Index r = j * values; r < (j + 1) * values; ++r) {
            const N v = number_of<N>(s.v, r);
            N read = N::zero();
            for (Index n = 0; n < keys; ++n) {
                if (!kUnit || !kShared) {
                    if (kRead != Read::kNone) q = kShared ? N::splat(s.q, n) : number_of<N>(s.q, j * keys + n);
                    k = kShared ? N::splat(s.k, n) : number_of<N>(s.k, j * keys + n);
                }
                const Index at = (r * keys + n) * one;
                const N was = N::load(from + at), write = k * v;
                N now;
                if constexpr (kLog) {
                    now = {survive<T>(load_vector(s.x + j * one)).of(was.re, write.re)};
                } else {
                    const Index d = (j * decays + (decays == 1 ? 0 : n)) * one;
                    now = kept_besides(was, (Mask<T>)load_vector(s.keep + d), add(N::load(s.rest + d), was, write));
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
    T *memory, *d_v, *d_x, *d_q, *d_k;
};

template <class N>
inline void gather(typename N::Scalar* row, Index i, N x, bool fresh) {
    typename N::Scalar* at = row + i * kLanes<typename N::Scalar> * N::kParts;
    (fresh ? x : x + N::load(at)).store(at);
}

// G is the gradient of S_t when a step begins, and that of S_{t-1} when it ends.
//     G += dO q        dv = G k        dk = G v        dq = dO S_t        G = D G        d(log D) = G S_{t-1}
template <class N, bool kBefore, bool kKeys, bool kShared, bool kUnit>
void unfold_heads(const Extent& e, const Step<N>& s, const Back<N>& d) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    const Index keys = kUnit ? 1 : e.keys, values = kUnit ? 1 : e.values, decays = kUnit ? 1 : e.decays;
    for (Index j = 0; j < e.blocks; ++j) {
        N faint = N::zero();
        for (Index r = j * values; r < (j + 1) * values; ++r) {
            const bool first = r == j * values;
            const N d_output = number_of<N>(d.d_output, r), v = number_of<N>(s.v, r).conj();
            N d_v = N::zero();
            for (Index n = 0; n < keys; ++n) {
                const N q = (kShared ? N::splat(s.q, n) : number_of<N>(s.q, j * keys + n)).conj();
                const N k = (kShared ? N::splat(s.k, n) : number_of<N>(s.k, j * keys + n)).conj();
                const Index at = (r * keys + n) * one, decay = j * decays + (decays == 1 ? 0 : n);
                const N was = N::load(d.before + at).conj(), rest = number_of<N>(s.rest, decay).conj();
                N g = N::load(d.memory + at);
                if (!kBefore) g = add(d_output, q, g);
                d_v = add(g, k, d_v);
                N faded = kept_besides(g, (Mask<T>)load_vector(s.keep + decay * one), rest * g);
                const N logarithm = was * faded;
                if (decays == 1) faint = faint + logarithm;
                else gather(d.d_x, decay, logarithm, first);
                if (kKeys) {
                    const Index to = kShared ? n : j * keys + n;
                    gather(d.d_k, to, g * v, first && !kShared);
                    gather(d.d_q, to, d_output * (kBefore ? was : N::load(d.after + at).conj()), first && !kShared);
                }
                if (kBefore) faded = add(d_output, q, faded);
                faded.store(d.memory + at);
            }
            d_v.store(d.d_v + r * one);
        }
        if (decays == 1) faint.store(d.d_x + j * one);
    }
}

}  // namespace lavagna
