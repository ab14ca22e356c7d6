// The left fold over the steps of one head, in two layouts of the memory.
//
// Columns: a vector holds neighboring values of one key, so that reads are sums of vectors and nothing is summed over lanes;
// some columns of all keys stay in the nearest cache while the steps go by. Rows: a vector holds neighboring keys of one value,
// as the state is given, for few values or few steps.
#pragma once

#include "segment.h"

namespace lavagna {

// What one step needs of a segment, as pointers of its own: read through the segment they would be loaded anew for each vector.
template <class N>
struct Rows {
    using T = typename N::Scalar;
    const T *const q, *const k, *const rest, *const keep, *const erase, *const right;

    template <class S>
    Rows(const S& s, Index t)
        : q(s.q[t]),
          k(s.k[t]),
          rest(s.rest + t * s.key_row),
          keep(s.keep + t * s.key_row),
          erase(s.erase + t * s.key_row),
          right(s.right[t]) {}
};

// Where the fold writes what it reads, and what each step wrote or found.
template <class T>
struct Reads {
    Lines<T> output, found;
};

// One step of one vector of the memory: keep S + (rest S + write).
template <bool kDecay, class N>
inline N faded(N memory, N rest, Mask<typename N::Scalar> keep, N write) {
    if constexpr (!kDecay) return memory + write;
    return kept_besides(memory, keep, add(rest, memory, write));
}

// What goes into a key: the key times what is new, and, with a vector of its own, less what was found along `right`.
template <Rank kRank, class N>
inline N written(N k, N fresh, N right, N found) {
    return kRank == Rank::kOwn ? take(right, found, k * fresh) : k * fresh;
}

// kWide vectors of columns, from `column` scalars into the rows of values; `tile` holds them key by key.
template <class N, bool kDecay, Rank kRank, int kWide>
void fold_columns(const Segment<N>& s, bool before, Index column, typename N::Scalar* tile,
                  const Reads<typename N::Scalar>& to) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    constexpr bool ranked = kRank != Rank::kNone;
    const Index keys = s.call_.keys;
    const Index later = before ? 1 : 0;
    N next[kWide], read[kWide];
#pragma GCC unroll 8
    for (int w = 0; w < kWide; ++w) next[w] = read[w] = N::zero();
    if (ranked || before) {
        for (Index i = 0; i < keys; ++i)
#pragma GCC unroll 8
            for (int w = 0; w < kWide; ++w) {
                const N memory = N::load(tile + (i * kWide + w) * one);
                if (ranked) next[w] = add(N::splat(s.erase, i), memory, next[w]);
                if (before) read[w] = add(N::splat(s.q.at, i), memory, read[w]);
            }
        if (before)
#pragma GCC unroll 8
            for (int w = 0; w < kWide; ++w) read[w].store(to.output.at + column + w * one);
    }
    for (Index t = 0; t < s.size; ++t) {
        N was[kWide], fresh[kWide];
#pragma GCC unroll 8
        for (int w = 0; w < kWide; ++w) {
            was[w] = next[w];
            fresh[w] = N::load(s.v[t] + column + w * one);
            if (kRank == Rank::kShared) fresh[w] = fresh[w] - was[w];
            if (ranked) (kRank == Rank::kShared ? fresh[w] : was[w]).store(to.found[t] + column + w * one);
            next[w] = read[w] = N::zero();
        }
        const Rows<N> rows(s, t);
        const T *const looks = s.q[t + later], *const erases = rows.erase + s.key_row;
        T* at = tile;
        for (Index i = 0; i < keys; ++i) {
            const N k = N::splat(rows.k, i), looked = N::splat(looks, i);
            const N rest = kDecay ? N::splat(rows.rest, i) : N::zero();
            const Mask<T> keep = kDecay ? splat_mask<N>(rows.keep, i) : Mask<T>{};
            const N right = kRank == Rank::kOwn ? N::splat(rows.right, i) : N::zero();
            const N erased = ranked ? N::splat(erases, i) : N::zero();
#pragma GCC unroll 8
            for (int w = 0; w < kWide; ++w, at += one) {
                const N memory = faded<kDecay>(N::load(at), rest, keep, written<kRank>(k, fresh[w], right, was[w]));
                memory.store(at);
                read[w] = add(looked, memory, read[w]);
                if (ranked) next[w] = add(erased, memory, next[w]);
            }
        }
#pragma GCC unroll 8
        for (int w = 0; w < kWide; ++w) read[w].store(to.output[t + later] + column + w * one);
    }
}

// The sums over the lanes of kMany vectors, 1 or a multiple of 4, and of their imaginary parts, kMany further on.
template <int kMany, class T>
inline void sums(const Real<T>* x, T* out) {
    if constexpr (kMany == 1) {
        out[0] = sum<T>(x[0].re);
    } else {
        static_assert(kMany % 4 == 0);
#pragma GCC unroll 8
        for (int r = 0; r < kMany; r += 4) {
            const Vector<T> re[4] = {x[r].re, x[r + 1].re, x[r + 2].re, x[r + 3].re};
            sum_four(re, out + r);
        }
    }
}
template <int kMany, class T>
inline void sums(const Complex<T>* x, T* out) {
    if constexpr (kMany == 1) {
        out[0] = sum<T>(x[0].re);
        out[1] = sum<T>(x[0].im);
    } else {
#pragma GCC unroll 8
        for (int r = 0; r < kMany; r += 4) {
            const Vector<T> re[4] = {x[r].re, x[r + 1].re, x[r + 2].re, x[r + 3].re};
            const Vector<T> im[4] = {x[r].im, x[r + 1].im, x[r + 2].im, x[r + 3].im};
            sum_four(re, out + r);
            sum_four(im, out + kMany + r);
        }
    }
}

template <int kMany, class T>
inline Real<T> splat_sum(Real<T>, const T* x, int r) {
    return {all(x[r])};
}
template <int kMany, class T>
inline Complex<T> splat_sum(Complex<T>, const T* x, int r) {
    return {all(x[r]), all(x[kMany + r])};
}

// Put the sums where the numbers of rows `value` on lie in a row of values.
template <class N, int kMany>
inline void put(typename N::Scalar* row, Index value, const typename N::Scalar* x) {
    if constexpr (N::kParts == 1) return (void)std::memcpy(row + value, x, kMany * sizeof(typename N::Scalar));
#pragma GCC unroll 8
    for (int r = 0; r < kMany; ++r)
        for (int part = 0; part < N::kParts; ++part)
            row[place<N>(value + r) + part * kLanes<typename N::Scalar>] = x[part * kMany + r];
}

// kMany rows of values from `value` on; `tile` holds them one after the other. The same fold, summed over the lanes.
template <class N, bool kDecay, Rank kRank, int kMany>
void fold_rows(const Segment<N>& s, bool before, Index value, typename N::Scalar* tile,
               const Reads<typename N::Scalar>& to) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    constexpr bool ranked = kRank != Rank::kNone;
    for (Index t = 0; t < s.size; ++t) {
        const Rows<N> rows(s, t);
        const Index key_row = s.key_row;
        N was[kMany], fresh[kMany], read[kMany];
        T total[kMany * N::kParts];
#pragma GCC unroll 8
        for (int r = 0; r < kMany; ++r) was[r] = read[r] = N::zero();
        if (ranked || before)
            for (Index j = 0; j < key_row; j += one)
#pragma GCC unroll 8
                for (int r = 0; r < kMany; ++r) {
                    const N memory = N::load(tile + r * key_row + j);
                    if (ranked) was[r] = add(N::load(rows.erase + j), memory, was[r]);
                    if (before) read[r] = add(N::load(rows.q + j), memory, read[r]);
                }
        if (ranked) sums<kMany>(was, total);
#pragma GCC unroll 8
        for (int r = 0; r < kMany; ++r) {
            fresh[r] = N::splat(s.v[t], value + r);
            if (!ranked) continue;
            was[r] = splat_sum<kMany>(N::zero(), total, r);
            if (kRank == Rank::kShared) fresh[r] = fresh[r] - was[r];
            for (int part = 0; part < N::kParts; ++part) {
                const N& kept = kRank == Rank::kShared ? fresh[r] : was[r];
                total[part * kMany + r] = (part ? imaginary(kept) : kept.re)[0];
            }
        }
        if (ranked) put<N, kMany>(to.found[t], value, total);
        for (Index j = 0; j < key_row; j += one) {
            const N k = N::load(rows.k + j), looked = N::load(rows.q + j);
            const N rest = kDecay ? N::load(rows.rest + j) : N::zero();
            const Mask<T> keep = kDecay ? (Mask<T>)load_vector(rows.keep + j) : Mask<T>{};
            const N right = kRank == Rank::kOwn ? N::load(rows.right + j) : N::zero();
#pragma GCC unroll 8
            for (int r = 0; r < kMany; ++r) {
                T* at = tile + r * key_row + j;
                const N memory = faded<kDecay>(N::load(at), rest, keep, written<kRank>(k, fresh[r], right, was[r]));
                memory.store(at);
                if (!before) read[r] = add(looked, memory, read[r]);
            }
        }
        sums<kMany>(read, total);
        put<N, kMany>(to.output[t], value, total);
    }
}

}  // namespace lavagna
