// The recurrence S_t = S_{t-1} A_t + v_t k_t^T, o_t = S_t q_t over whole calls: which rows and heads there are, where their
// states lie, and which loop serves them. Rows of values don't know of each other, so work is shared out by sequence, head and
// part of the values, and no sum depends on how many threads there are.
#include <algorithm>

#include "backward.h"
#include "tasks.h"

namespace lavagna {
namespace {

// Steps from which on columns pay for turning the state; values from which on they fill a vector.
constexpr Index kFew = 8;
// Vectors of columns side by side: as many as the registers hold with what a step needs beside. Complex numbers, which are rare,
// take less here and below, because the compiler's time grows with it.
template <class N>
constexpr int kWide = LAVAGNA_BYTES == 16 || N::kParts == 2 ? 2 : 4;
// Values that stay together: a multiple of what a loop takes, so no value's loop depends on how many parts there are, which
// matters because a compiler may round two products and their sum in either order.
constexpr Index kBlock = 64;
// Rows of values side by side where a vector holds neighboring keys.
template <class N>
constexpr int kRows = LAVAGNA_BYTES == 64 && N::kParts == 1 ? 8 : 4;

// The state of some values of one head as rows that loops have, zero behind the last key: brought from a dense state
// (values, keys), and in the end given to another, in which it lies from the start if its rows are those of the loops.
template <class N>
class Memory {
  public:
    using T = typename N::Scalar;
    Memory(const Call& call, Index row, Index head, Index first, Index values, const void* from, void* to)
        : keys_(call.keys),
          values_(values),
          key_row_(row_size<N>(keys_)),
          to_((T*)to + offset(call, row, head, first)),
          there_(N::kParts == 1 && key_row_ == keys_),
          own_(there_ ? 0 : values * key_row_),
          rows(there_ ? to_ : own_.get()) {
        const T* given = (const T*)from + offset(call, row, head, first);
        // The very state may be given that is to be written.
        if (there_ && rows != given) std::memcpy(rows, given, values * keys_ * sizeof(T));
        const Operand all{given, 0, 0, 0, 1, wide_element<T>(), N::kParts == 2};
        for (Index r = 0; r < values && !there_; ++r) pack<N>(rows + r * key_row_, all, r * keys_, keys_);
    }

    void give() const {
        for (Index r = 0; r < values_ && !there_; ++r)
            unpack_row(N::zero(), to_ + r * keys_ * N::kParts, rows + r * key_row_, keys_);
    }

  private:
    static Index offset(const Call& call, Index row, Index head, Index first) {
        return ((row * call.heads + head) * call.values + first) * call.keys * N::kParts;
    }

    const Index keys_, values_, key_row_;
    T* const to_;
    const bool there_;
    const Scratch<T> own_;

  public:
    T* const rows;
};

// The blocks of columns: kWide<N> vectors each, then single ones. Calls back with (width, offset into a row, into the tiles).
template <class N, class Each>
inline void each_block(Index value_row, Index keys, Each each) {
    constexpr Index one = kLanes<typename N::Scalar> * N::kParts;
    Index at = 0;
    for (; at + kWide<N> * one <= value_row; at += kWide<N> * one) each(kWide<N>, at, at * keys);
    for (; at < value_row; at += one) each(1, at, at * keys);
}

// Rows (values, key_row) to tiles of columns, or back.
template <class N, bool kBack>
void turn(typename N::Scalar* rows, typename N::Scalar* tiles, Index values, Index keys) {
    constexpr Index lanes = kLanes<typename N::Scalar>, one = lanes * N::kParts;
    const Index key_row = row_size<N>(keys), value_row = row_size<N>(values);
    // Behind the last number lie zeros.
    if (!kBack) std::memset(tiles, 0, value_row * keys * sizeof(typename N::Scalar));
    if (kBack && keys % lanes) std::memset(rows, 0, values * key_row * sizeof(typename N::Scalar));
    each_block<N>(value_row, keys, [&](int width, Index at, Index tile) {
        const Index first = at / N::kParts;
        const Index some = values - first < width * lanes ? values - first : width * lanes;
        // Squares of as many numbers as a vector has, and number by number where none fits.
        using T = typename N::Scalar;
        constexpr Index side = kLanes<T>;
        for (Index r = 0; r < some; r += side)
            for (Index i = 0; i < keys; i += side)
                for (int part = 0; part < N::kParts; ++part) {
                    T* wide = rows + (first + r) * key_row + place<N>(i) + part * lanes;
                    T* tall = tiles + tile + place<N>(r) + i * width * one + part * lanes;
                    if (r + side <= some && i + side <= keys) {
                        Vector<T> square[side];
                        T* const from = kBack ? tall : wide;
                        T* const to = kBack ? wide : tall;
                        const Index apart = kBack ? width * one : key_row, to_apart = kBack ? key_row : width * one;
                        for (Index p = 0; p < side; ++p) square[p] = load_vector(from + p * apart);
                        transpose<T>(square);
                        for (Index p = 0; p < side; ++p) store_vector(to + p * to_apart, square[p]);
                        continue;
                    }
                    for (Index p = 0; p < side && r + p < some; ++p)
                        for (Index j = 0; j < side && i + j < keys; ++j) {
                            auto &here = wide[p * key_row + j], &there = tall[j * width * one + p];
                            (kBack ? here : there) = kBack ? there : here;
                        }
                }
    });
}

// The loops for one kind of transition, over many rows of values at once and over one.
template <class N>
struct Loops {
    using T = typename N::Scalar;
    using Fold = void (*)(const Segment<N>&, bool, Index, T*, const Reads<T>&);

    bool decay;
    Rank rank;
    Fold columns, column, rows, row;

    template <bool kDecay, Rank kRank>
    static Loops of() {
        return {kDecay,
                kRank,
                fold_columns<N, kDecay, kRank, kWide<N>>,
                fold_columns<N, kDecay, kRank, 1>,
                fold_rows<N, kDecay, kRank, kRows<N>>,
                fold_rows<N, kDecay, kRank, 1>};
    }

    static Loops for_call(const Call& call) {
        const Rank rank = !call.erase ? Rank::kNone : call.right ? Rank::kOwn : Rank::kShared;
        if constexpr (N::kParts == 2) {
            // Rare: a decay that keeps everything and a vector of its own serve where there is none.
            return rank == Rank::kNone ? of<true, Rank::kNone>() : of<true, Rank::kOwn>();
        } else if (call.log_decay) {
            if (rank == Rank::kNone) return of<true, Rank::kNone>();
            return rank == Rank::kShared ? of<true, Rank::kShared>() : of<true, Rank::kOwn>();
        } else {
            if (rank == Rank::kNone) return of<false, Rank::kNone>();
            return rank == Rank::kShared ? of<false, Rank::kShared>() : of<false, Rank::kOwn>();
        }
    }
};

template <class N>
struct Recurrence {
    using T = typename N::Scalar;
    const Call& call;
    const Loops<N>& loops;
    const Index row, head, first, values;

    Index kept_at(const Sequence& own, Index piece) const {
        return (((own.kept + piece) * call.heads + head) * call.values + first) * row_size<N>(call.keys);
    }
    Index value_at(Index batch, Index t) const {
        return ((batch * call.steps + t) * call.heads + head) * call.values + first;
    }

    void forward() const {
        const Sequence own = sequence(call, row);
        const Memory<N> memory(call, row, head, first, values, call.state, call.last);
        Segment<N> s(call, loops.decay, loops.rank, own.batch, head, first, values);
        // Of the whole head, so that no part of it goes another way.
        const bool columns = call.values >= kLanes<T> && own.end - own.first >= kFew;
        Scratch<T> tiles(columns ? s.value_row * call.keys : 0);
        Scratch<T> output((call.segment + 1) * s.value_row), found(call.segment * s.value_row);
        if (columns) turn<N, false>(memory.rows, tiles.get(), values, call.keys);
        for (Index start = own.first, piece = 0; start < own.end; start += call.segment, ++piece) {
            const Index end = start + call.segment < own.end ? start + call.segment : own.end;
            if (call.kept) {
                T* kept = (T*)call.kept + kept_at(own, piece);
                if (columns) turn<N, true>(kept, tiles.get(), values, call.keys);
                else std::memcpy(kept, memory.rows, values * s.key_row * sizeof(T));
            }
            s.bring(start, end);
            const Reads<T> to{given(s, call.output, call.element, output.get(), start, !call.before),
                              given(s, call.found, wide(), found.get(), start, call.found)};
            if (columns)
                each_block<N>(s.value_row, call.keys, [&](int width, Index at, Index tile) {
                    const auto fold = width == 1 ? loops.column : loops.columns;
                    fold(s, call.before, at, tiles.get() + tile, to);
                });
            else
                each_rows([&](Index count, Index r) {
                    const auto fold = count > 1 ? loops.rows : loops.row;
                    fold(s, call.before, r, memory.rows + r * s.key_row, to);
                });
            if (to.output.at == output.get()) take_back(s, call.output, call.element, to.output);
            if (call.found && to.found.at == found.get()) take_back(s, call.found, wide(), to.found);
        }
        if (columns) turn<N, true>(memory.rows, tiles.get(), values, call.keys);
        memory.give();
    }

    void backward(Index part) const {
        if (loops.rank == Rank::kNone) return backward<Rank::kNone>(part);
        if constexpr (N::kParts == 1)
            if (loops.rank == Rank::kShared) return backward<Rank::kShared>(part);
        backward<Rank::kOwn>(part);
    }

  private:
    template <Rank kRank>
    void backward(Index part) const {
        const Sequence own = sequence(call, row);
        const Memory<N> gradient(call, row, head, first, values, call.d_last, call.d_state);
        Segment<N> s(call, loops.decay, kRank, own.batch, head, first, values);
        Block<N, kRank> block(s, values, call.before);
        const Operand found{call.found, call.steps * call.heads * call.values, call.heads * call.values,
                            call.values, 1, wide(), N::kParts == 2};
        const Index whole = values * s.key_row, value_rows = call.segment * s.value_row;
        // States in front of each block of a segment, and rows of values that are not read where they lie.
        Scratch<T> states(call.segment * whole), rows(2 * value_rows);
        const auto state = [&](Index i) { return states.get() + i * whole; };
        const Index pieces = (own.end - own.first + call.segment - 1) / call.segment;
        for (Index piece = pieces - 1; piece >= 0; --piece) {
            const Index start = own.first + piece * call.segment;
            s.bring(start, std::min(start + call.segment, own.end));
            const Lines<const T> d_output = s.rows(call.d_output, rows.get(), first, values, start);
            Lines<const T> kept{};
            const bool grows = s.grows(), again = grows && ranked();
            if (again) kept = {rows.get() + value_rows, s.value_row};
            else if (ranked()) kept = s.rows(found, rows.get() + value_rows, first, values, start);
            const Index many = grows ? 1 : kSteps, blocks = (s.size + many - 1) / many;
            const auto bring = [&](Index i) { block.bring(i * many, std::min((i + 1) * many, s.size), kept); };
            const T* const given = (const T*)call.kept + kept_at(own, piece);
            for (Index i = 0; i < whole; i += kLanes<T> * N::kParts) N::load(given + i).conj().store(state(0) + i);
            for (Index i = 0; i < blocks; ++i) {
                if (again) find<kRank>(s, i, state(i), rows.get() + value_rows + i * s.value_row);
                if (i + 1 < blocks) bring(i), block.advance(state(i), state(i + 1));
            }
            for (Index i = blocks - 1; i >= 0; --i) {
                bring(i);
                block.back(d_output, state(i), gradient.rows);
                for (Index j = 0; j < block.count; ++j) finish(s, block, i * many + j, j, part);
            }
        }
        gradient.give();
    }

    // What step i finds in the state in front of it, conjugated as that comes here, or what is new beside it where it erases
    // along the key: what the forward pass found would differ from it by as much as rounding has grown since.
    template <Rank kRank>
    void find(const Segment<N>& s, Index i, const T* state, T* to) const {
        constexpr Index one = kLanes<T> * N::kParts;
        const Scratch<T> erase(s.key_row);
        for (Index j = 0; j < s.key_row; j += one) N::load(s.erase + i * s.key_row + j).conj().store(erase.get() + j);
        std::memset(to, 0, s.value_row * sizeof(T));
        over_keys<N>({state, values, s.key_row}, erase.get(), to);
        for (Index v = 0; v < s.value_row; v += one) {
            const N found = N::load(to + v).conj();
            (kRank == Rank::kShared ? N::load(s.v[i] + v) - found : found).store(to + v);
        }
    }

    static constexpr Index wide() { return wide_element<T>(); }

    // Rows of values for the fold to write: where they belong, if it can, else in `own`.
    Lines<T> given(const Segment<N>& s, void* to, Index element, T* own, Index start, bool there) const {
        if (there && lies_ready<N>(call, element, N::kParts == 2, values))
            return {(T*)to + value_at(s.batch_, start), call.heads * call.values};
        return {own, s.value_row};
    }

    void take_back(const Segment<N>& s, void* to, Index element, Lines<T> own) const {
        for (Index i = 0; i < s.size; ++i) unpack<N>(to, element, value_at(s.batch_, s.time(i)), own[i], values);
    }

    bool ranked() const { return loops.rank != Rank::kNone; }

    // Which row of gradients of keys belongs to a step.
    Index keys_at(Index batch, Index t, Index part) const {
        return ((part * call.batch() + batch) * call.steps + t) * call.heads + head;
    }

    // kRows<N> rows of values at a time, then one; calls back with (how many, the first of them).
    template <class Each>
    void each_rows(Each each) const {
        Index r = 0;
        for (; r + kRows<N> <= values; r += kRows<N>) each(kRows<N>, r);
        for (; r < values; ++r) each(1, r);
    }

    // From what step i of a segment, number `own` of a block, did to what made it: decay and erasure back to logarithm,
    // strength, and direction.
    template <class Block>
    void finish(const Segment<N>& s, const Block& d, Index i, Index own, Index part) const {
        constexpr Index one = kLanes<T> * N::kParts;
        const Index row = own * s.key_row, at = keys_at(s.batch_, s.time(i), part);
        // Along a vector of its own or the key, and what was looked for to erase, if anything.
        T *const d_along = d.d_y[Block::kWrites - 1] + row, *const d_erased = d.d_b[Block::kLooks - 1] + row;
        T* const d_decay = d.d_decay + row;
        N strength = N::zero(), faint = N::zero();
        for (Index j = 0; j < s.key_row; j += one) {
            N d_rest = loops.decay ? N::load(d_decay + j) : N::zero();
            const N decay = loops.decay ? s.decay(i, j).conj() : N::zero();
            if (ranked() && call.decayed) {
                N beta = s.strength(i).conj(), d_erase = N::load(d_erased + j);
                const N right = N::load(s.right[i] + j).conj();
                if (loops.decay) {
                    d_rest = add(d_erase * beta, right, d_rest);
                    d_erase = d_erase * decay;
                }
                strength = add(d_erase, right, strength);
                add(d_erase, beta, N::load(d_along + j)).store(d_along + j);
            } else if (ranked()) {
                (N::zero() - N::load(d_erased + j)).store(d_erased + j);
            }
            if (loops.decay) {
                d_rest = d_rest * decay;
                faint = faint + d_rest;
                d_rest.store(d_decay + j);
            }
        }
        unpack<N>(call.d_q, wide(), at * call.keys, d.d_b[0] + row, call.keys);
        unpack<N>(call.d_k, wide(), at * call.keys, d.d_y[0] + row, call.keys);
        unpack<N>(call.d_v, wide(), value_at(s.batch_, s.time(i)), d.d_x[0] + own * s.value_row, values);
        if (loops.rank == Rank::kOwn) unpack<N>(call.d_right, wide(), at * call.keys, d_along, call.keys);
        if (loops.decay) {
            if (call.decays == 1) give_total(call.d_log_decay, at, faint);
            else unpack<N>(call.d_log_decay, wide(), at * call.keys, d_decay, call.keys);
        }
        if (ranked()) {
            if (call.decayed) give_total(call.d_erase, at, strength);
            else unpack<N>(call.d_erase, wide(), at * call.keys, d_erased, call.keys);
        }
    }

    // One number for a head and step: the sum over the lanes.
    static void give_total(void* to, Index at, N lanes) {
        T total[N::kParts], row[kLanes<T> * N::kParts] = {};
        sums<1>(&lanes, total);
        put<N, 1>(row, 0, total);
        unpack<N>(to, wide(), at, row, 1);
    }
};

// Every sequence, head and part of the values, on its own.
template <class N>
void run(const Call& call, bool back) {
    const Loops<N> loops = Loops<N>::for_call(call);
    const Index parts = call.parts, blocks = (call.values + kBlock - 1) / kBlock;
    const Index tasks = call.rows * call.heads * parts;
    // Blocks of values as even as can be: there are at least as many of them as parts, so that none is empty.
    auto start = [&](Index part) { return std::min(part * blocks / parts * kBlock, call.values); };
    auto task = [&](Index i) {
        const Index part = i % parts, head = i / parts % call.heads, row = i / parts / call.heads;
        const Index first = start(part), values = start(part + 1) - first;
        const Recurrence<N> own{call, loops, row, head, first, values};
        const Flush flush;
        back ? own.backward(part) : own.forward();
    };
    each_task(tasks, call.threads, task);
}

void serve(const Call& call, bool back) {
#ifdef LAVAGNA_ONLY_FLOAT
    // The checked build: all is one template, and this takes a quarter of the time to compile.
    run<Real<float>>(call, back);
#else
    const bool twice = call.element == Index(Element::kDouble);
    if (call.complex)
        twice ? run<Complex<double>>(call, back) : run<Complex<float>>(call, back);
    else
        twice ? run<Real<double>>(call, back) : run<Real<float>>(call, back);
#endif
}

}  // namespace
}  // namespace lavagna

extern "C" __attribute__((visibility("default"))) void lavagna_recurrence(const int64_t* block) {
    const auto& call = *reinterpret_cast<const lavagna::Call*>(block);
    lavagna::serve(call, false);
}

extern "C" __attribute__((visibility("default"))) void lavagna_recurrence_backward(const int64_t* block) {
    const auto& call = *reinterpret_cast<const lavagna::Call*>(block);
    lavagna::serve(call, true);
}
