// Some steps of one head, ready for the loops over them: real steps only, decays and erasures multiplied out.
#pragma once

#include "pack.h"
#include "survival.h"

namespace lavagna {

// What of a transition there is. Shared: erased along the very key that is written.
enum class Rank { kNone, kShared, kOwn };

// Rows of numbers that loops read: where row 0 lies, and how far apart they are.
template <class T>
struct Lines {
    T* at;
    Index apart;
    T* operator[](Index i) const { return at + i * apart; }
};

template <class N>
class Segment {
  public:
    using T = typename N::Scalar;

    // Values `first` to `first + values` of one head of one row of the batch.
    Segment(const Call& call, bool decay, Rank rank, Index batch, Index head, Index first, Index values)
        : call_(call),
          decay_(decay),
          rank_(rank),
          batch_(batch),
          head_(head),
          first_(first),
          values_(values),
          key_row(row_size<N>(call.keys)),
          value_row(row_size<N>(values)),
          scratch_(key_row * (6 * call.segment + 2) + value_row * (call.segment + 1) +
                   N::kParts * kLanes<T> * (call.segment + 4) + 2 * row_size<N>(call.segment)),
          index_(call.segment + 1) {
        T* at = scratch_.get();
        auto next = [&](Index size) {
            T* here = at;
            at += size;
            return here;
        };
        const Index steps = call.segment;
        // One row more where the loops look a step ahead.
        own_q_ = next(key_row * (steps + 1));
        erase = next(key_row * (steps + 1));
        own_k_ = next(key_row * steps);
        rest = next(key_row * steps);
        keep = next(key_row * steps);
        own_right_ = rank == Rank::kOwn ? next(key_row * steps) : nullptr;
        own_v_ = next(value_row * (steps + 1));
        one_ = next(N::kParts * kLanes<T>);
        beta = next(N::kParts * kLanes<T> * steps);
        ones_ = next(row_size<N>(steps));
        kept_ones_ = next(row_size<N>(steps));
    }

    // Bring steps `start` to `end`; fewer come where a mask leaves some out.
    void bring(Index start, Index end) {
        size = 0;
        for (Index t = start; t < end; ++t)
            if (!call_.mask || call_.mask[batch_ * call_.steps + t]) index_.get()[size++] = t;
        // A read before the step looks one query ahead, behind the last of them too.
        q = rows(call_.q, own_q_, 0, call_.keys, start, !call_.before);
        k = rows(call_.k, own_k_, 0, call_.keys, start);
        v = rows(call_.v, own_v_, first_, values_, start);
        right = rank_ == Rank::kOwn ? rows(call_.right, own_right_, 0, call_.keys, start) : k;
        std::memset(own_q_ + size * key_row, 0, key_row * sizeof(T));
        if (decay_) bring_decays();
        if (rank_ == Rank::kNone) return;
        for (Index i = 0; i < size; ++i) bring_erasure(i, time(i));
        std::memset(erase + size * key_row, 0, key_row * sizeof(T));
    }

    Index time(Index i) const { return index_.get()[i]; }

    // Whether all keys decay alike.
    bool single() const { return call_.decays != call_.keys; }

    // Whether anything grows, by more than a rounding: products of such decays may be many times what an erasure leaves of
    // them, or infinite where nothing was kept.
    bool grows() const {
        constexpr Index one = N::kParts * kLanes<T>;
        const Index numbers = single() ? one : key_row;
        Mask<T> any{};
        for (Index i = 0; i < size && decay_; ++i)
            for (Index j = 0; j < numbers; j += one) any |= square(decay(i, j)) > all<T>(T(1.0001));
        return any_of<T>(any);
    }

    // Numbers of an operand for each step, `n` of them from `first` on: where they lie if loops can read them there, else
    // brought to `own`.
    Lines<const T> rows(const Operand& x, T* own, Index first, Index n, Index start, bool there = true) const {
        const Index row = row_size<N>(n);
        if (there && lies_ready<N>(call_, x.element, x.complex, n))
            return {(const T*)x.data + x.at(batch_, start, head_) + first, x.time};
        for (Index i = 0; i < size; ++i) pack<N>(own + i * row, x, x.at(batch_, time(i), head_) + first, n);
        return {own, row};
    }

    // How many real steps there are; rows of keys and of values, `key_row` and `value_row` scalars long.
    Index size = 0;
    const Call& call_;
    const bool decay_;
    const Rank rank_;
    const Index batch_, head_, first_, values_;
    const Index key_row, value_row;
    Lines<const T> q, k, v, right;
    T *erase, *rest, *keep, *beta;

  private:
    void bring_decays() {
        const Index decays = call_.decays, used = row_size<N>(decays);
        const bool constant = !call_.log_decay.time && !call_.step, single = this->single();
        const Index steps = constant && size ? 1 : size;
        constexpr Index one = N::kParts * kLanes<T>;
        for (Index i = 0; i < steps; ++i) {
            T* row = single ? one_ : rest + i * key_row;
            pack<N>(row, call_.log_decay, call_.log_decay.at(batch_, time(i), head_), decays);
            if (call_.step) {
                T step[one];
                pack<N>(step, call_.step, call_.step.at(batch_, time(i), head_), 1);
                const N factor = N::splat(step, 0);
                for (Index j = 0; j < used; j += one) (finite(N::load(row + j)) * factor).store(row + j);
            }
            for (int part = 0; single && part < N::kParts; ++part)
                ones_[place<N>(i) + part * kLanes<T>] = row[part * kLanes<T>];
        }
        if (single) {
            const Index count = row_size<N>(steps);
            for (Index i = steps; place<N>(i) < count; ++i)
                for (int part = 0; part < N::kParts; ++part) ones_[place<N>(i) + part * kLanes<T>] = 0;
            split_decays(N::zero(), ones_, ones_, kept_ones_, count);
        } else {
            split_decays(N::zero(), rest, rest, keep, steps * key_row);
        }
        for (Index i = 0; i < size; ++i) {
            T *row = rest + i * key_row, *kept = keep + i * key_row;
            if (single) {
                const N only = N::splat(ones_, constant ? 0 : i);
                const Vector<T> mask = (Vector<T>)splat_mask<N>(kept_ones_, constant ? 0 : i);
                for (Index j = 0; j < key_row; j += one) only.store(row + j), store_vector(kept + j, mask);
            } else if (constant && i) {
                std::memcpy(row, rest, key_row * sizeof(T));
                std::memcpy(kept, keep, key_row * sizeof(T));
            }
        }
    }

    // What is read of the state before it decays: beta D right, or minus left.
    void bring_erasure(Index i, Index t) {
        T* row = erase + i * key_row;
        if (!call_.decayed) {
            pack<N>(row, call_.erase, call_.erase.at(batch_, t, head_), call_.keys);
            for (Index j = 0; j < key_row; j += kLanes<T> * N::kParts) (N::zero() - N::load(row + j)).store(row + j);
            return;
        }
        pack<N>(one_, call_.erase, call_.erase.at(batch_, t, head_), 1);
        const N strength = N::splat(one_, 0);
        for (Index j = 0; j < key_row; j += kLanes<T> * N::kParts) {
            N scaled = strength * N::load(right[i] + j);
            if (decay_) scaled = decay(i, j) * scaled;
            scaled.store(row + j);
        }
        strength.store(beta + i * kLanes<T> * N::kParts);
    }

  public:
    // How strongly step `i` erases, in every lane.
    N strength(Index i) const { return N::load(beta + i * kLanes<T> * N::kParts); }

    // exp(log_decay) of one vector of keys.
    N decay(Index i, Index j) const {
        const N less = N::load(rest + i * key_row + j);
        const Mask<T> kept = (Mask<T>)load_vector(keep + i * key_row + j);
        N whole = less;
        whole.re = less.re + (Vector<T>)((Mask<T>)all<T>(T(1)) & kept);
        return whole;
    }

  private:
    Scratch<T> scratch_;
    Scratch<Index> index_;
    T *own_q_, *own_k_, *own_v_, *own_right_, *one_, *ones_, *kept_ones_;
};

}  // namespace lavagna
