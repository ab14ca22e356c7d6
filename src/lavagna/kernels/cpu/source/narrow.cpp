// The recurrence over whole calls where memories are narrow and heads many. Step by step over wide shares of the heads, as a call
// lies in memory: what comes and goes passes through once, and only the memory stays. Work is shared out by sequence and
// share; sums over heads are given apart for each share, so that none depends on how many threads there are.
#include "narrow.h"
#include "tasks.h"

#include <type_traits>

namespace lavagna {
namespace {

struct Narrow {
    // Sizes. `decays` is the last axis of log_decay, 0 without one; `segment` steps lie between two kept states; a task has `share`
    // heads, or the last ones that fill no vector; `padded` heads have room in `kept`.
    Index rows, steps, heads, keys, values, decays, segment, share, padded, threads;
    // Choices. `shared`: q and k have one head for all. `constant`: log_decay has one step for all.
    Index wide, complex, element, before, shared, constant;
    const Index* offsets;
    const uint8_t* mask;
    // `beta` of what is found along the key is erased, if it is there.
    Operand q, k, v, log_decay, step, beta, d_output;
    // (rows, heads, values, keys), dense in the wide dtype, as all that follows is but for the output.
    const void* state;
    void *last, *output, *kept;
    const void* d_last;
    // Null where not wanted. Those of shared keys come once for each share, (shares, b, t, keys); that of a constant
    // log_decay once for each row, (rows, heads, decays).
    void *d_q, *d_k, *d_v, *d_log_decay, *d_step, *d_beta, *d_state;
};

template <class Each>
inline void choose(bool flag, Each each) {
    flag ? each(std::true_type{}) : each(std::false_type{});
}

// Some neighboring heads of one sequence.
template <class N>
class Heads {
  public:
    using T = typename N::Scalar;
    static constexpr Index kOne = kLanes<T> * N::kParts;

    // Parts are shares of whole vectors, then the heads that fill none.
    static Index parts(const Narrow& call) {
        const Index whole = call.heads / kLanes<T> * kLanes<T>;
        return (whole + call.share - 1) / call.share + (whole < call.heads);
    }

    Heads(const Narrow& call, Index row, Index part, bool back)
        : call_(call),
          own_(sequence(call, row)),
          row_(row),
          part_(part),
          first_(first(call, part)),
          count_(count(call, first_)),
          full_(count_ % kLanes<T> == 0),
          extent_{(count_ + kLanes<T> - 1) / kLanes<T>, call.keys, call.values, call.decays ? call.decays : 1},
          numbers_(call.keys * call.values),
          tile_(extent_.blocks * numbers_ * kOne),
          key_row_((call.shared ? 1 : extent_.blocks) * call.keys * kOne),
          value_row_(extent_.blocks * call.values * kOne),
          decay_row_(extent_.blocks * extent_.decays * kOne),
          slots_(back ? call.segment : 1),
          fixed_(!call.log_decay || (!call.log_decay.time && !call.step)),
          scratch_(size(back)),
          index_(slots_),
          at_(scratch_.get()) {
        memory_ = next(tile_), log_ = next(decay_row_), spare_ = next(value_row_), one_ = next(extent_.blocks * kOne);
        wide_ = next(count_ * (numbers_ > extent_.decays ? numbers_ : extent_.decays) * N::kParts);
        q_ = next(slots_ * key_row_), k_ = next(slots_ * key_row_), v_ = next(slots_ * value_row_);
        x_ = next(slots_ * decay_row_);
        const Index splits = fixed_ ? 1 : slots_;
        rest_ = next(splits * decay_row_), keep_ = next(splits * decay_row_);
        beta_ = next(slots_ * extent_.blocks * kOne);
        // Of no steps there is nothing to read.
        if (own_.first < own_.end) {
            for (auto [x, room] : {std::pair(&call.q, q_), std::pair(&call.k, k_)})
                if (!x->time && call.shared) pack<N>(room, *x, x->at(own_.batch, 0, 0), call.keys);
                else if (!x->time) take(room, *x, x->at(own_.batch, 0, 0), call.keys);
            if (fixed_) fix();
            else if (!call.log_decay.time) take(log_, call.log_decay, call.log_decay.at(own_.batch, 0, 0), extent_.decays);
        }
        if (!back) return;
        states_ = next((slots_ + 1) * tile_), d_output_ = next(slots_ * value_row_);
        d_q_ = next(key_row_ + kOne), d_k_ = next(key_row_ + kOne), d_x_ = next(decay_row_), d_log_ = next(decay_row_);
        d_one_ = next(extent_.blocks * kOne), d_beta_ = next(extent_.blocks * kOne);
        steps_ = next(slots_ * extent_.blocks * kOne);
    }

    void forward() {
        take(memory_, state_of(call_.state), 0, numbers_);
        const bool logs = N::kParts == 1 && !fixed_ && unit();
        for (Index start = own_.first, piece = 0; start < own_.end; start += call_.segment, ++piece) {
            const Index end = start + call_.segment < own_.end ? start + call_.segment : own_.end;
            if (call_.kept) std::memcpy(kept(piece), memory_, tile_ * sizeof(T));
            for (Index t = start; t < end; ++t) {
                if (masked(t)) continue;
                const Step<N> step = bring(0, t, logs);
                T* const direct = row_of(call_.output, call_.element, call_.values, t);
                T* const output = direct ? direct : spare_;
                choose_fold(logs, step, output);
                if (!direct) give(call_.output, call_.element, place_of(t), output, call_.values);
            }
        }
        give(call_.last, wide(), row_ * call_.heads + first_, memory_, numbers_);
    }

    void backward() {
        take(memory_, state_of(call_.d_last), 0, numbers_);
        std::memset(d_log_, 0, decay_row_ * sizeof(T));
        const Index pieces = (own_.end - own_.first + call_.segment - 1) / call_.segment;
        for (Index piece = pieces - 1; piece >= 0; --piece) {
            const Index start = own_.first + piece * call_.segment;
            const Index end = start + call_.segment < own_.end ? start + call_.segment : own_.end;
            Index size = 0;
            std::memcpy(states_, kept(piece), tile_ * sizeof(T));
            for (Index t = start; t < end; ++t) {
                if (masked(t)) continue;
                const Index slot = size++;
                index_.get()[slot] = t;
                T* const state = states_ + slot * tile_;
                each_kind([&](auto shared, auto unit, auto erase) {
                    fold_heads<N, Read::kNone, false, decltype(shared)::value, decltype(unit)::value, decltype(erase)::value>(
                        extent_, bring(slot, t, false), state, state + tile_, nullptr);
                });
            }
            while (size--) unfold(size, index_.get()[size]);
        }
        if (call_.d_state) give(call_.d_state, wide(), row_ * call_.heads + first_, memory_, numbers_);
        if (call_.d_log_decay && call_.constant)
            give(call_.d_log_decay, wide(), row_ * call_.heads + first_, d_log_, extent_.decays);
    }

  private:
    static Index first(const Narrow& call, Index part) {
        const Index whole = call.heads / kLanes<T> * kLanes<T>;
        return part * call.share < whole ? part * call.share : whole;
    }
    static Index count(const Narrow& call, Index first) {
        const Index whole = call.heads / kLanes<T> * kLanes<T>, left = (first < whole ? whole : call.heads) - first;
        return left < call.share ? left : call.share;
    }
    static Index wide() { return Index(sizeof(T) == 8 ? Element::kDouble : Element::kFloat); }

    Index size(bool back) const {
        const Index single = extent_.blocks * kOne;
        const Index most = numbers_ > extent_.decays ? numbers_ : extent_.decays;
        const Index both = tile_ + 3 * decay_row_ + value_row_ + single + count_ * most * N::kParts +
                           slots_ * (2 * key_row_ + value_row_ + 3 * decay_row_ + single);
        const Index more = (slots_ + 1) * tile_ + slots_ * (value_row_ + single) + 2 * (key_row_ + kOne + decay_row_ + single);
        return both + (back ? more : 0) + 24 * Index(64 / sizeof(T));
    }

    // Room on a line of its own.
    T* next(Index count) {
        constexpr Index line = 64 / sizeof(T);
        T* here = at_;
        at_ += (count + line - 1) / line * line;
        return here;
    }

    bool unit() const { return numbers_ == 1 && !call_.beta; }
    bool masked(Index t) const { return call_.mask && !call_.mask[own_.batch * call_.steps + t]; }
    // The first of these heads at step t, counted in heads.
    Index place_of(Index t) const { return (own_.batch * call_.steps + t) * call_.heads + first_; }
    T* kept(Index piece) const {
        return (T*)call_.kept + ((own_.kept + piece) * call_.padded + first_) * numbers_ * N::kParts;
    }
    // Of a dense tensor of the wide dtype with n numbers a head: where a row of these heads may be written as it is, or null.
    T* row_of(void* to, Index element, Index n, Index t) const {
        const bool same = N::kParts == 1 && n == 1 && full_ && element == wide();
        return to && same ? (T*)to + place_of(t) : nullptr;
    }

    template <class Each>
    void each_kind(Each each) const {
        choose(call_.shared, [&](auto shared) {
            if (call_.beta) each(shared, std::false_type{}, std::true_type{});
            else choose(unit(), [&](auto unit) { each(shared, unit, std::false_type{}); });
        });
    }

    void choose_fold(bool logs, const Step<N>& step, T* output) {
        choose(call_.before, [&](auto before) {
            each_kind([&](auto shared, auto unit, auto erase) {
                constexpr Read read = decltype(before)::value ? Read::kBefore : Read::kAfter;
                constexpr bool one_head = decltype(shared)::value, one_number = decltype(unit)::value;
                if constexpr (N::kParts == 1 && one_number) {
                    if (logs) return fold_heads<N, read, true, one_head, true, false>(extent_, step, memory_, memory_, output);
                }
                fold_heads<N, read, false, one_head, one_number, decltype(erase)::value>(extent_, step, memory_, memory_, output);
            });
        });
    }

    // Rows of step t, those that must be brought to another layout in `slot`.
    Step<N> bring(Index slot, Index t, bool logs) {
        Step<N> s{keys(call_.q, t, q_ + slot * key_row_), keys(call_.k, t, k_ + slot * key_row_),
                  row(call_.v, t, call_.values, v_ + slot * value_row_), nullptr, nullptr, rest_, keep_};
        if (call_.beta) s.beta = row(call_.beta, t, 1, beta_ + slot * extent_.blocks * kOne);
        if (!fixed_) s = with_decay(s, slot, t, logs);
        return s;
    }
    // The same rows again.
    Step<N> brought(Index slot, Index t) const {
        Step<N> s{keys(call_.q, t, nullptr, q_ + slot * key_row_), keys(call_.k, t, nullptr, k_ + slot * key_row_),
                  row(call_.v, t, call_.values, nullptr, v_ + slot * value_row_), nullptr, nullptr, rest_, keep_};
        if (call_.beta) s.beta = row(call_.beta, t, 1, nullptr, beta_ + slot * extent_.blocks * kOne);
        if (!fixed_) s.rest += slot * decay_row_, s.keep += slot * decay_row_;
        return s;
    }

    Step<N> with_decay(Step<N> s, Index slot, Index t, bool logs) {
        const Index decays = extent_.decays;
        T *const x = x_ + slot * decay_row_, *const rest = rest_ + slot * decay_row_, *const keep = keep_ + slot * decay_row_;
        s.x = rates(t, x), s.rest = rest, s.keep = keep;
        if (call_.step) {
            const T* const step = row(call_.step, t, 1, steps_ ? steps_ + slot * extent_.blocks * kOne : one_);
            for (Index j = 0; j < extent_.blocks; ++j)
                for (Index n = j * decays; n < (j + 1) * decays; ++n)
                    (finite(number_of<N>(s.x, n)) * number_of<N>(step, j)).store(rest + n * kOne);
            s.x = rest;
        }
        if (!logs) split_decays(N::zero(), s.x, rest, keep, decay_row_);
        return s;
    }

    // Decays that are the same at all steps, or none.
    void fix() {
        if (call_.log_decay) {
            take(rest_, call_.log_decay, call_.log_decay.at(own_.batch, 0, 0), extent_.decays);
            split_decays(N::zero(), rest_, rest_, keep_, decay_row_);
            return;
        }
        std::memset(rest_, 0, decay_row_ * sizeof(T));
        std::memset(keep_, 0xff, decay_row_ * sizeof(T));
    }

    const T* keys(const Operand& x, Index t, T* room, const T* known = nullptr) const {
        if (!x.time) return &x == &call_.q ? q_ : k_;
        if (!call_.shared) return row(x, t, call_.keys, room, known);
        if (room) pack<N>(room, x, x.at(own_.batch, t, 0), call_.keys);
        return room ? room : known;
    }

    const T* rates(Index t, T* room, const T* known = nullptr) const {
        return call_.log_decay.time ? row(call_.log_decay, t, extent_.decays, room, known) : log_;
    }

    // n numbers of each head of an operand at step t: where they lie, if they lie so already, else in `room`, or as `known`
    // from the last time.
    const T* row(const Operand& x, Index t, Index n, T* room, const T* known = nullptr) const {
        const bool same = N::kParts == 1 && n == 1 && full_ && x.element == wide() && x.head == 1 && x.group == 1;
        if (same) return (const T*)x.data + x.at(own_.batch, t, first_);
        if (room) take(room, x, x.at(own_.batch, t, 0), n);
        return room ? room : known;
    }

    Operand state_of(const void* state) const {
        return {(const T*)state + row_ * call_.heads * numbers_ * N::kParts, 0, 0, numbers_, 1, wide(), N::kParts == 2};
    }

    // n numbers of each head, those of head 0 from `offset` on, zero behind the last head.
    void take(T* to, const Operand& x, Index offset, Index n) const {
        if (n == 1 && x.head == 1 && x.group == 1) return pack<N>(to, x, offset + first_, count_);
        if (!full_) std::memset(to, 0, extent_.blocks * n * kOne * sizeof(T));
        if (x.element == Index(Element::kFloat)) spread(to, (const float*)x.data, x, offset, n);
        else if (x.element == Index(Element::kDouble)) spread(to, (const double*)x.data, x, offset, n);
        else spread(to, (const uint16_t*)x.data, x, offset, n);
    }
    template <class From>
    void spread(T* to, const From* from, const Operand& x, Index offset, Index n) const {
        const Index width = x.complex ? 2 : 1, squares = squares_of(x, n);
        if (squares)
            for (Index j = 0; j < extent_.blocks; ++j)
                turn_in(to + j * n * kOne, (const T*)from + offset + (first_ + j * kLanes<T>) * x.head, x.head, squares);
        if (squares == n) return;
        for (Index i = 0; i < count_; ++i) {
            const From* at = from + (offset + (x.group == 1 ? first_ + i : (first_ + i) / x.group) * x.head) * width;
            T* lane = to + i / kLanes<T> * n * kOne + i % kLanes<T>;
            at += squares * width, lane += squares * kOne;
            for (Index m = squares; m < n; ++m, at += width, lane += kOne) {
                convert(lane, at, 1);
                if constexpr (N::kParts == 2) {
                    if (x.complex) convert(lane + kLanes<T>, at + 1, 1);
                    else lane[kLanes<T>] = 0;
                }
            }
        }
    }

    // How many of n numbers a head may be turned square by square.
    Index squares_of(const Operand& x, Index n) const {
        const bool same = N::kParts == 1 && x.element == wide() && x.group == 1 && full_;
        return same ? n / kLanes<T> * kLanes<T> : 0;
    }
    static void turn_in(T* to, const T* from, Index stride, Index n) {
        for (Index m = 0; m < n; m += kLanes<T>) {
            Vector<T> square[kLanes<T>];
            for (Index lane = 0; lane < kLanes<T>; ++lane) square[lane] = load_vector(from + lane * stride + m);
            transpose<T>(square);
            std::memcpy(to + m * kOne, square, sizeof square);
        }
    }
    static void turn_out(T* to, const T* from, Index stride, Index n) {
        for (Index m = 0; m < n; m += kLanes<T>) {
            Vector<T> square[kLanes<T>];
            std::memcpy(square, from + m * kOne, sizeof square);
            transpose<T>(square);
            for (Index lane = 0; lane < kLanes<T>; ++lane) store_vector(to + lane * stride + m, square[lane]);
        }
    }

    // A row to where n numbers a head lie densely, `head` heads in.
    void give(void* to, Index element, Index head, const T* row, Index n) const {
        if (n == 1) return unpack<N>(to, element, head, row, count_);
        const bool narrow = element == Index(Element::kBfloat);
        const Index squares = N::kParts == 1 && full_ ? n / kLanes<T> * kLanes<T> : 0;
        T* const dense = narrow ? wide_ : (T*)to + head * n * N::kParts;
        if (squares)
            for (Index j = 0; j < extent_.blocks; ++j) turn_out(dense + j * kLanes<T> * n, row + j * n * kOne, n, squares);
        for (Index i = 0; i < count_ && squares < n; ++i) {
            const T* lane = row + i / kLanes<T> * n * kOne + i % kLanes<T>;
            lane += squares * kOne;
            for (Index m = squares; m < n; ++m, lane += kOne)
                for (int part = 0; part < N::kParts; ++part)
                    dense[(i * n + m) * N::kParts + part] = lane[part * kLanes<T>];
        }
        if (narrow) unpack_bfloat((uint16_t*)to + head * n, wide_, count_ * n);
    }

    void unfold(Index slot, Index t) {
        const Step<N> s = brought(slot, t);
        T* const d_v = row_of(call_.d_v, wide(), call_.values, t);
        T* const d_x = call_.constant || call_.step ? nullptr : row_of(call_.d_log_decay, wide(), extent_.decays, t);
        const Back<N> d{row(call_.d_output, t, call_.values, d_output_), states_ + slot * tile_, states_ + (slot + 1) * tile_,
                        memory_, d_v ? d_v : spare_, d_x ? d_x : d_x_, d_q_, d_k_, d_beta_};
        const bool keys = call_.d_q || call_.d_k;
        if (keys && call_.shared) std::memset(d_q_, 0, key_row_ * sizeof(T)), std::memset(d_k_, 0, key_row_ * sizeof(T));
        choose(call_.before, [&](auto before) {
            choose(keys, [&](auto keys) {
                each_kind([&](auto shared, auto unit, auto erase) {
                    unfold_heads<N, decltype(before)::value, decltype(keys)::value, decltype(shared)::value,
                                 decltype(unit)::value, decltype(erase)::value>(extent_, s, d);
                });
            });
        });
        if (!d_v && call_.d_v) give(call_.d_v, wide(), place_of(t), d.d_v, call_.values);
        if (call_.d_q) give_keys(call_.d_q, t, d_q_);
        if (call_.d_k) give_keys(call_.d_k, t, d_k_);
        if (call_.d_beta) give(call_.d_beta, wide(), place_of(t), d_beta_, 1);
        if (call_.log_decay) give_decay(slot, t, d.d_x, !d_x);
    }

    void give_keys(void* to, Index t, const T* row) {
        if (!call_.shared) return give(to, wide(), place_of(t), row, call_.keys);
        const Index batch = call_.offsets ? 1 : call_.rows;
        T* out = (T*)to + ((part_ * batch + own_.batch) * call_.steps + t) * call_.keys * N::kParts;
        for (Index n = 0; n < call_.keys; ++n)
            for (int part = 0; part < N::kParts; ++part) *out++ = sum<T>(load_vector(row + n * kOne + part * kLanes<T>));
    }

    // From the gradient of a step times a rate to theirs.
    void give_decay(Index slot, Index t, T* d_x, bool given) {
        const Index decays = extent_.decays;
        if (call_.step) {
            const T* const x = rates(t, nullptr, x_ + slot * decay_row_);
            const T* const step = row(call_.step, t, 1, nullptr, steps_ + slot * extent_.blocks * kOne);
            for (Index j = 0; j < extent_.blocks; ++j) {
                N total = N::zero();
                const N by = number_of<N>(step, j).conj();
                for (Index n = j * decays; n < (j + 1) * decays; ++n) {
                    const N gradient = number_of<N>(d_x, n);
                    total = add(finite(number_of<N>(x, n)).conj(), gradient, total);
                    (gradient * by).store(d_x + n * kOne);
                }
                total.store(d_one_ + j * kOne);
            }
            if (call_.d_step) give(call_.d_step, wide(), place_of(t), d_one_, 1);
        }
        if (call_.constant)
            for (Index i = 0; i < decay_row_; i += kOne) (N::load(d_log_ + i) + N::load(d_x + i)).store(d_log_ + i);
        else if (given && call_.d_log_decay) give(call_.d_log_decay, wide(), place_of(t), d_x, decays);
    }

    const Narrow& call_;
    const Sequence own_;
    const Index row_, part_, first_, count_;
    const bool full_;
    const Extent extent_;
    const Index numbers_, tile_, key_row_, value_row_, decay_row_, slots_;
    // Whether all steps have the same decays.
    const bool fixed_;
    Scratch<T> scratch_;
    Scratch<Index> index_;
    T* at_;
    T *memory_, *log_, *spare_, *one_, *wide_, *q_, *k_, *v_, *x_, *rest_, *keep_, *beta_;
    T *states_ = nullptr, *d_output_ = nullptr, *d_q_ = nullptr, *d_k_ = nullptr, *d_x_ = nullptr, *d_log_ = nullptr;
    T *d_one_ = nullptr, *d_beta_ = nullptr, *steps_ = nullptr;
};

template <class N>
void run(const Narrow& call, bool back) {
    const Index parts = Heads<N>::parts(call), tasks = call.rows * parts;
    auto task = [&](Index i) {
        const Flush flush;
        Heads<N> heads(call, i / parts, i % parts, back);
        back ? heads.backward() : heads.forward();
    };
    each_task(tasks, call.threads, task);
}

void serve(const int64_t* block, bool back) {
    const auto& call = *reinterpret_cast<const Narrow*>(block);
#ifdef LAVAGNA_ONLY_FLOAT
    run<Real<float>>(call, back);
#else
    const bool twice = call.wide == Index(Element::kDouble);
    if (call.complex)
        twice ? run<Complex<double>>(call, back) : run<Complex<float>>(call, back);
    else
        twice ? run<Real<double>>(call, back) : run<Real<float>>(call, back);
#endif
}

}  // namespace
}  // namespace lavagna

extern "C" __attribute__((visibility("default"))) void lavagna_narrow_recurrence(const int64_t* block) { lavagna::serve(block, false); }

extern "C" __attribute__((visibility("default"))) void lavagna_narrow_recurrence_backward(const int64_t* block) {
    lavagna::serve(block, true);
}
