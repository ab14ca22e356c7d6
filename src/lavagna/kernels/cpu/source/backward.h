// The gradient of the fold, for some values of one head, a block of steps at a time.
//
// A step writes into the memory, S_j = S_{j-1} D_j + sum of x_j y_j^T, and looks at it along b_j, in front of itself or after;
// what it sees there has the gradient a_j. It writes v k^T, of which only what is new where it erases along the key; or
// erases along another vector, -w r^T, beside. It looks along the query, and, to erase, along e: w = S_{j-1} e was kept by the
// forward pass, and its gradient is -dx_j of what is erased. With G_j the gradient of S_j,
//     dx_j = G_j y_j   dy_j = G_j^T x_j   db_j = S^T a_j   dD_j = sum over values of G_j S_{j-1}
// where every factor is conjugated, which is what a gradient is by torch's convention.
//
// Inside of a block, S is what was in front of it and what was written since, G what was behind it and what is seen until then,
// all faded on the way. So the memory itself is passed once for all steps: for products with S in front and G behind, and to
// bring both over the block. What steps of a block have to do with each other costs no more than a few values more.
#pragma once

#include <algorithm>
#include <type_traits>

#include "forward.h"

namespace lavagna {

// Steps of a block: sums for all of them fit into the registers.
constexpr int kSteps = 8;

// Vectors of keys side by side.
template <class N>
constexpr int kKeys = LAVAGNA_BYTES == 64 && N::kParts == 1 ? 2 : 1;

// Calls back with (how many vectors of keys, the first number of them).
template <class N, class Each>
inline void each_keys(Index key_row, Each each) {
    constexpr Index one = kLanes<typename N::Scalar> * N::kParts;
    Index j = 0;
    for (; j + kKeys<N> * one <= key_row; j += kKeys<N> * one) each(std::integral_constant<int, kKeys<N>>{}, j);
    if constexpr (kKeys<N> > 1)
        for (; j < key_row; j += one) each(std::integral_constant<int, 1>{}, j);
}

// Rows of keys, one behind the other: a matrix of values and keys.
template <class T>
struct Matrix {
    T* at;
    Index values, key_row;
};

// to = keep M + rest M + sum over steps of weight_j key_j^T, of rows of values and of keys. Without rests all is kept.
template <class N>
void outer(Matrix<const typename N::Scalar> m, typename N::Scalar* to, const typename N::Scalar* rests,
           const typename N::Scalar* keeps, const typename N::Scalar* weights, Index value_row,
           const typename N::Scalar* keys) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    each_keys<N>(m.key_row, [&](auto side, Index j) {
        constexpr int kSide = decltype(side)::value;
        N key[kSteps][kSide], rest[kSide];
        Mask<T> keep[kSide];
#pragma GCC unroll 2
        for (int w = 0; w < kSide; ++w) {
            rest[w] = rests ? N::load(rests + j + w * one) : N::zero();
            keep[w] = rests ? (Mask<T>)load_vector(keeps + j + w * one) : Mask<T>{};
#pragma GCC unroll 8
            for (int i = 0; i < kSteps; ++i) key[i][w] = N::load(keys + i * m.key_row + j + w * one);
        }
        for (Index v = 0; v < m.values; ++v) {
            const Index at = v * m.key_row + j;
            N sum[kSide];
#pragma GCC unroll 2
            for (int w = 0; w < kSide; ++w) {
                const N memory = N::load(m.at + at + w * one);
                sum[w] = rests ? add(rest[w], memory, choose(keep[w], memory, N::zero())) : memory;
            }
#pragma GCC unroll 8
            for (int i = 0; i < kSteps; ++i) {
                const N weight = N::splat(weights + i * value_row, v);
#pragma GCC unroll 2
                for (int w = 0; w < kSide; ++w) sum[w] = add(weight, key[i][w], sum[w]);
            }
#pragma GCC unroll 2
            for (int w = 0; w < kSide; ++w) sum[w].store(to + at + w * one);
        }
    });
}

// Rows of keys: the sums over values of M by the weights of each step.
template <class N>
void over_values(Matrix<const typename N::Scalar> m, const typename N::Scalar* weights, Index value_row,
                 typename N::Scalar* to) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    each_keys<N>(m.key_row, [&](auto side, Index j) {
        constexpr int kSide = decltype(side)::value;
        N sum[kSteps][kSide];
#pragma GCC unroll 8
        for (int i = 0; i < kSteps; ++i)
#pragma GCC unroll 2
            for (int w = 0; w < kSide; ++w) sum[i][w] = N::zero();
        for (Index v = 0; v < m.values; ++v) {
            N memory[kSide];
#pragma GCC unroll 2
            for (int w = 0; w < kSide; ++w) memory[w] = N::load(m.at + v * m.key_row + j + w * one);
#pragma GCC unroll 8
            for (int i = 0; i < kSteps; ++i) {
                const N weight = N::splat(weights + i * value_row, v);
#pragma GCC unroll 2
                for (int w = 0; w < kSide; ++w) sum[i][w] = add(weight, memory[w], sum[i][w]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < kSteps; ++i)
#pragma GCC unroll 2
            for (int w = 0; w < kSide; ++w) sum[i][w].store(to + i * m.key_row + j + w * one);
    });
}

// A row of values: the sums over keys of M by a row of keys.
template <class N>
void over_keys(Matrix<const typename N::Scalar> m, const typename N::Scalar* keys, typename N::Scalar* to) {
    using T = typename N::Scalar;
    constexpr Index one = kLanes<T> * N::kParts;
    const auto some = [&](auto many, Index v) {
        constexpr int kMany = decltype(many)::value;
        N sum[kMany];
        T total[kMany * N::kParts];
#pragma GCC unroll 8
        for (int r = 0; r < kMany; ++r) sum[r] = N::zero();
        for (Index j = 0; j < m.key_row; j += one) {
            const N key = N::load(keys + j);
#pragma GCC unroll 8
            for (int r = 0; r < kMany; ++r) sum[r] = add(N::load(m.at + (v + r) * m.key_row + j), key, sum[r]);
        }
        sums<kMany>(sum, total);
        put<N, kMany>(to, v, total);
    };
    Index v = 0;
    for (; v + 8 <= m.values; v += 8) some(std::integral_constant<int, 8>{}, v);
    for (; v < m.values; ++v) some(std::integral_constant<int, 1>{}, v);
}

// A block of steps of a segment, and the gradients of what is in it. Behind the last step of a segment come some in which
// nothing happens.
template <class N, Rank kRank>
class Block {
  public:
    using T = typename N::Scalar;
    static constexpr Index one = kLanes<T> * N::kParts;
    // What a step writes, and looks for, one beside the other.
    static constexpr int kWrites = kRank == Rank::kOwn ? 2 : 1, kLooks = kRank == Rank::kNone ? 1 : 2;

    Block(const Segment<N>& s, Index values, bool before)
        : s_(s),
          values_(values),
          key_row_(s.key_row),
          value_row_(s.value_row),
          before_(before),
          scratch_(kSteps * ((2 + 3 * kWrites + 3 * kLooks + kLooks * kSteps) * key_row_ +
                             (2 * kWrites + kLooks) * value_row_ + 2 * kWrites * kLooks * kTable) +
                   3 * key_row_) {
        T* at = scratch_.get();
        const auto next = [&](Index size) { return std::exchange(at, at + size); };
        decay_ = next(kSteps * key_row_), d_decay = next(kSteps * key_row_);
        total_rest_ = next(key_row_), total_keep_ = next(key_row_), both_ = next(key_row_);
        for (int m = 0; m < kWrites; ++m) {
            y_[m] = next(kSteps * key_row_), z_[m] = next(kSteps * key_row_), d_y[m] = next(kSteps * key_row_);
            x_[m] = next(kSteps * value_row_), d_x[m] = next(kSteps * value_row_);
            for (int n = 0; n < kLooks; ++n) near_[m][n] = next(kSteps * kTable), dots_[m][n] = next(kSteps * kTable);
        }
        for (int n = 0; n < kLooks; ++n) {
            b_[n] = next(kSteps * key_row_), c_[n] = next(kSteps * key_row_), d_b[n] = next(kSteps * key_row_);
            a_[n] = next(kSteps * value_row_), reach_[n] = next(kSteps * kSteps * key_row_);
        }
        std::memset(scratch_.get(), 0, (at - scratch_.get()) * sizeof(T));
        if (s.decay_) return;
        for (int m = 0; m < kWrites; ++m) z_[m] = y_[m];
        for (Index i = 0; i < kSteps * key_row_; i += one) N::one().store(decay_ + i);
    }

    // Steps `first` to `end` of the segment, and what they write; `found` where anything was.
    void bring(Index first, Index end, Lines<const T> found) {
        first_ = first, count = end - first;
        take(y_[0], s_.k, key_row_);
        take(x_[0], kRank == Rank::kShared ? found : s_.v, value_row_);
        if constexpr (kWrites == 2) {
            take(y_[1], s_.right, key_row_);
            take(x_[1], found, value_row_);
            for (Index i = 0; i < count * value_row_; i += one) (N::zero() - N::load(x_[1] + i)).store(x_[1] + i);
        }
        if (s_.decay_)
            for (Index j = 0; j < key_row_; j += one) fade(j);
    }

    // From the state in front of the block, conjugated as it comes here, to that behind it.
    void advance(const T* state, T* to) const {
        for (int m = 0; m < kWrites; ++m)
            outer<N>({m ? to : state, values_, key_row_}, to, m ? nullptr : rests(), total_keep_, x_[m], value_row_, z_[m]);
    }

    // Back from the gradient behind the block to that in front of it.
    void back(Lines<const T> d_output, const T* state, T* gradient) {
        const Matrix<const T> g{gradient, values_, key_row_}, front{state, values_, key_row_};
        take(b_[0], s_.q, key_row_);
        take(a_[0], d_output, value_row_, false);
        if constexpr (kLooks == 2) take(b_[1], {s_.erase, key_row_}, key_row_);
        for (int n = 0; n < kLooks; ++n) reach(n);
        for (int m = 0; m < kWrites; ++m) {
            over_values<N>(g, x_[m], value_row_, d_y[m]);
            for (Index i = 0; i < kSteps; ++i) over_keys<N>(g, z_[m] + i * key_row_, d_x[m] + i * value_row_);
            for (int n = 0; n < kLooks; ++n)
                products(y_[m], key_row_, near_[m][n],
                         [&](Index t, Index i, Index j) { return reached(n, t, i, j); });
        }
        solve();
        for (int n = 0; n < kLooks; ++n) {
            over_values<N>(front, a_[n], value_row_, d_b[n]);
            for (int m = 0; m < kWrites; ++m)
                products(x_[m], value_row_, dots_[m][n],
                         [&](Index, Index i, Index v) { return a_[n] + i * value_row_ + v; });
        }
        if (s_.decay_) overlap(g, front);
        for (int n = 0; n < kLooks; ++n)
            outer<N>(g, gradient, n ? nullptr : rests(), total_keep_, a_[n], value_row_, c_[n]);
        for (Index j = 0; j < key_row_; j += one) gather(j);
    }

    Index count = 0;
    // Of what is written, and of what is looked for: rows of keys, and of values. Of decays.
    T *d_y[2], *d_b[2], *d_x[2], *d_decay;

  private:
    static constexpr Index kTable = row_size<N>(kSteps);

    const T* rests() const { return s_.decay_ ? total_rest_ : nullptr; }

    // What of one vector of keys survives each step, from there to the end of the block, and all of it.
    void fade(Index j) {
        N behind = N::one(), rest = N::zero();
        Mask<T> keep = ~Mask<T>{};
        for (Index i = kSteps - 1; i >= 0; --i) {
            const Index row = i * key_row_ + j, from = (first_ + i) * key_row_ + j;
            const N decay = i < count ? s_.decay(first_ + i, j).conj() : N::one();
            decay.store(decay_ + row);
            for (int m = 0; m < kWrites; ++m) (N::load(y_[m] + row) * behind).store(z_[m] + row);
            if (i >= count) continue;
            const N less = N::load(s_.rest + from).conj();
            // Of what is kept, the rest of the product; else the product.
            rest = add(rest, less, rest + less), keep = keep & (Mask<T>)load_vector(s_.keep + from);
            behind = behind * decay;
        }
        choose(keep, rest, behind).store(total_rest_ + j);
        store_vector(total_keep_ + j, (Vector<T>)keep);
    }

    // Whether a step looks at the state behind it.
    bool late(int n) const { return n == 0 && !before_; }

    void take(T* to, Lines<const T> from, Index size, bool conjugate = true) const {
        for (Index i = 0; i < count; ++i)
            for (Index j = 0; j < size; j += one) {
                const N x = N::load(from[first_ + i] + j);
                (conjugate ? x.conj() : x).store(to + i * size + j);
            }
        std::memset(to + count * size, 0, (kSteps - count) * size * sizeof(T));
    }

    // Where lies what is looked for at step i, as it is behind step t; zero where step i comes first.
    T* reached(int n, Index t, Index i, Index j) const { return reach_[n] + j * kSteps * kSteps + (t * kSteps + i) * one; }

    // What is looked for, as it is behind each step before, and in front of all.
    void reach(int n) {
        for (Index j = 0; j < key_row_; j += one)
            for (Index i = 0; i < kSteps; ++i) {
                N x = N::load(b_[n] + i * key_row_ + j);
                for (Index t = late(n) ? i : i - 1; t >= 0; --t) {
                    x.store(reached(n, t, i, j));
                    x = x * N::load(decay_ + t * key_row_ + j);
                }
                x.store(c_[n] + i * key_row_ + j);
            }
    }

    // A table, steps by steps, of what rows of each step have in common with those of a place.
    template <class Place>
    static void products(const T* rows, Index size, T* table, Place place) {
        for (Index t = 0; t < kSteps; ++t) {
            N sum[kSteps];
            T total[kSteps * N::kParts];
#pragma GCC unroll 8
            for (int i = 0; i < kSteps; ++i) sum[i] = N::zero();
            for (Index j = 0; j < size; j += one) {
                const N x = N::load(rows + t * size + j);
#pragma GCC unroll 8
                for (int i = 0; i < kSteps; ++i) sum[i] = add(x, N::load(place(t, i, j)), sum[i]);
            }
            sums<kSteps>(sum, total);
            put<N, kSteps>(table + t * kTable, 0, total);
        }
    }

    // The gradients of what is written, the last first: only then has what a step found one.
    void solve() {
        for (Index v = 0; v < value_row_; v += one) {
            N a[kLooks][kSteps];
#pragma GCC unroll 8
            for (int i = 0; i < kSteps; ++i) a[0][i] = N::load(a_[0] + i * value_row_ + v);
#pragma GCC unroll 8
            for (int t = kSteps - 1; t >= 0; --t) {
                N d = N::zero();
#pragma GCC unroll 2
                for (int m = 0; m < kWrites; ++m) {
                    T* const at = d_x[m] + t * value_row_ + v;
                    d = N::load(at);
#pragma GCC unroll 2
                    for (int n = 0; n < kLooks; ++n)
#pragma GCC unroll 8
                        for (int i = t + n; i < kSteps; ++i) d = add(N::splat(near_[m][n] + t * kTable, i), a[n][i], d);
                    d.store(at);
                }
                if constexpr (kLooks == 2) {
                    a[1][t] = N::zero() - d;
                    a[1][t].store(a_[1] + t * value_row_ + v);
                }
            }
        }
    }

    // Sums over values of the gradient behind the block times the state in front.
    void overlap(Matrix<const T> g, Matrix<const T> front) const {
        for (Index j = 0; j < key_row_; j += one) {
            N sum[8];
#pragma GCC unroll 8
            for (int r = 0; r < 8; ++r) sum[r] = N::zero();
            Index v = 0;
            const auto meets = [&](Index r, N so_far) {
                return add(N::load(g.at + r * key_row_ + j), N::load(front.at + r * key_row_ + j), so_far);
            };
            for (; v + 8 <= values_; v += 8)
#pragma GCC unroll 8
                for (int r = 0; r < 8; ++r) sum[r] = meets(v + r, sum[r]);
            for (; v < values_; ++v) sum[0] = meets(v, sum[0]);
#pragma GCC unroll 8
            for (int r = 1; r < 8; ++r) sum[0] = sum[0] + sum[r];
            sum[0].store(both_ + j);
        }
    }

    // From products with what is in front of and behind the block to the gradients of one vector of keys and decays.
    void gather(Index j) {
        N decay[kSteps], behind[kSteps], x = N::one(), both = N::load(both_ + j);
#pragma GCC unroll 8
        for (int t = kSteps - 1; t >= 0; --t) behind[t] = x, decay[t] = N::load(decay_ + t * key_row_ + j), x = x * decay[t];
#pragma GCC unroll 8
        for (int t = 0; t < kSteps; ++t) {
            (both * behind[t]).store(d_decay + t * key_row_ + j);
            both = both * decay[t];
            for (int m = 0; m < kWrites; ++m) {
                T* const at = d_y[m] + t * key_row_ + j;
                const N raw = N::load(at);
                both = add(N::load(y_[m] + t * key_row_ + j), raw, both);
                (raw * behind[t]).store(at);
            }
        }
        for (int n = 0; n < kLooks; ++n) {
            // The sums over values of the states so far and the gradients of what is seen of them.
            N seen[kSteps];
#pragma GCC unroll 8
            for (int i = 0; i < kSteps; ++i) seen[i] = N::load(d_b[n] + i * key_row_ + j);
#pragma GCC unroll 8
            for (int t = 0; t < kSteps; ++t) {
                const Index row = t * key_row_ + j;
                if (!late(n)) seen[t].store(d_b[n] + row);
                N written[kWrites], d_written[kWrites], d_fading = N::load(d_decay + row);
#pragma GCC unroll 2
                for (int m = 0; m < kWrites; ++m) written[m] = N::load(y_[m] + row), d_written[m] = N::load(d_y[m] + row);
#pragma GCC unroll 8
                for (int i = t; i < kSteps; ++i) {
                    const N along = N::load(reached(n, t, i, j));
                    d_fading = add(along, seen[i], d_fading);
                    seen[i] = seen[i] * decay[t];
#pragma GCC unroll 2
                    for (int m = 0; m < kWrites; ++m) {
                        const N dot = N::splat(dots_[m][n] + t * kTable, i);
                        seen[i] = add(written[m], dot, seen[i]);
                        d_written[m] = add(along, dot, d_written[m]);
                    }
                }
                if (late(n)) seen[t].store(d_b[n] + row);
#pragma GCC unroll 2
                for (int m = 0; m < kWrites; ++m) d_written[m].store(d_y[m] + row);
                d_fading.store(d_decay + row);
            }
        }
    }

    const Segment<N>& s_;
    const Index values_, key_row_, value_row_;
    const bool before_;
    const Scratch<T> scratch_;
    Index first_ = 0;
    // What is written and, with what faded behind it, what comes out of the block; what is looked for, and what of it lies in
    // front of the block; both over values.
    T *y_[2], *z_[2], *b_[2], *c_[2], *x_[2], *a_[2], *reach_[2];
    // Decays, those of the whole block, and tables of steps by steps.
    T *decay_, *total_rest_, *total_keep_, *both_, *near_[2][2], *dots_[2][2];
};

}  // namespace lavagna
