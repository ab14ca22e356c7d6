// A short causal convolution over time, one filter a channel, with its window in and out, and SiLU behind it where asked for.
// Step by step over rows of channels; a vector holds neighboring channels, and no sum knows how long the call is. Work is
// shared out by sequence and channels, which don't know of each other.
#include <type_traits>

#include "gates.h"
#include "pack.h"
#include "tasks.h"

namespace lavagna {
namespace {

struct ShortConv {
    Index rows, steps, channels, width, share, threads;
    // The dtype of all sums, those of y and of the last window, and whether SiLU follows.
    Index wide, element, kept, silu;
    // `segment` is not used but for `sequence`.
    Index segment;
    const Index* offsets;
    const uint8_t* mask;
    // (b, t, channels), (rows, width - 1, channels), (b, t, channels).
    Operand x, window, d_y;
    // (channels, width) and (channels) or null, dense in the wide dtype.
    const void *weight, *bias;
    // (b, t, channels), (rows, width - 1, channels), dense.
    void *y, *last;
    // Backward, all dense in the wide dtype: gradients that come, and those that go, or null; of weight and bias for each row.
    const void* d_last;
    void *d_x, *d_weight, *d_bias, *d_window;
};

// Some channels of one sequence. Positions count its real steps; those of the window lie before the first.
template <class T>
class Channels {
  public:
    Channels(const ShortConv& call, Index row, Index part, bool back)
        : call_(call),
          own_(sequence(call, row)),
          row_(row),
          first_(part * call.share),
          count_(call.channels - first_ < call.share ? call.channels - first_ : call.share),
          width_(call.width),
          stride_((count_ + kLanes<T> - 1) / kLanes<T> * kLanes<T> + 64 / Index(sizeof(T))),
          scratch_((2 + 2 * width_ + (back ? 2 * width_ + 2 : 0)) * stride_),
          pasts_(width_),
          taps_(width_),
          times_(width_) {
        T* at = scratch_.get();
        auto next = [&](Index rows) {
            T* here = at;
            at += rows * stride_;
            return here;
        };
        weight_ = next(width_), bias_ = next(1), out_ = next(1), ring_ = next(width_);
        if (back) d_weight_ = next(width_), d_bias_ = next(1), d_ring_ = next(width_), d_y_ = next(1);
        bring_weights();
        for (Index i = 0; i + 1 < width_; ++i)
            pasts_.get()[slot(i + 1)] = row_of(call.window, call.window.at(row, i, 0), slot(i + 1));
    }

    template <int kWidth, bool kSilu>
    void forward() {
        const Index width = kWidth ? kWidth : width_;
        Index position = 0;
        for (Index t = own_.first; t < own_.end; ++t) {
            if (masked(t)) continue;
            bring(position, t);
            const Taps<kWidth> rows(*this, [&](Index i) { return pasts_.get()[slot(position + i + 1)]; });
            const Index at = (own_.batch * call_.steps + t) * call_.channels + first_;
            T* const y = call_.element == wide() ? (T*)call_.y + at : out_;
            for (Index c = 0; c < count_; c += kLanes<T>) {
                const Index n = count_ - c;
                Vector<T> sum = load_vector(bias_ + c);
#pragma GCC unroll 8
                for (Index i = 0; i < width; ++i) sum += load_some(rows[i] + c, n) * load_vector(weight_ + i * stride_ + c);
                store_some(y + c, kSilu ? Silu<T>(sum).value : sum, n);
            }
            if (y == out_) unpack<Real<T>>(call_.y, call_.element, at, out_, count_);
            ++position;
        }
        for (Index i = 0; i + 1 < width; ++i) {
            const Index at = (row_ * (width - 1) + i) * call_.channels + first_;
            // The window as it was moves on where there were few steps.
            unpack<Real<T>>(call_.last, call_.kept, at, pasts_.get()[slot(position + i + 1)], count_);
        }
    }

    // A step's part in the gradients of weights is known at once, that of its row once the filter has moved past it.
    template <int kWidth, bool kSilu>
    void backward() {
        const Index width = kWidth ? kWidth : width_;
        std::memset(d_weight_, 0, (width + 1) * stride_ * sizeof(T));
        std::memset(d_ring_, 0, width * stride_ * sizeof(T));
        for (Index i = 0; i + 1 < width; ++i) times_.get()[slot(i + 1)] = -1;
        const Index size = real_steps();
        Index position = 0;
        for (Index t = own_.first; t < own_.end; ++t) {
            if (masked(t)) continue;
            bring(position, t);
            times_.get()[slot(position + width)] = t;
            const Index at = call_.d_y.at(own_.batch, t, 0) + first_;
            const T* d_y = d_y_;
            if (call_.d_y.element == wide()) d_y = (const T*)call_.d_y.data + at;
            else read(d_y_, call_.d_y, at, count_);
            step<kWidth, kSilu>(position, d_y);
            give<kWidth>(position, size);
            ++position;
        }
        for (Index i = 0; i + 1 < width; ++i, ++position) {
            std::memset(d_ring_ + slot(position + width) * stride_, 0, stride_ * sizeof(T));
            give<kWidth>(position, size);
        }
        T* const d_weight = (T*)call_.d_weight + (row_ * call_.channels + first_) * width;
        for (Index c = 0; c < count_; ++c)
            for (Index i = 0; i < width; ++i) d_weight[c * width + i] = d_weight_[i * stride_ + c];
        if (call_.d_bias) std::memcpy((T*)call_.d_bias + row_ * call_.channels + first_, d_bias_, count_ * sizeof(T));
    }

  private:
    // The rows that the filter's taps stand on: on the stack where their number is known.
    template <int kWidth>
    struct Taps {
        const T* own[kWidth ? kWidth : 1];
        const T** rows;

        template <class Find>
        Taps(const Channels& channels, Find find) : rows(kWidth ? own : channels.taps_.get()) {
            for (Index i = 0; i < channels.width_; ++i) rows[i] = find(i);
        }
        const T* operator[](Index i) const { return kWidth ? own[i] : rows[i]; }
    };

    static Index wide() { return Index(sizeof(T) == 8 ? Element::kDouble : Element::kFloat); }
    bool masked(Index t) const { return call_.mask && !call_.mask[own_.batch * call_.steps + t]; }
    // Where the i-th number of a ring lies; the filter's last tap at a position is number position + width.
    Index slot(Index i) const { return i % width_; }

    Index real_steps() const {
        if (!call_.mask) return own_.end - own_.first;
        Index size = 0;
        for (Index t = own_.first; t < own_.end; ++t) size += !masked(t);
        return size;
    }

    // The channels of a row where they lie, or as the ring holds them.
    const T* row_of(const Operand& x, Index offset, Index slot) {
        if (x.element == wide()) return (const T*)x.data + offset + first_;
        T* const room = ring_ + slot * stride_;
        read(room, x, offset + first_, count_);
        return room;
    }
    void bring(Index position, Index t) {
        const Index at = slot(position + width_);
        pasts_.get()[at] = row_of(call_.x, call_.x.at(own_.batch, t, 0), at);
    }

    void bring_weights() {
        const T* const weight = (const T*)call_.weight + first_ * width_;
        Index c = 0;
        if (width_ == 4)
            for (; c + kLanes<T> <= count_; c += kLanes<T>) {
                Vector<T> four[4];
                std::memcpy(four, weight + 4 * c, sizeof four);
                const Vector<T> a = picked<T, at_even>(four[0], four[1]), b = picked<T, at_even>(four[2], four[3]);
                const Vector<T> d = picked<T, at_odd>(four[0], four[1]), e = picked<T, at_odd>(four[2], four[3]);
                store_vector(weight_ + c, picked<T, at_even>(a, b));
                store_vector(weight_ + stride_ + c, picked<T, at_even>(d, e));
                store_vector(weight_ + 2 * stride_ + c, picked<T, at_odd>(a, b));
                store_vector(weight_ + 3 * stride_ + c, picked<T, at_odd>(d, e));
            }
        for (; c < stride_; ++c)
            for (Index i = 0; i < width_; ++i) weight_[i * stride_ + c] = c < count_ ? weight[c * width_ + i] : T(0);
        std::memset(bias_, 0, stride_ * sizeof(T));
        if (call_.bias) std::memcpy(bias_, (const T*)call_.bias + first_, count_ * sizeof(T));
    }

    template <int kWidth, bool kSilu>
    void step(Index position, const T* d_y) {
        const Index width = kWidth ? kWidth : width_;
        const Taps<kWidth> rows(*this, [&](Index i) { return pasts_.get()[slot(position + i + 1)]; });
        T* const d_sum = d_ring_ + slot(position + width) * stride_;
        for (Index c = 0; c < count_; c += kLanes<T>) {
            const Index n = count_ - c;
            auto row = [&](Index i) { return load_some(rows[i] + c, n); };
            Vector<T> d = load_some(d_y + c, n);
            if (kSilu) {
                Vector<T> sum = load_vector(bias_ + c);
#pragma GCC unroll 8
                for (Index i = 0; i < width; ++i) sum += row(i) * load_vector(weight_ + i * stride_ + c);
                d *= Silu<T>(sum).slope;
            }
            store_vector(d_sum + c, d);
            store_vector(d_bias_ + c, load_vector(d_bias_ + c) + d);
#pragma GCC unroll 8
            for (Index i = 0; i < width; ++i) {
                T* const at = d_weight_ + i * stride_ + c;
                store_vector(at, d * row(i) + load_vector(at));
            }
        }
    }

    // The gradient of the row that the filter has moved past at `position`: of the window's, or a step's.
    template <int kWidth>
    void give(Index position, Index size) {
        const Index width = kWidth ? kWidth : width_;
        const Index of = position - (width_ - 1), left = of - (size - (width_ - 1));
        T* to;
        if (of < 0) to = call_.d_window ? (T*)call_.d_window + (row_ * (width_ - 1) + position) * call_.channels + first_ : nullptr;
        else {
            const Index t = times_.get()[slot(of + width_)];
            to = call_.d_x ? (T*)call_.d_x + (own_.batch * call_.steps + t) * call_.channels + first_ : nullptr;
        }
        if (!to) return;
        const T* const d_last = left >= 0 ? (const T*)call_.d_last + (row_ * (width_ - 1) + left) * call_.channels + first_ : nullptr;
        const Taps<kWidth> rows(*this, [&](Index i) { return d_ring_ + slot(position + width_ - i) * stride_; });
        for (Index c = 0; c < count_; c += kLanes<T>) {
            const Index n = count_ - c;
            Vector<T> sum = d_last ? load_some(d_last + c, n) : Vector<T>{};
#pragma GCC unroll 8
            for (Index i = 0; i < width; ++i) sum += load_vector(rows[i] + c) * load_vector(weight_ + i * stride_ + c);
            store_some(to + c, sum, n);
        }
    }

    const ShortConv& call_;
    const Sequence own_;
    const Index row_, first_, count_, width_, stride_;
    Scratch<T> scratch_;
    Scratch<const T*> pasts_, taps_;
    Scratch<Index> times_;
    T *weight_, *bias_, *out_, *ring_, *d_weight_ = nullptr, *d_bias_ = nullptr, *d_ring_ = nullptr, *d_y_ = nullptr;
};

template <class T, int kWidth>
void task(const ShortConv& call, Index row, Index part, bool back) {
    Channels<T> channels(call, row, part, back);
    if (call.silu) back ? channels.template backward<kWidth, true>() : channels.template forward<kWidth, true>();
    else back ? channels.template backward<kWidth, false>() : channels.template forward<kWidth, false>();
}

template <class T>
void run(const ShortConv& call, bool back) {
    const Index parts = (call.channels + call.share - 1) / call.share, tasks = call.rows * parts;
    auto one = [&](Index i) {
        const auto task_of = call.width == 4 ? task<T, 4> : call.width == 3 ? task<T, 3> : task<T, 0>;
        task_of(call, i / parts, i % parts, back);
    };
    each_task(tasks, call.threads, one);
}

void serve(const int64_t* block, bool back) {
    const auto& call = *reinterpret_cast<const ShortConv*>(block);
    call.wide == Index(Element::kDouble) ? run<double>(call, back) : run<float>(call, back);
}

}  // namespace
}  // namespace lavagna

extern "C" __attribute__((visibility("default"))) void lavagna_short_conv(const int64_t* block) {
    lavagna::serve(block, false);
}

extern "C" __attribute__((visibility("default"))) void lavagna_short_conv_backward(const int64_t* block) {
    lavagna::serve(block, true);
}
