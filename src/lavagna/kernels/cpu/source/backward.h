// The gradient of the fold, for some rows of values of one head over one segment: the states once more from the kept one, then
// back through them.
//
// With G_t the gradient of S_t, u_t what was written and w_t what was found (both kept by the forward pass):
//     G_t += do_t q_t^T      dq_t = S_t^T do_t      dk_t = G_t^T u_t      dv_t = G_t k_t
//     dw_t = -G_t right_t    dright_t = -G_t^T w_t  dD_t = sum over values of G_t S_{t-1}
//     de_t = S_{t-1}^T dw_t  G_{t-1} = G_t D_t + dw_t e_t^T
// where every factor is conjugated, which is what a gradient is by torch's convention.
#pragma once

#include "forward.h"

namespace lavagna {

// Gradients of one segment's rows of keys and of values, laid out as the segment is.
template <class N>
struct Gradients {
    using T = typename N::Scalar;
    T *q, *k, *rest, *erase, *right;
    Lines<T> v;
    Lines<const T> output, found;
};

// Number `value + r` of a row, in every lane.
template <class N>
inline N splat_at(const typename N::Scalar* row, Index value, Index r) {
    if constexpr (N::kParts == 1) return N::splat(row + value, r);
    return N::splat(row, value + r);
}

// From here on rows of keys side by side are a tile, [vector of keys][row][lane], so that one pointer finds them all.
//
// States before each step and after the last, from the one in front.
template <class N, bool kDecay, Rank kRank, int kMany>
void recall(const Segment<N>& s, Index value, Lines<const typename N::Scalar> found, typename N::Scalar* states) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    const Index key_row = s.key_row, state = kMany * key_row;
    for (Index t = 0; t < s.size; ++t, states += state) {
        const Rows<N> rows(s, t);
        const T* kept = kRank == Rank::kNone ? nullptr : found[t];
        const T* values = kRank == Rank::kShared ? kept : s.v[t];
        N fresh[kMany], was[kMany];
#pragma GCC unroll 8
        for (int r = 0; r < kMany; ++r) {
            fresh[r] = splat_at<N>(values, value, r);
            was[r] = kRank == Rank::kOwn ? splat_at<N>(kept, value, r) : N::zero();
        }
        for (Index j = 0; j < key_row; j += one) {
            const N k = N::load(rows.k + j);
            const N rest = kDecay ? N::load(rows.rest + j) : N::zero();
            const Mask<T> keep = kDecay ? (Mask<T>)load_vector(rows.keep + j) : Mask<T>{};
            const N right = kRank == Rank::kOwn ? N::load(rows.right + j) : N::zero();
#pragma GCC unroll 8
            for (int r = 0; r < kMany; ++r) {
                T* at = states + j * kMany + r * one;
                faded<kDecay>(N::load(at), rest, keep, written<kRank>(k, fresh[r], right, was[r])).store(at + state);
            }
        }
    }
}

// Back over one segment for kMany rows from `value` on; `gradient`, a tile, is that of the last state and then of the first.
// Adds to the gradients of keys, sets those of values.
template <class N, bool kDecay, Rank kRank, int kMany>
void unfold(const Segment<N>& s, bool before, Index value, const typename N::Scalar* states,
            typename N::Scalar* gradient, const Gradients<N>& d) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    constexpr bool ranked = kRank != Rank::kNone;
    // Without a rank-one part nothing waits for a sum over the keys.
    constexpr bool fused = kDecay && !ranked;
    const Index key_row = s.key_row, state = kMany * key_row;
    N d_output[kMany], fresh[kMany], was[kMany], d_fresh[kMany], d_was[kMany];
    T total[kMany * N::kParts];
    for (Index t = s.size - 1; t >= 0; --t) {
        const Index row = t * key_row;
        const Rows<N> rows(s, t);
        T *const d_k_row = d.k + row, *const d_right_row = d.right + row, *const d_rest_row = d.rest + row;
        T* const d_erase_row = d.erase + row;
        const T *const old = states + t * state, *const now = old + state;
        const T *const outputs = d.output[before ? t + 1 : t], *const found = ranked ? d.found[t] : nullptr;
        const T* const values = kRank == Rank::kShared ? found : s.v[t];
        // Behind the last step lie a query and a gradient of zero, and a row for the gradient of that query.
        const T* const q = s.q[before ? t + 1 : t];
        T* const d_q_row = d.q + (before ? t + 1 : t) * key_row;
#pragma GCC unroll 8
        for (int r = 0; r < kMany; ++r) {
            d_output[r] = splat_at<N>(outputs, value, r);
            fresh[r] = splat_at<N>(values, value, r).conj();
            was[r] = kRank == Rank::kOwn ? splat_at<N>(found, value, r).conj() : N::zero();
            d_fresh[r] = d_was[r] = N::zero();
        }
        for (Index j = 0; j < key_row; j += one) {
            const N k = N::load(rows.k + j).conj();
            const N right = kRank == Rank::kOwn ? N::load(rows.right + j).conj() : N::zero();
            const N looked = N::load(q + j).conj();
            const N rest = fused ? N::load(rows.rest + j).conj() : N::zero();
            const Mask<T> keep = fused ? (Mask<T>)load_vector(rows.keep + j) : Mask<T>{};
            N d_k = N::load(d_k_row + j), d_right = kRank == Rank::kOwn ? N::load(d_right_row + j) : N::zero();
            N d_q = N::load(d_q_row + j), d_rest = fused ? N::load(d_rest_row + j) : N::zero();
#pragma GCC unroll 8
            for (int r = 0; r < kMany; ++r) {
                T* at = gradient + j * kMany + r * one;
                const N g = add(looked, d_output[r], N::load(at));
                d_q = add(N::load(now + j * kMany + r * one).conj(), d_output[r], d_q);
                if (fused) {
                    d_rest = add(N::load(old + j * kMany + r * one).conj(), g, d_rest);
                    faded<kDecay>(g, rest, keep, N::zero()).store(at);
                } else {
                    g.store(at);
                }
                d_fresh[r] = add(k, g, d_fresh[r]);
                d_k = add(fresh[r], g, d_k);
                if (kRank == Rank::kOwn) {
                    d_was[r] = take(right, g, d_was[r]);
                    d_right = take(was[r], g, d_right);
                }
            }
            d_k.store(d_k_row + j);
            d_q.store(d_q_row + j);
            if (fused) d_rest.store(d_rest_row + j);
            if (kRank == Rank::kOwn) d_right.store(d_right_row + j);
        }
        sums<kMany>(d_fresh, total);
        put<N, kMany>(d.v[t], value, total);
        if (kRank == Rank::kOwn) sums<kMany>(d_was, total);
        if (ranked)
#pragma GCC unroll 8
            for (int r = 0; r < kMany; ++r) {
                d_was[r] = splat_sum<kMany>(N::zero(), total, r);
                if (kRank == Rank::kShared) d_was[r] = N::zero() - d_was[r];
            }
        if (!ranked) continue;
        for (Index j = 0; j < key_row; j += one) {
            const N rest = kDecay ? N::load(rows.rest + j).conj() : N::zero();
            const Mask<T> keep = kDecay ? (Mask<T>)load_vector(rows.keep + j) : Mask<T>{};
            const N erase = N::load(rows.erase + j).conj();
            N d_rest = kDecay ? N::load(d_rest_row + j) : N::zero();
            N d_erase = N::load(d_erase_row + j);
#pragma GCC unroll 8
            for (int r = 0; r < kMany; ++r) {
                T* at = gradient + j * kMany + r * one;
                const N memory = N::load(old + j * kMany + r * one).conj(), g = N::load(at);
                if (kDecay) d_rest = add(memory, g, d_rest);
                d_erase = add(memory, d_was[r], d_erase);
                faded<kDecay>(g, rest, keep, erase * d_was[r]).store(at);
            }
            if (kDecay) d_rest.store(d_rest_row + j);
            d_erase.store(d_erase_row + j);
        }
    }
    if (!before || !s.size) return;
    for (Index j = 0; j < key_row; j += one) {
        const N looked = N::load(s.q.at + j).conj();
        N d_q = N::load(d.q + j);
#pragma GCC unroll 8
        for (int r = 0; r < kMany; ++r) {
            T* at = gradient + j * kMany + r * one;
            const N given = splat_at<N>(d.output.at, value, r);
            d_q = add(N::load(states + j * kMany + r * one).conj(), given, d_q);
            add(looked, given, N::load(at)).store(at);
        }
        d_q.store(d.q + j);
    }
}

}  // namespace lavagna
