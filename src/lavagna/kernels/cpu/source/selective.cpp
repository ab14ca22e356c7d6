// Mamba's selective scan over whole calls: discretization, scan, read and skip in one pass. Channels don't know of each other
// but for the gradients of B and C, which are given apart for each share of the channels: work is shared out by sequence and
// share, and no sum depends on how many threads there are.
#include "selective.h"

#include "pack.h"
#include "tasks.h"

namespace lavagna {
namespace {

struct Scan {
    // Sizes: `segment` steps lie between two kept states; a task has `share` channels; `padded` channels have room in `kept`.
    Index rows, steps, channels, keys, segment, share, padded, threads;
    // The dtype of all sums, and that of the reads.
    Index wide, element;
    // Borders of packed sequences, or null; which steps are real, or null.
    const Index* offsets;
    const uint8_t* mask;
    // (b, t, channels) the first two and the last, (b, t, keys) the others.
    Operand x, dt, b, c, d_y;
    // (channels, keys), (channels) or null, (rows, channels, keys), all dense in the wide dtype, as what is returned is.
    const void *a, *skip, *state;
    void *last, *output, *kept;
    // Gradients that come, and those that go: those of b and c one for each share, those of a and skip for each row.
    const void* d_last;
    void *d_x, *d_dt, *d_b, *d_c, *d_a, *d_skip, *d_state;
};

// Some channels of one sequence, its steps brought segment by segment.
template <class T>
class Share {
  public:
    Share(const Scan& call, Index row, Index part, bool back)
        : call_(call),
          own_(sequence(call, row)),
          row_(row),
          part_(part),
          first_(part * call.share),
          count_(call.channels - first_ < call.share ? call.channels - first_ : call.share),
          blocks_((count_ + kBlock<T> - 1) / kBlock<T>),
          // A line of the cache more, so that rows don't all fall into the same few places of it.
          stride_(blocks_ * kBlock<T> + 64 / Index(sizeof(T))),
          tile_(call.keys * kBlock<T>),
          scratch_(size(back)),
          index_(call.segment) {
        at_ = scratch_.get();
        s_ = {0, call.keys, stride_, next(call.segment * stride_), next(call.segment * stride_),
              next(call.segment * call.keys), next(call.segment * call.keys)};
        decay_ = next(blocks_ * tile_), memory_ = next(blocks_ * tile_), skip_ = next(stride_), least_ = next(stride_);
        bring_decay();
        if (!back) return;
        const Index sums = call.segment * call.keys * kLanes<T>;
        d_y_ = next(call.segment * stride_), states_ = next((call.segment + 1) * tile_), rests_ = next(call.segment * tile_);
        d_b_ = next(sums), d_c_ = next(sums), d_a_ = next(blocks_ * tile_), d_skip_ = next(stride_);
    }

    void forward() {
        bring_tiles(memory_, call_.state);
        for (Index start = own_.first, piece = 0; start < own_.end; start += call_.segment, ++piece) {
            if (call_.kept) std::memcpy(kept(piece), memory_, blocks_ * tile_ * sizeof(T));
            bring(start);
            for (Index block = 0; block < blocks_; ++block) {
                const Index first = block * kBlock<T>;
                far(block) ? scan_forward<T, true>(s_, first, at(block)) : scan_forward<T, false>(s_, first, at(block));
            }
            for (Index i = 0; i < s_.size; ++i)
                give_row(call_.output, call_.element, time(i) * call_.channels + first_, s_.x + i * stride_, count_);
        }
        give_tiles(memory_, call_.last);
    }

    void backward() {
        bring_tiles(memory_, call_.d_last);
        std::memset(d_a_, 0, blocks_ * tile_ * sizeof(T));
        std::memset(d_skip_, 0, stride_ * sizeof(T));
        const Index pieces = (own_.end - own_.first + call_.segment - 1) / call_.segment;
        for (Index piece = pieces - 1; piece >= 0; --piece) {
            bring(own_.first + piece * call_.segment);
            for (Index i = 0; i < s_.size; ++i) bring_row(d_y_ + i * stride_, call_.d_y, index_.get()[i]);
            std::memset(d_b_, 0, s_.size * call_.keys * kLanes<T> * sizeof(T));
            std::memset(d_c_, 0, s_.size * call_.keys * kLanes<T> * sizeof(T));
            const Unrolled<T> unrolled{d_y_, states_, rests_, d_b_, d_c_};
            for (Index block = 0; block < blocks_; ++block) {
                const Index first = block * kBlock<T>;
                std::memcpy(states_, kept(piece) + block * tile_, tile_ * sizeof(T));
                if (far(block)) scan_again<T, true>(s_, first, at(block), unrolled);
                else scan_again<T, false>(s_, first, at(block), unrolled);
                scan_backward(s_, first, at(block), unrolled, {memory_ + block * tile_, d_a_ + block * tile_, d_skip_ + first});
            }
            for (Index i = 0; i < s_.size; ++i) give(i);
        }
        give_tiles(memory_, call_.d_state);
        give_tiles(d_a_, call_.d_a);
        if (call_.d_skip) give_row(call_.d_skip, wide(), row_ * call_.channels + first_, d_skip_, count_);
    }

  private:
    Index size(bool back) const {
        const Index steps = call_.segment, keys = call_.keys, tiles = blocks_ * tile_;
        const Index both = 2 * steps * stride_ + 2 * steps * keys + 2 * tiles + 2 * stride_;
        const Index more = (steps + 1) * stride_ + (2 * steps + 1) * tile_ + 2 * steps * keys * kLanes<T> + tiles;
        return both + (back ? more : 0) + 16 * Index(64 / sizeof(T));
    }

    // Room on a line of its own.
    T* next(Index count) {
        constexpr Index line = 64 / sizeof(T);
        T* here = at_;
        at_ += (count + line - 1) / line * line;
        return here;
    }

    static Index wide() { return Index(sizeof(T) == 8 ? Element::kDouble : Element::kFloat); }
    Index time(Index i) const { return own_.batch * call_.steps + index_.get()[i]; }
    Block<T> at(Index block) const { return {decay_ + block * tile_, skip_ + block * kBlock<T>, memory_ + block * tile_}; }
    // Whether a step's decay in a block may be too small for a normal number: rare, and slower.
    bool far(Index block) const {
        bool found = false;
        for (Index at = block * kBlock<T>; at < (block + 1) * kBlock<T>; at += kLanes<T>)
            found |= any_far(s_.dt + at, stride_, s_.size, least_ + at);
        return found;
    }
    T* kept(Index piece) const { return (T*)call_.kept + ((own_.kept + piece) * call_.padded + first_) * call_.keys; }

    // Real steps from `start` on, as far as the segment goes.
    void bring(Index start) {
        const Index end = start + call_.segment < own_.end ? start + call_.segment : own_.end;
        s_.size = 0;
        for (Index t = start; t < end; ++t) {
            if (call_.mask && !call_.mask[own_.batch * call_.steps + t]) continue;
            const Index i = s_.size++;
            index_.get()[i] = t;
            bring_row(s_.dt + i * stride_, call_.dt, t);
            bring_row(s_.x + i * stride_, call_.x, t);
            read(s_.b + i * call_.keys, call_.b, call_.b.at(own_.batch, t, 0), call_.keys);
            read(s_.c + i * call_.keys, call_.c, call_.c.at(own_.batch, t, 0), call_.keys);
        }
    }

    // A row of channels, zero behind the last.
    void bring_row(T* to, const Operand& from, Index t) const {
        read(to, from, from.at(own_.batch, t, 0) + first_, count_);
        std::memset(to + count_, 0, (stride_ - count_) * sizeof(T));
    }

    static void give_row(void* to, Index element, Index offset, const T* row, Index n) {
        unpack<Real<T>>(to, element, offset, row, n);
    }

    // (rows, channels, keys) to tiles, zero behind the last channel, and back.
    void bring_tiles(T* tiles, const void* state) const { bring_tiles(tiles, (const T*)state + row_ * call_.channels * call_.keys); }
    void bring_tiles(T* tiles, const T* numbers) const {
        std::memset(tiles, 0, blocks_ * tile_ * sizeof(T));
        each(numbers, [&](const T& number, Index place) { tiles[place] = number; });
    }
    void give_tiles(const T* tiles, void* state) const {
        each((T*)state + row_ * call_.channels * call_.keys, [&](T& number, Index place) { number = tiles[place]; });
    }
    template <class Number, class Each>
    void each(Number* numbers, Each each) const {
        const Index keys = call_.keys;
        for (Index i = 0; i < count_; ++i) {
            Number* const row = numbers + (first_ + i) * keys;
            const Index first = i / kBlock<T> * tile_ + i % kBlock<T>;
            for (Index n = 0; n < keys; ++n) each(row[n], first + n * kBlock<T>);
        }
    }

    void bring_decay() {
        bring_tiles(decay_, (const T*)call_.a);
        std::memset(least_, 0, stride_ * sizeof(T));
        const Vector<T> base = all<T>(T(1.4426950408889634));
        for (Index block = 0; block < blocks_; ++block)
            for (Index i = 0; i < tile_; i += kLanes<T>) {
                T *const at = decay_ + block * tile_ + i, *const least = least_ + block * kBlock<T> + i % kBlock<T>;
                const Vector<T> rate = finite(Real<T>::load(at)).re * base, known = load_vector(least);
                store_vector(at, rate);
                store_vector(least, rate < known ? rate : known);
            }
        std::memset(skip_, 0, stride_ * sizeof(T));
        if (call_.skip) std::memcpy(skip_, (const T*)call_.skip + first_, count_ * sizeof(T));
    }

    // The gradients of what step `i` was given.
    void give(Index i) {
        const Index keys = call_.keys, batch = call_.offsets ? 1 : call_.rows;
        const Index row = time(i) * call_.channels + first_, shared = (part_ * batch * call_.steps + time(i)) * keys;
        give_row(call_.d_x, wide(), row, s_.x + i * stride_, count_);
        give_row(call_.d_dt, wide(), row, s_.dt + i * stride_, count_);
        give_sums(call_.d_b, shared, d_b_ + i * keys * kLanes<T>);
        give_sums(call_.d_c, shared, d_c_ + i * keys * kLanes<T>);
    }

    void give_sums(void* to, Index offset, const T* lanes) const {
        T* out = (T*)to + offset;
        Index n = 0;
        for (; n + 4 <= call_.keys; n += 4) {
            Vector<T> four[4];
            std::memcpy(four, lanes + n * kLanes<T>, sizeof four);
            sum_many<4>(four, out + n);
        }
        for (; n < call_.keys; ++n) out[n] = sum<T>(load_vector(lanes + n * kLanes<T>));
    }

    const Scan& call_;
    const Sequence own_;
    const Index row_, part_, first_, count_, blocks_, stride_, tile_;
    Scratch<T> scratch_;
    Scratch<Index> index_;
    T* at_;
    Stretch<T> s_;
    T *decay_, *memory_, *skip_, *least_, *d_y_ = nullptr, *states_ = nullptr, *rests_ = nullptr;
    T *d_b_ = nullptr, *d_c_ = nullptr, *d_a_ = nullptr, *d_skip_ = nullptr;
};

// One step of some channels: a vector holds neighboring keys of one channel, as the state and A are given, so that nothing is
// turned, and the state may go where it was.
template <class T>
void step(const Scan& call, Index row, Index first, Index count) {
    constexpr Index lanes = kLanes<T>;
    const Index keys = call.keys, at = (row * call.channels + first) * keys;
    const T *const state = (const T*)call.state + at, *const rates = (const T*)call.a + first * keys;
    T* const last = (T*)call.last + at;
    if (call.mask && !call.mask[row]) {
        if (last != state) std::memcpy(last, state, count * keys * sizeof(T));
        return;
    }
    Scratch<T> room(3 * count + 2 * keys);
    T *const x = room.get(), *const dt = x + count, *const y = dt + count, *const b = y + count, *const c = b + keys;
    read(x, call.x, call.x.at(row, 0, 0) + first, count);
    read(dt, call.dt, call.dt.at(row, 0, 0) + first, count);
    read(b, call.b, call.b.at(row, 0, 0), keys);
    read(c, call.c, call.c.at(row, 0, 0), keys);
    const Vector<T> base = all<T>(T(1.4426950408889634));
    const T* const skip = (const T*)call.skip;
    for (Index i = 0; i < count; i += 4) {
        const Index many = count - i < 4 ? count - i : 4;
        Vector<T> sums[4] = {};
        for (Index j = 0; j < many; ++j) {
            const Vector<T> now = all(dt[i + j]), write = all(dt[i + j] * x[i + j]);
            for (Index n = 0; n < keys; n += lanes) {
                const Index place = (i + j) * keys + n;
                const Vector<T> rate = finite(Real<T>::load(rates + place)).re * base;
                const Vector<T> memory = survive<T, true>(now, rate).of(load_vector(state + place), write * load_vector(b + n));
                store_vector(last + place, memory);
                sums[j] += memory * load_vector(c + n);
            }
        }
        T four[4];
        sum_many<4>(sums, four);
        for (Index j = 0; j < many; ++j) y[i + j] = four[j] + (skip ? skip[first + i + j] * x[i + j] : T(0));
    }
    unpack<Real<T>>(call.output, call.element, row * call.channels + first, y, count);
}

template <class T>
void run(const Scan& call, bool back) {
    const Index parts = (call.channels + call.share - 1) / call.share, tasks = call.rows * parts;
    const bool single = !back && call.steps == 1 && !call.offsets && !call.kept && call.keys % kLanes<T> == 0;
    auto task = [&](Index i) {
        const Flush flush;
        if (single) {
            const Index first = i % parts * call.share, left = call.channels - first;
            return step<T>(call, i / parts, first, left < call.share ? left : call.share);
        }
        Share<T> share(call, i / parts, i % parts, back);
        back ? share.backward() : share.forward();
    };
    each_task(tasks, call.threads, task);
}

void serve(const int64_t* block, bool back) {
    const auto& call = *reinterpret_cast<const Scan*>(block);
    call.wide == Index(Element::kDouble) ? run<double>(call, back) : run<float>(call, back);
}

}  // namespace
}  // namespace lavagna

extern "C" __attribute__((visibility("default"))) void lavagna_selective_scan(const int64_t* block) {
    lavagna::serve(block, false);
}

extern "C" __attribute__((visibility("default"))) void lavagna_selective_scan_backward(const int64_t* block) {
    lavagna::serve(block, true);
}
