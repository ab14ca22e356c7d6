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

// Steps whose rows are on their way while one is taken: other heads lie between them, so nothing else sees them coming.
constexpr Index kAhead = 2;

template <bool kWrite, class T>
inline void fetch(const T* row, Index n) {
    for (Index i = 0; i < n; i += 64 / Index(sizeof(T))) __builtin_prefetch(row + i, kWrite);
}

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

// A state that loses less than this a step is rounded once a step, after it was written to; one that loses more is forgotten
// before two roundings add up.
constexpr double kSlow = 1.0 / 64;

// How keys fade in some steps: each by its own decay, alike, or alike and with all of it kept besides the rest.
enum class Fading { kEach, kAlike, kKept, kAlone };
template <Fading kFading>
using Fades = std::integral_constant<Fading, kFading>;

// kWide vectors of columns, from `column` scalars into the rows of values; `tile` holds them key by key.
template <class N, bool kDecay, Rank kRank, int kWide>
void fold_columns(const Segment<N>& s, bool before, Index column, typename N::Scalar* tile,
                  const Reads<typename N::Scalar>& to) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    constexpr bool ranked = kRank != Rank::kNone;
    const Index keys = s.call_.keys;
    const Index later = before ? 1 : 0;
    N next[kWide];
#pragma GCC unroll 8
    for (int w = 0; w < kWide; ++w) next[w] = N::zero();
    if (ranked || before) {
        N read[kWide];
#pragma GCC unroll 8
        for (int w = 0; w < kWide; ++w) read[w] = N::zero();
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
    const bool single = kDecay && s.single();
    // So many steps from `t` on, each vector of the memory loaded and stored once for all of them.
    const auto steps = [&](auto count, Index t) {
        constexpr int kSteps = decltype(count)::value;
        static_assert(kSteps == 1 || !ranked, "what is erased must be known before the step");
        N was[kWide], fresh[kSteps][kWide], read[kSteps][kWide], rest[kSteps];
        Mask<T> keep[kSteps];
        int kept = 0, slow = 0;
        const T *ks[kSteps], *looks[kSteps], *rests[kSteps], *keeps[kSteps];
#pragma GCC unroll 2
        for (int p = 0; p < kSteps; ++p) {
            const Index ahead = t + p + kAhead;
            fetch<false>(s.q[ahead], s.key_row), fetch<false>(s.k[ahead], s.key_row);
            if (kRank == Rank::kOwn) fetch<false>(s.right[ahead], s.key_row);
            fetch<false>(s.v[ahead] + column, kWide * one), fetch<true>(to.output[ahead] + column, kWide * one);
            if (ranked) fetch<true>(to.found[ahead] + column, kWide * one);
            const Rows<N> rows(s, t + p);
            ks[p] = rows.k, looks[p] = s.q[t + p + later], rests[p] = rows.rest, keeps[p] = rows.keep;
            rest[p] = N::zero(), keep[p] = Mask<T>{};
            if (single) rest[p] = N::splat(rests[p], 0), keep[p] = splat_mask<N>(keeps[p], 0);
            kept += keep[p][0] ? 1 : 0, slow += keep[p][0] && rests[p][0] > -T(kSlow) ? 1 : 0;
#pragma GCC unroll 8
            for (int w = 0; w < kWide; ++w) {
                was[w] = next[w];
                fresh[p][w] = N::load(s.v[t + p] + column + w * one);
                if (kRank == Rank::kShared) fresh[p][w] = fresh[p][w] - was[w];
                if (ranked) (kRank == Rank::kShared ? fresh[p][w] : was[w]).store(to.found[t + p] + column + w * one);
                next[w] = read[p][w] = N::zero();
            }
        }
        const T *const rights = s.right[t], *const erases = s.erase + (t + 1) * s.key_row;
        const auto over_keys = [&](auto fading) {
            constexpr Fading kFading = decltype(fading)::value;
            T* at = tile;
            for (Index i = 0; i < keys; ++i) {
                N k[kSteps], looked[kSteps];
#pragma GCC unroll 2
                for (int p = 0; p < kSteps; ++p) {
                    k[p] = N::splat(ks[p], i), looked[p] = N::splat(looks[p], i);
                    if (kFading == Fading::kEach) rest[p] = N::splat(rests[p], i), keep[p] = splat_mask<N>(keeps[p], i);
                }
                const N right = kRank == Rank::kOwn ? N::splat(rights, i) : N::zero();
                const N erased = ranked ? N::splat(erases, i) : N::zero();
#pragma GCC unroll 8
                for (int w = 0; w < kWide; ++w, at += one) {
                    N memory = N::load(at);
#pragma GCC unroll 2
                    for (int p = 0; p < kSteps; ++p) {
                        const N write = written<kRank>(k[p], fresh[p][w], right, was[w]);
                        if (kFading == Fading::kKept) memory = add(rest[p], memory, memory + write);
                        else if (kFading == Fading::kAlone) memory = add(rest[p], memory, write);
                        else memory = faded<kDecay>(memory, rest[p], keep[p], write);
                        read[p][w] = add(looked[p], memory, read[p][w]);
                    }
                    memory.store(at);
                    if (ranked) next[w] = add(erased, memory, next[w]);
                }
            }
        };
        if (!kDecay) over_keys(Fades<Fading::kAlike>{});
        else if (!single) over_keys(Fades<Fading::kEach>{});
        else if (kept == kSteps && !slow) over_keys(Fades<Fading::kKept>{});
        else if (!kept) over_keys(Fades<Fading::kAlone>{});
        else over_keys(Fades<Fading::kAlike>{});
#pragma GCC unroll 2
        for (int p = 0; p < kSteps; ++p)
#pragma GCC unroll 8
            for (int w = 0; w < kWide; ++w) read[p][w].store(to.output[t + p + later] + column + w * one);
    };
    // Whether a step is rounded twice is its own affair: two that differ are taken one by one, or an earlier number would
    // depend on a later step in its last bit.
    const auto twice = [&](Index t) {
        const Rows<N> rows(s, t);
        return single && splat_mask<N>(rows.keep, 0)[0] && !(rows.rest[0] > -T(kSlow));
    };
    Index t = 0;
    if constexpr (!ranked)
        while (t + 2 <= s.size) {
            if (twice(t) == twice(t + 1)) steps(std::integral_constant<int, 2>{}, t), t += 2;
            else steps(std::integral_constant<int, 1>{}, t), t += 1;
        }
    for (; t < s.size; ++t) steps(std::integral_constant<int, 1>{}, t);
}

// The sums over the lanes of kMany vectors, and of their imaginary parts, kMany further on.
template <int kMany, class T>
inline void sums(const Real<T>* x, T* out) {
    Vector<T> re[kMany];
#pragma GCC unroll 8
    for (int r = 0; r < kMany; ++r) re[r] = x[r].re;
    sum_many<kMany>(re, out);
}
template <int kMany, class T>
inline void sums(const Complex<T>* x, T* out) {
    Vector<T> re[kMany], im[kMany];
#pragma GCC unroll 8
    for (int r = 0; r < kMany; ++r) re[r] = x[r].re, im[r] = x[r].im;
    sum_many<kMany>(re, out);
    sum_many<kMany>(im, out + kMany);
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
