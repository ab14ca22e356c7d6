// The recurrence S_t = S_{t-1} A_t + v_t k_t^T, o_t = S_t q_t over whole calls: which rows and heads there are, where their
// states lie, and which loop serves them. Rows of values don't know of each other, so work is shared out by sequence, head and
// part of the values, and no sum depends on how many threads there are.
#include "backward.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace lavagna {
namespace {

// Steps from which on columns pay for turning the state; values from which on they fill a vector.
constexpr Index kFew = 8;
// Vectors of columns side by side: as many as the registers hold with what a step needs beside.
#if LAVAGNA_BYTES == 16
constexpr int kWide = 2;
#else
constexpr int kWide = 4;
#endif

// The state between calls, (values, keys) dense, and rows of it as loops have them.
template <class N>
class Memory {
  public:
    using T = typename N::Scalar;
    Memory(const Call& call, Index first, Index values)
        : call_(call), first_(first), values_(values), key_row_(row_size<N>(call.keys)) {}

    Index offset(Index row, Index head) const {
        return ((row * call_.heads + head) * call_.values + first_) * call_.keys * N::kParts;
    }

    // Rows (values, key_row), zero behind the last key, from a state.
    void take(const void* state, Index row, Index head, T* rows) const {
        const Index width = call_.keys * N::kParts;
        const T* from = (const T*)state + offset(row, head);
        for (Index r = 0; r < values_; ++r) {
            T* to = rows + r * key_row_;
            if constexpr (N::kParts == 1) {
                std::memcpy(to, from + r * width, width * sizeof(T));
                std::memset(to + width, 0, (key_row_ - width) * sizeof(T));
            } else {
                const Operand one{from + r * width, 0, 0, 0, 1, Index(sizeof(T) == 8), 1};
                pack<N>(to, one, 0, call_.keys);
            }
        }
    }

    void give(const T* rows, Index row, Index head, void* state) const {
        T* to = (T*)state + offset(row, head);
        for (Index r = 0; r < values_; ++r)
            unpack_row(N::zero(), to + r * call_.keys * N::kParts, rows + r * key_row_, call_.keys);
    }

  private:
    const Call& call_;
    const Index first_, values_, key_row_;
};

// The blocks of columns: kWide vectors each, then single ones. Calls back with (width, offset into a row, into the tiles).
template <class N, class Each>
inline void each_block(Index value_row, Index keys, Each each) {
    constexpr Index one = kLanes<typename N::Scalar> * N::kParts;
    Index at = 0;
    for (; at + kWide * one <= value_row; at += kWide * one) each(kWide, at, at * keys);
    for (; at < value_row; at += one) each(1, at, at * keys);
}

// Rows (values, key_row) to tiles of columns, or back.
template <class N, bool kBack>
void turn(typename N::Scalar* rows, typename N::Scalar* tiles, Index values, Index keys) {
    constexpr Index lanes = kLanes<typename N::Scalar>, one = lanes * N::kParts;
    const Index key_row = row_size<N>(keys), value_row = row_size<N>(values);
    if (!kBack) std::memset(tiles, 0, value_row * keys * sizeof(typename N::Scalar));
    each_block<N>(value_row, keys, [&](int width, Index at, Index tile) {
        const Index first = at / N::kParts;
        const Index some = values - first < width * lanes ? values - first : width * lanes;
        for (Index r = 0; r < some; ++r) {
            auto* row = rows + (first + r) * key_row;
            auto* column = tiles + tile + place<N>(r);
            for (Index i = 0; i < keys; ++i)
                for (int part = 0; part < N::kParts; ++part) {
                    auto &wide = row[place<N>(i) + part * lanes], &tall = column[i * width * one + part * lanes];
                    if (kBack)
                        wide = tall;
                    else
                        tall = wide;
                }
        }
    });
}

// The loops for one kind of transition, over many rows of values at once and over one.
template <class N>
struct Loops {
    using T = typename N::Scalar;
    using Fold = void (*)(const Segment<N>&, bool, Index, T*, T*, T*);
    using FoldRows = void (*)(const Segment<N>&, bool, Index, const T*, T*, T*, T*);
    using Recall = void (*)(const Segment<N>&, Index, const T*, T*);
    using Unfold = void (*)(const Segment<N>&, bool, Index, const T*, const T*, T*, const Gradients<N>&);

    bool decay;
    Rank rank;
    Fold columns, column;
    FoldRows rows, row;
    Recall recall_rows, recall_row;
    Unfold unfold_rows, unfold_row;

    template <bool kDecay, Rank kRank>
    static Loops of() {
        return {kDecay,
                kRank,
                fold_columns<N, kDecay, kRank, kWide>,
                fold_columns<N, kDecay, kRank, 1>,
                fold_rows<N, kDecay, kRank, 4>,
                fold_rows<N, kDecay, kRank, 1>,
                recall<N, kDecay, kRank, 4>,
                recall<N, kDecay, kRank, 1>,
                unfold<N, kDecay, kRank, 4>,
                unfold<N, kDecay, kRank, 1>};
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
        const Memory<N> memory(call, first, values);
        Segment<N> s(call, loops.decay, loops.rank, own.batch, head, first, values);
        if (call.steps == 1 && !call.offsets && !call.kept && N::kParts == 1 && s.key_row == call.keys) {
            const Index at = memory.offset(row, head);
            return step(s, (const T*)call.state + at, (T*)call.last + at);
        }
        Scratch<T> rows(values * s.key_row), tiles(s.value_row * call.keys);
        Scratch<T> output((call.segment + 1) * s.value_row), found(call.segment * s.value_row);
        memory.take(call.state, row, head, rows.get());
        const bool columns = values >= kLanes<T> && own.end - own.first >= kFew;
        if (columns) turn<N, false>(rows.get(), tiles.get(), values, call.keys);
        for (Index start = own.first, piece = 0; start < own.end; start += call.segment, ++piece) {
            const Index end = start + call.segment < own.end ? start + call.segment : own.end;
            if (call.kept) {
                if (columns) turn<N, true>(rows.get(), tiles.get(), values, call.keys);
                std::memcpy((T*)call.kept + kept_at(own, piece), rows.get(), values * s.key_row * sizeof(T));
            }
            s.bring(start, end);
            if (columns)
                each_block<N>(s.value_row, call.keys, [&](int width, Index at, Index tile) {
                    const auto fold = width == 1 ? loops.column : loops.columns;
                    fold(s, call.before, at, tiles.get() + tile, output.get(), found.get());
                });
            else
                each_rows([&](bool many, Index r) {
                    T* own = rows.get() + r * s.key_row;
                    (many ? loops.rows : loops.row)(s, call.before, r, own, own, output.get(), found.get());
                });
            for (Index i = 0; i < s.size; ++i) {
                const Index at = value_at(own.batch, s.time(i));
                unpack<N>(call.output, call.element, at, output.get() + i * s.value_row, values);
                if (call.found) unpack<N>(call.found, wide(), at, found.get() + i * s.value_row, values);
            }
        }
        if (columns) turn<N, true>(rows.get(), tiles.get(), values, call.keys);
        memory.give(rows.get(), row, head, call.last);
    }

    // A single step, which is bound by how fast the memory is read and written: from where it is given to where it goes, which
    // may be the same place, since four rows are read before they are written.
    void step(Segment<N>& s, const T* given, T* last) const {
        s.bring(0, 1);
        if (!s.size) {
            if (last != given) std::memcpy(last, given, values * s.key_row * sizeof(T));
            return;
        }
        Scratch<T> output(s.value_row), found(s.value_row);
        each_rows([&](bool many, Index r) {
            const Index at = r * s.key_row;
            (many ? loops.rows : loops.row)(s, call.before, r, given + at, last + at, output.get(), found.get());
        });
        unpack<N>(call.output, call.element, value_at(s.batch_, 0), output.get(), values);
    }

    static Index wide() { return Index(sizeof(T) == 8 ? Element::kDouble : Element::kFloat); }

    void backward(Index part) const {
        const Sequence own = sequence(call, row);
        const Memory<N> memory(call, first, values);
        Segment<N> s(call, loops.decay, loops.rank, own.batch, head, first, values);
        const Index keys = (call.segment + 1) * s.key_row, value_rows = (call.segment + 1) * s.value_row;
        Scratch<T> scratch(5 * keys + 3 * value_rows), gradient(values * s.key_row), states(4 * keys);
        T* at = scratch.get();
        Gradients<N> d{at, at + keys, at + 2 * keys, at + 3 * keys, at + 4 * keys, at + 5 * keys, at + 5 * keys + value_rows};
        T* found = d.output + value_rows;
        memory.take(call.d_last, row, head, gradient.get());
        const Index pieces = (own.end - own.first + call.segment - 1) / call.segment;
        for (Index piece = pieces - 1; piece >= 0; --piece) {
            const Index start = own.first + piece * call.segment;
            const Index end = start + call.segment < own.end ? start + call.segment : own.end;
            s.bring(start, end);
            bring(s, d, found);
            const T* kept = (const T*)call.kept + kept_at(own, piece);
            each_rows([&](bool many, Index r) {
                std::memcpy(states.get(), kept + r * s.key_row, (many ? 4 : 1) * s.key_row * sizeof(T));
                (many ? loops.recall_rows : loops.recall_row)(s, r, found, states.get());
                const auto back = many ? loops.unfold_rows : loops.unfold_row;
                back(s, call.before, r, found, states.get(), gradient.get() + r * s.key_row, d);
            });
            for (Index i = 0; i < s.size; ++i) finish(s, d, i, part);
        }
        memory.give(gradient.get(), row, head, call.d_state);
    }

  private:
    bool ranked() const { return loops.rank != Rank::kNone; }

    // The gradients of reads and what was found, and zeros to add the gradients of keys to.
    void bring(const Segment<N>& s, const Gradients<N>& d, T* found) const {
        std::memset(d.q, 0, 5 * (call.segment + 1) * s.key_row * sizeof(T));
        const Operand kept{call.found, call.steps * call.heads * call.values, call.heads * call.values,
                           call.values, 1, wide(), N::kParts == 2};
        for (Index i = 0; i < s.size; ++i) {
            const Index t = s.time(i);
            pack<N>(d.output + i * s.value_row, call.d_output, call.d_output.at(s.batch_, t, head) + first, values);
            if (ranked()) pack<N>(found + i * s.value_row, kept, kept.at(s.batch_, t, head) + first, values);
        }
        std::memset(d.output + s.size * s.value_row, 0, s.value_row * sizeof(T));
    }

    // Four rows of values at a time, then one; calls back with (whether four, the first of them).
    template <class Each>
    void each_rows(Each each) const {
        Index r = 0;
        for (; r + 4 <= values; r += 4) each(true, r);
        for (; r < values; ++r) each(false, r);
    }

    // From what a step did to what made it: rest and erase back to logarithm, strength, and direction.
    void finish(const Segment<N>& s, const Gradients<N>& d, Index i, Index part) const {
        constexpr Index one = kLanes<T> * N::kParts;
        const Index row = i * s.key_row, steps = call.batch() * call.steps;
        const Index at = (part * steps + s.batch_ * call.steps + s.time(i)) * call.heads + head;
        N strength = N::zero(), faint = N::zero();
        for (Index j = row; j < row + s.key_row; j += one) {
            N d_rest = N::load(d.rest + j);
            const N decay = loops.decay ? s.decay(i, j - row).conj() : N::zero();
            if (ranked() && call.decayed) {
                N beta = s.strength(i).conj(), d_erase = N::load(d.erase + j);
                const N right = N::load(s.right + j).conj();
                if (loops.decay) {
                    d_rest = add(d_erase * beta, right, d_rest);
                    d_erase = d_erase * decay;
                }
                strength = add(d_erase, right, strength);
                T* along = (loops.rank == Rank::kOwn ? d.right : d.k) + j;
                add(d_erase, beta, N::load(along)).store(along);
            } else if (ranked()) {
                (N::zero() - N::load(d.erase + j)).store(d.erase + j);
            }
            if (loops.decay) {
                d_rest = d_rest * decay;
                faint = faint + d_rest;
                d_rest.store(d.rest + j);
            }
        }
        unpack<N>(call.d_q, wide(), at * call.keys, d.q + row, call.keys);
        unpack<N>(call.d_k, wide(), at * call.keys, d.k + row, call.keys);
        unpack<N>(call.d_v, wide(), value_at(s.batch_, s.time(i)), d.v + i * s.value_row, values);
        if (loops.rank == Rank::kOwn) unpack<N>(call.d_right, wide(), at * call.keys, d.right + row, call.keys);
        if (loops.decay) {
            if (call.decays == 1) give_total(call.d_log_decay, at, faint);
            else unpack<N>(call.d_log_decay, wide(), at * call.keys, d.rest + row, call.keys);
        }
        if (ranked()) {
            if (call.decayed) give_total(call.d_erase, at, strength);
            else unpack<N>(call.d_erase, wide(), at * call.keys, d.erase + row, call.keys);
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
    const Index parts = call.parts;
    const Index share = (call.values + parts - 1) / parts, tasks = call.rows * call.heads * parts;
    auto task = [&](Index i) {
        const Index part = i % parts, head = i / parts % call.heads, row = i / parts / call.heads;
        const Index first = part * share, values = call.values - first < share ? call.values - first : share;
        const Recurrence<N> own{call, loops, row, head, first, values};
        back ? own.backward(part) : own.forward();
    };
    if (call.threads <= 1 || tasks == 1) {
        for (Index i = 0; i < tasks; ++i) task(i);
        return;
    }
#pragma omp parallel for schedule(dynamic) num_threads(call.threads)
    for (Index i = 0; i < tasks; ++i) task(i);
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
