// WKV, the average of RWKV-4, over whole calls: weights, sums and quotients in one pass over the steps, forward and back.
// Channels don't know of each other: work is shared out by sequence and share of channels.
#include "wkv.h"

#include <initializer_list>

#include "pack.h"
#include "tasks.h"

namespace lavagna {
namespace {

struct Average {
    // Sizes: `segment` steps lie between two kept states; a task has `share` channels; `padded` channels have room in `kept`.
    Index rows, steps, channels, segment, share, padded, threads, wide;
    // Borders of packed sequences, or null; which steps are real, or null.
    const Index* offsets;
    const uint8_t* mask;
    // (b, t, channels).
    Operand k, v, d_y;
    // (channels), (rows, channels, 2) and (rows, channels), all dense in the wide dtype, as what is returned is.
    const void *decay, *bonus, *memory, *unit;
    void *last, *last_unit, *output, *kept;
    // Gradients that come, and those that go: those of decay and bonus for each row.
    const void *d_last, *d_last_unit;
    void *d_k, *d_v, *d_decay, *d_bonus, *d_memory, *d_unit;
};

// Some channels of one sequence, its steps brought segment by segment.
template <class T>
class Share {
  public:
    Share(const Average& call, Index row, Index part, bool back)
        : call_(call),
          own_(sequence(call, row)),
          row_(row),
          first_(part * call.share),
          count_(call.channels - first_ < call.share ? call.channels - first_ : call.share),
          stride_((count_ + kLanes<T> - 1) / kLanes<T> * kLanes<T>),
          scratch_((back ? 3 : 2) * call.segment * stride_ + 10 * stride_ + Index(back) * call.segment * kStep),
          index_(call.segment) {
        T* at = scratch_.get();
        auto next = [&](Index count) { return (at += count) - count; };
        // Steps first, which lie as vectors do.
        steps_ = (Step<T>*)next(back ? call.segment * kStep : 0);
        k_ = next(call.segment * stride_), v_ = next(call.segment * stride_), d_y_ = next(back ? call.segment * stride_ : 0);
        for (T** place : {&decay_, &bonus_, &a_, &b_, &unit_, &d_a_, &d_b_, &d_unit_, &d_decay_, &d_bonus_}) *place = next(stride_);
        std::memset(decay_, 0, 10 * stride_ * sizeof(T));
        std::memcpy(decay_, (const T*)call.decay + first_, count_ * sizeof(T));
        std::memcpy(bonus_, (const T*)call.bonus + first_, count_ * sizeof(T));
    }

    void forward() {
        bring_pairs(a_, b_, call_.memory);
        std::memcpy(unit_, (const T*)call_.unit + place(), count_ * sizeof(T));
        for (Index start = own_.first, piece = 0; start < own_.end; start += call_.segment, ++piece) {
            if (call_.kept) keep(piece);
            const Index size = bring(start, false);
            for (Index at = 0; at < stride_; at += kLanes<T>) {
                Sums<T> sums = sums_at(at);
                average_forward(rates(at), sums, k_ + at, v_ + at, size, stride_);
                store_vector(a_ + at, sums.a), store_vector(b_ + at, sums.b), store_vector(unit_ + at, sums.unit);
            }
            give(call_.output, v_, size);
        }
        give_pairs(a_, b_, call_.last);
        std::memcpy((T*)call_.last_unit + place(), unit_, count_ * sizeof(T));
    }

    void backward() {
        bring_pairs(d_a_, d_b_, call_.d_last);
        // Where no step follows, the unit given is that which is returned.
        std::memcpy(d_unit_, (const T*)call_.d_last_unit + place(), count_ * sizeof(T));
        const Index pieces = (own_.end - own_.first + call_.segment - 1) / call_.segment;
        for (Index piece = pieces - 1; piece >= 0; --piece) {
            bring_kept(piece);
            const Index size = bring(own_.first + piece * call_.segment, true);
            for (Index at = 0; at < stride_; at += kLanes<T>) {
                SumsGradients<T> d{load_vector(d_a_ + at), load_vector(d_b_ + at), load_vector(d_unit_ + at),
                                   load_vector(d_decay_ + at), load_vector(d_bonus_ + at)};
                average_again(rates(at), sums_at(at), k_ + at, v_ + at, size, stride_, steps_);
                average_backward(d, k_ + at, v_ + at, d_y_ + at, size, stride_, steps_);
                store_vector(d_a_ + at, d.a), store_vector(d_b_ + at, d.b), store_vector(d_unit_ + at, d.unit);
                store_vector(d_decay_ + at, d.decay), store_vector(d_bonus_ + at, d.bonus);
            }
            give(call_.d_k, k_, size);
            give(call_.d_v, v_, size);
        }
        give_pairs(d_a_, d_b_, call_.d_memory);
        std::memcpy((T*)call_.d_decay + place(), d_decay_, count_ * sizeof(T));
        std::memcpy((T*)call_.d_bonus + place(), d_bonus_, count_ * sizeof(T));
        std::memcpy((T*)call_.d_unit + place(), d_unit_, count_ * sizeof(T));
    }

  private:
    static constexpr Index kStep = sizeof(Step<T>) / sizeof(T);

    Index place() const { return row_ * call_.channels + first_; }
    Rates<T> rates(Index at) const { return {load_vector(decay_ + at), load_vector(bonus_ + at)}; }
    Sums<T> sums_at(Index at) const { return {load_vector(a_ + at), load_vector(b_ + at), load_vector(unit_ + at)}; }

    // Real steps from `start` on, as far as the segment goes, and how many they are.
    Index bring(Index start, bool back) {
        const Index end = start + call_.segment < own_.end ? start + call_.segment : own_.end;
        Index size = 0;
        for (Index t = start; t < end; ++t) {
            if (call_.mask && !call_.mask[own_.batch * call_.steps + t]) continue;
            index_.get()[size] = own_.batch * call_.steps + t;
            bring_row(k_ + size * stride_, call_.k, t);
            bring_row(v_ + size * stride_, call_.v, t);
            if (back) bring_row(d_y_ + size * stride_, call_.d_y, t);
            ++size;
        }
        return size;
    }

    // A row of channels, zero behind the last.
    void bring_row(T* to, const Operand& from, Index t) const {
        read(to, from, from.at(own_.batch, t, 0) + first_, count_);
        std::memset(to + count_, 0, (stride_ - count_) * sizeof(T));
    }

    void give(void* to, const T* rows, Index size) const {
        for (Index i = 0; i < size; ++i)
            std::memcpy((T*)to + index_.get()[i] * call_.channels + first_, rows + i * stride_, count_ * sizeof(T));
    }

    void bring_pairs(T* a, T* b, const void* pairs) const {
        const T* from = (const T*)pairs + 2 * place();
        for (Index i = 0; i < count_; ++i) a[i] = from[2 * i], b[i] = from[2 * i + 1];
    }
    void give_pairs(const T* a, const T* b, void* pairs) const {
        T* to = (T*)pairs + 2 * place();
        for (Index i = 0; i < count_; ++i) to[2 * i] = a[i], to[2 * i + 1] = b[i];
    }

    // (pieces, 3, padded).
    T* kept(Index piece) const { return (T*)call_.kept + (own_.kept + piece) * 3 * call_.padded + first_; }
    void keep(Index piece) const {
        T* to = kept(piece);
        for (const T* row : {a_, b_, unit_}) std::memcpy(to, row, stride_ * sizeof(T)), to += call_.padded;
    }
    void bring_kept(Index piece) const {
        const T* from = kept(piece);
        for (T* row : {a_, b_, unit_}) std::memcpy(row, from, stride_ * sizeof(T)), from += call_.padded;
    }

    const Average& call_;
    const Sequence own_;
    const Index row_, first_, count_, stride_;
    Scratch<T> scratch_;
    Scratch<Index> index_;
    Step<T>* steps_;
    T *k_, *v_, *d_y_, *decay_, *bonus_, *a_, *b_, *unit_, *d_a_, *d_b_, *d_unit_, *d_decay_, *d_bonus_;
};

template <class T>
void run(const Average& call, bool back) {
    const Index parts = (call.channels + call.share - 1) / call.share, tasks = call.rows * parts;
    auto task = [&](Index i) {
        const Flush flush;
        Share<T> share(call, i / parts, i % parts, back);
        back ? share.backward() : share.forward();
    };
    each_task(tasks, call.threads, task);
}

void serve(const int64_t* block, bool back) {
    const auto& call = *reinterpret_cast<const Average*>(block);
    call.wide == Index(Element::kDouble) ? run<double>(call, back) : run<float>(call, back);
}

}  // namespace
}  // namespace lavagna

extern "C" __attribute__((visibility("default"))) void lavagna_wkv(const int64_t* block) { lavagna::serve(block, false); }

extern "C" __attribute__((visibility("default"))) void lavagna_wkv_backward(const int64_t* block) {
    lavagna::serve(block, true);
}
