// Some steps of one head, ready for the loops over them: real steps only, decays and erasures multiplied out.
#pragma once

#include "pack.h"
#include "survival.h"

namespace lavagna {

// What of a transition there is. Shared: erased along the very key that is written.
enum class Rank { kNone, kShared, kOwn };

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
          scratch_(key_row * (6 * call.segment + 3) + value_row * (2 * call.segment + 2) + 2 * kLanes<T> * (call.segment + 1)),
          index_(call.segment + 1) {
        T* at = scratch_.get();
        auto next = [&](Index size) {
            T* here = at;
            at += size;
            return here;
        };
        const Index steps = call.segment;
        // One row more where the loops look a step ahead.
        q = next(key_row * (steps + 1));
        erase = next(key_row * (steps + 1));
        k = next(key_row * steps);
        rest = next(key_row * steps);
        keep = next(key_row * steps);
        right = rank == Rank::kOwn ? next(key_row * steps) : k;
        v = next(value_row * (steps + 1));
        one_ = next(2 * kLanes<T>);
        beta = next(kLanes<T> * N::kParts * steps);
    }

    // Bring steps `start` to `end`; fewer come where a mask leaves some out.
    void bring(Index start, Index end) {
        size = 0;
        for (Index t = start; t < end; ++t) {
            if (call_.mask && !call_.mask[batch_ * call_.steps + t]) continue;
            index_.get()[size] = t;
            bring_step(size++, t);
        }
        std::memset(q + size * key_row, 0, key_row * sizeof(T));
        std::memset(erase + size * key_row, 0, key_row * sizeof(T));
    }

    Index time(Index i) const { return index_.get()[i]; }

    // How many real steps there are; rows of keys and of values, `key_row` and `value_row` scalars apart.
    Index size = 0;
    const Call& call_;
    const bool decay_;
    const Rank rank_;
    const Index batch_, head_, first_, values_;
    const Index key_row, value_row;
    T *q, *erase, *k, *rest, *keep, *right, *v, *beta;

  private:
    void bring_step(Index i, Index t) {
        pack<N>(q + i * key_row, call_.q, call_.q.at(batch_, t, head_), call_.keys);
        pack<N>(k + i * key_row, call_.k, call_.k.at(batch_, t, head_), call_.keys);
        pack<N>(v + i * value_row, call_.v, call_.v.at(batch_, t, head_) + first_, values_);
        if (decay_) bring_decay(i, t);
        if (rank_ != Rank::kNone) bring_erasure(i, t);
    }

    void bring_decay(Index i, Index t) {
        T *row = rest + i * key_row, *kept = keep + i * key_row;
        const bool constant = !call_.log_decay.time && !call_.step;
        if (constant && i) {
            std::memcpy(row, rest, key_row * sizeof(T));
            std::memcpy(kept, keep, key_row * sizeof(T));
            return;
        }
        pack<N>(row, call_.log_decay, call_.log_decay.at(batch_, t, head_), call_.decays);
        const Index used = row_size<N>(call_.decays);
        if (call_.step) {
            pack<N>(one_, call_.step, call_.step.at(batch_, t, head_), 1);
            const N step = N::splat(one_, 0);
            for (Index j = 0; j < used; j += kLanes<T> * N::kParts) (finite(N::load(row + j)) * step).store(row + j);
        }
        split_decays(N::zero(), row, row, kept, used);
        if (call_.decays != call_.keys) {
            const N only = N::splat(row, 0);
            const Vector<T> mask = (Vector<T>)splat_mask<N>(kept, 0);
            for (Index j = 0; j < key_row; j += kLanes<T> * N::kParts) only.store(row + j), store_vector(kept + j, mask);
        }
    }

    // What is read of the state before it decays: beta D right, or minus left.
    void bring_erasure(Index i, Index t) {
        T* row = erase + i * key_row;
        if (rank_ == Rank::kOwn) pack<N>(right + i * key_row, call_.right, call_.right.at(batch_, t, head_), call_.keys);
        if (!call_.decayed) {
            pack<N>(row, call_.erase, call_.erase.at(batch_, t, head_), call_.keys);
            for (Index j = 0; j < key_row; ++j) row[j] = -row[j];
            return;
        }
        pack<N>(one_, call_.erase, call_.erase.at(batch_, t, head_), 1);
        const N strength = N::splat(one_, 0);
        for (Index j = 0; j < key_row; j += kLanes<T> * N::kParts) {
            N scaled = strength * N::load(right + i * key_row + j);
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
    T* one_;
};

}  // namespace lavagna
