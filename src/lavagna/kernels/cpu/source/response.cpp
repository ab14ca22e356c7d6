// How diagonal systems whose rule never changes answer a text, one a channel, step by step, in doubles whatever comes: what a
// constant angle is rounded by grows with every step. A vector holds neighboring channels, so that reads are sums of vectors;
// one mode's memory stays in registers while the steps of a segment go by.
//
//     S_t = a S_{t-1} + b u_t        y_t = Re sum over modes of c S_t
#include "pack.h"
#include "tasks.h"

#include <type_traits>

namespace lavagna {
namespace {

// Channels of a task: a line of the cache where they come as floats.
constexpr Index kWide = 16;

struct Response {
    // Sizes: `segment` steps lie between two kept states.
    Index rows, steps, channels, modes, segment, threads;
    // Choices: whether a, b, c and states are complex; the dtype of answers and of the gradient of u.
    Index complex, element;
    const Index* offsets;
    const uint8_t* mask;
    // (b, t, channels), real.
    Operand u, d_y;
    // (channels, modes), then (rows, channels, modes), dense doubles, as all else is that follows.
    const void *a, *b, *c, *state;
    void *last, *output, *kept;
    const void* d_last;
    // Gradients; those of a, b and c once for each row.
    void *d_u, *d_a, *d_b, *d_c, *d_state;
};

template <class T>
inline Real<T> scaled(Real<T> x, Vector<T> by) {
    return {x.re * by};
}
template <class T>
inline Complex<T> scaled(Complex<T> x, Vector<T> by) {
    return {x.re * by, x.im * by};
}
// The real part of x y, and z besides.
template <class T>
inline Vector<T> add_real(Real<T> x, Real<T> y, Vector<T> z) {
    return x.re * y.re + z;
}
template <class T>
inline Vector<T> add_real(Complex<T> x, Complex<T> y, Vector<T> z) {
    return (z - x.im * y.im) + x.re * y.re;
}

// Some channels of one sequence. Numbers of modes lie vector by vector of channels, mode by mode: [vector][mode][part][lane].
template <class N>
class Channels {
  public:
    using T = typename N::Scalar;
    static constexpr Index kLane = kLanes<T>, kOne = kLane * N::kParts, kVectors = kWide / kLane;
    static constexpr int kPair = 2;

    Channels(const Response& call, Index row, Index part, bool back)
        : call_(call),
          own_(sequence(call, row)),
          row_(row),
          part_(part),
          first_(part * kWide),
          count_(call.channels - first_ < kWide ? call.channels - first_ : kWide),
          tile_(call.modes * kWide * N::kParts),
          scratch_(4 * tile_ + 2 * call.segment * kWide + (back ? more() : 0)),
          index_(call.segment),
          at_(scratch_.get()) {
        a_ = next(tile_), b_ = next(tile_), c_ = next(tile_), memory_ = next(tile_);
        u_ = next(call.segment * kWide), y_ = next(call.segment * kWide);
        bring_tiles(a_, (const T*)call.a), bring_tiles(b_, (const T*)call.b), bring_tiles(c_, (const T*)call.c);
        if (!back) return;
        d_u_ = next(call.segment * kWide), states_ = next((call.segment + 1) * kPair * kOne);
        d_a_ = next(tile_), d_b_ = next(tile_), d_c_ = next(tile_);
    }

    void forward() {
        bring_tiles(memory_, own((const T*)call_.state));
        for (Index start = own_.first, piece = 0; start < own_.end; start += call_.segment, ++piece) {
            if (call_.kept) std::memcpy(kept(piece), memory_, tile_ * sizeof(T));
            bring(start);
            std::memset(y_, 0, size_ * kWide * sizeof(T));
            each_pair([&](auto pair, Index w, Index mode) { answer<decltype(pair)::value>(w * kLane, mode * kOne); });
            for (Index i = 0; i < size_; ++i) give_row(call_.output, call_.element, i, y_);
        }
        give_tiles(memory_, own((T*)call_.last));
    }

    void backward() {
        bring_tiles(memory_, own((const T*)call_.d_last));
        for (T* sums : {d_a_, d_b_, d_c_}) std::memset(sums, 0, tile_ * sizeof(T));
        const Index pieces = (own_.end - own_.first + call_.segment - 1) / call_.segment;
        for (Index piece = pieces - 1; piece >= 0; --piece) {
            bring(own_.first + piece * call_.segment);
            for (Index i = 0; i < size_; ++i) bring_row(y_, call_.d_y, i);
            std::memset(d_u_, 0, size_ * kWide * sizeof(T));
            each_pair([&](auto pair, Index w, Index mode) {
                again<decltype(pair)::value>(kept(piece) + mode * kOne, w * kLane, mode * kOne);
                for (int m = 0; m < decltype(pair)::value; ++m) unanswer<decltype(pair)::value>(m, w * kLane, (mode + m) * kOne);
            });
            for (Index i = 0; i < size_; ++i) give_row(call_.d_u, call_.element, i, d_u_);
        }
        give_tiles(memory_, own((T*)call_.d_state));
        give_tiles(d_a_, own((T*)call_.d_a)), give_tiles(d_b_, own((T*)call_.d_b)), give_tiles(d_c_, own((T*)call_.d_c));
    }

  private:
    Index more() const { return 3 * tile_ + call_.segment * kWide + (call_.segment + 1) * kPair * kOne; }
    T* next(Index count) {
        T* here = at_;
        at_ += count;
        return here;
    }
    template <class Each>
    void each_pair(Each each) const {
        for (Index w = 0; w < kVectors; ++w) {
            const Index first = w * call_.modes, end = first + call_.modes;
            Index mode = first;
            for (; mode + kPair <= end; mode += kPair) each(std::integral_constant<int, kPair>{}, w, mode);
            if (mode < end) each(std::integral_constant<int, 1>{}, w, mode);
        }
    }

    // Some modes side by side, because each step of one waits for the step before it.
    template <int kModes>
    void answer(Index lane, Index mode) {
        N a[kModes], b[kModes], c[kModes], s[kModes];
#pragma GCC unroll 4
        for (int m = 0; m < kModes; ++m) {
            const Index at = mode + m * kOne;
            a[m] = N::load(a_ + at), b[m] = N::load(b_ + at), c[m] = N::load(c_ + at), s[m] = N::load(memory_ + at);
        }
        for (Index i = 0; i < size_; ++i) {
            const Vector<T> u = load_vector(u_ + i * kWide + lane);
            Vector<T> y = load_vector(y_ + i * kWide + lane);
#pragma GCC unroll 4
            for (int m = 0; m < kModes; ++m) {
                s[m] = add(a[m], s[m], scaled(b[m], u));
                y = add_real(c[m], s[m], y);
            }
            store_vector(y_ + i * kWide + lane, y);
        }
#pragma GCC unroll 4
        for (int m = 0; m < kModes; ++m) s[m].store(memory_ + mode + m * kOne);
    }

    // The states of a segment once more, before each step and after the last.
    template <int kModes>
    void again(const T* start, Index lane, Index mode) {
        N a[kModes], b[kModes], s[kModes];
#pragma GCC unroll 4
        for (int m = 0; m < kModes; ++m)
            a[m] = N::load(a_ + mode + m * kOne), b[m] = N::load(b_ + mode + m * kOne), s[m] = N::load(start + m * kOne);
        T* to = states_;
        for (Index i = 0; i <= size_; ++i) {
            const Vector<T> u = i < size_ ? load_vector(u_ + i * kWide + lane) : Vector<T>{};
#pragma GCC unroll 4
            for (int m = 0; m < kModes; ++m, to += kOne) {
                s[m].store(to);
                s[m] = add(a[m], s[m], scaled(b[m], u));
            }
        }
    }

    // Back over a segment, with G the gradient of S_t, which is `faded` and what its own answer adds.
    template <int kModes>
    void unanswer(int m, Index lane, Index mode) {
        const N a = N::load(a_ + mode).conj(), b = N::load(b_ + mode).conj(), c = N::load(c_ + mode).conj(), both = a * c;
        N faded = N::load(memory_ + mode), d_a = N::load(d_a_ + mode), d_b = N::load(d_b_ + mode), d_c = N::load(d_c_ + mode);
        for (Index i = size_ - 1; i >= 0; --i) {
            const Vector<T> u = load_vector(u_ + i * kWide + lane), d_y = load_vector(y_ + i * kWide + lane);
            const T* const before = states_ + (i * kModes + m) * kOne;
            const N g = faded + scaled(c, d_y);
            d_a = add(g, N::load(before).conj(), d_a);
            d_b = d_b + scaled(g, u);
            d_c = d_c + scaled(N::load(before + kModes * kOne).conj(), d_y);
            T* const d_u = d_u_ + i * kWide + lane;
            store_vector(d_u, add_real(b, g, load_vector(d_u)));
            faded = add(a, faded, scaled(both, d_y));
        }
        faded.store(memory_ + mode), d_a.store(d_a_ + mode), d_b.store(d_b_ + mode), d_c.store(d_c_ + mode);
    }

    T* kept(Index piece) const {
        const Index parts = (call_.channels + kWide - 1) / kWide;
        return (T*)call_.kept + ((own_.kept + piece) * parts + part_) * tile_;
    }

    // Real steps from `start` on, as far as the segment goes.
    void bring(Index start) {
        const Index end = start + call_.segment < own_.end ? start + call_.segment : own_.end;
        size_ = 0;
        for (Index t = start; t < end; ++t) {
            if (call_.mask && !call_.mask[own_.batch * call_.steps + t]) continue;
            index_.get()[size_] = t;
            bring_row(u_, call_.u, size_++);
        }
    }
    // A row of channels, zero behind the last.
    void bring_row(T* rows, const Operand& from, Index i) const {
        T* const to = rows + i * kWide;
        read(to, from, from.at(own_.batch, index_.get()[i], 0) + first_, count_);
        std::memset(to + count_, 0, (kWide - count_) * sizeof(T));
    }
    void give_row(void* to, Index element, Index i, const T* rows) const {
        const Index offset = (own_.batch * call_.steps + index_.get()[i]) * call_.channels + first_;
        const T* const row = rows + i * kWide;
        if (element == Index(Element::kDouble)) std::memcpy((double*)to + offset, row, count_ * sizeof(T));
        else for (Index j = 0; j < count_; ++j) ((float*)to)[offset + j] = float(row[j]);
    }

    // This sequence's numbers of (rows, channels, modes).
    template <class Numbers>
    Numbers* own(Numbers* all) const {
        return all + row_ * call_.channels * call_.modes * N::kParts;
    }
    void bring_tiles(T* tiles, const T* numbers) const {
        std::memset(tiles, 0, tile_ * sizeof(T));
        each_number([&](Index place, Index at) { tiles[place] = numbers[at]; });
    }
    void give_tiles(const T* tiles, T* numbers) const {
        each_number([&](Index place, Index at) { numbers[at] = tiles[place]; });
    }
    template <class Each>
    void each_number(Each each) const {
        for (Index i = 0; i < count_; ++i) {
            const Index first = i / kLane * call_.modes * kOne + i % kLane, from = (first_ + i) * call_.modes * N::kParts;
            for (Index m = 0; m < call_.modes; ++m)
                for (Index part = 0; part < N::kParts; ++part)
                    each(first + m * kOne + part * kLane, from + m * N::kParts + part);
        }
    }

    const Response& call_;
    const Sequence own_;
    const Index row_, part_, first_, count_, tile_;
    Scratch<T> scratch_;
    Scratch<Index> index_;
    T* at_;
    Index size_ = 0;
    T *a_, *b_, *c_, *memory_, *u_, *y_;
    T *d_u_ = nullptr, *states_ = nullptr, *d_a_ = nullptr, *d_b_ = nullptr, *d_c_ = nullptr;
};

template <class N>
void run(const Response& call, bool back) {
    const Index parts = (call.channels + kWide - 1) / kWide;
    each_task(call.rows * parts, call.threads, [&](Index i) {
        const Flush flush;
        Channels<N> channels(call, i / parts, i % parts, back);
        back ? channels.backward() : channels.forward();
    });
}

void serve(const int64_t* block, bool back) {
    const auto& call = *reinterpret_cast<const Response*>(block);
    call.complex ? run<Complex<double>>(call, back) : run<Real<double>>(call, back);
}

}  // namespace
}  // namespace lavagna

extern "C" __attribute__((visibility("default"))) void lavagna_response(const int64_t* block) { lavagna::serve(block, false); }

extern "C" __attribute__((visibility("default"))) void lavagna_response_backward(const int64_t* block) {
    lavagna::serve(block, true);
}
