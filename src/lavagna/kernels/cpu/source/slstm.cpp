// sLSTM's cells over whole calls: gates, cells and the mixing of a head in one loop over the steps, forward and back.
// Heads and sequences don't know of each other; a task is a head of some sequences, which share what is loaded of its matrix.
#include "slstm.h"

#include <algorithm>

#include "pack.h"
#include "tasks.h"

namespace lavagna {
namespace {

struct Cells {
    // Sizes: `padded` cells of a head have room in `kept`.
    Index rows, steps, heads, size, padded, threads, wide;
    // Borders of packed sequences, or null; which steps are real, or null.
    const Index* offsets;
    const uint8_t* mask;
    // (b, t, heads, size): what the gates are given.
    Operand i, f, z, o, d_shown;
    // (4, heads, size), (heads, 4 size, size), (rows, heads, size), all dense in the wide dtype, as what is returned is.
    const void *bias, *mixing, *hidden, *cell, *normalizer, *stabilizer;
    void *last_hidden, *last_cell, *last_normalizer, *last_stabilizer, *shown;
    // For the gradients: (heads, b, t, 7, padded), and what was shown before each step, (heads, b, t, size).
    void *kept, *met;
    // Gradients that come, and those that go: of what the gates were given (heads, b, t, 4, size).
    const void *d_last_hidden, *d_last_cell, *d_last_normalizer, *d_last_stabilizer;
    void *d_given, *d_hidden, *d_cell, *d_normalizer, *d_stabilizer;

    Index batch() const { return offsets ? 1 : rows; }
};

// One head of some rows.
template <class T>
class Head {
    static constexpr Index kWidth = kLanes<T>, kPlaces = 7;

  public:
    Head(const Cells& call, Index head, Index first, Index count, bool back)
        : call_(call),
          head_(head),
          size_(call.size),
          padded_(call.padded),
          count_(count),
          // Few steps of whole vectors read the matrix as it lies: to bring it to panels would take longer.
          direct_(!back && size_ == padded_ && call.steps <= 4),
          scratch_((direct_ ? 0 : kGates * padded_ * size_) + (3 + 3 * kGates) * padded_ * count_ + kGates * padded_),
          index_(call.offsets ? call.steps : call.steps * count_) {
        T* at = scratch_.get();
        auto next = [&](Index count) { return (at += count) - count; };
        panels_ = next(direct_ ? 0 : kGates * padded_ * size_), bias_ = next(kGates * padded_);
        bring_rows(first);
        for (Index r = 0; r < count_; ++r) {
            Row& row = rows_[r];
            row.c = next(padded_), row.n = next(padded_), row.m = next(padded_);
            row.given = next(kGates * padded_), row.h[0] = next(kGates * padded_), row.h[1] = next(kGates * padded_);
        }
        if (!direct_) back ? bring_back() : bring_across();
    }

    void forward() {
        for (Index g = 0; g < kGates; ++g)
            bring(bias_ + g * padded_, (const T*)call_.bias + (g * call_.heads + head_) * size_);
        for (Index r = 0; r < count_; ++r) {
            Row& row = rows_[r];
            bring(row.h[0], state(call_.hidden, row)), bring(row.c, state(call_.cell, row));
            bring(row.n, state(call_.normalizer, row)), bring(row.m, state(call_.stabilizer, row));
        }
        Index active = count_;
        for (Index j = 0;; ++j) {
            while (active && rows_[active - 1].steps == j) --active;
            if (!active) break;
            for (Index r = 0; r < active; ++r) begin(rows_[r], j);
            for (Index at = 0; at < padded_; at += kWidth) {
                const T* now[kBeside];
                Four<T> raw[kBeside];
                for (Index r = 0; r < active; ++r) now[r] = rows_[r].h[j & 1], raw[r] = four(rows_[r].given + at);
                if (!direct_) mix_rows<T, true>(panels_ + at * kGates * size_, now, active, size_, 0, raw);
                for (Index r = 0; r < active; ++r) {
                    if (direct_) add_direct(raw[r], now[r], at);
                    advance(rows_[r], raw[r], j, at);
                }
            }
            for (Index r = 0; r < active; ++r) give(shown(rows_[r].at[j]), rows_[r].h[(j + 1) & 1]);
        }
        for (Index r = 0; r < count_; ++r) {
            const Row& row = rows_[r];
            give(state(call_.last_hidden, row), row.h[row.steps & 1]), give(state(call_.last_cell, row), row.c);
            give(state(call_.last_normalizer, row), row.n), give(state(call_.last_stabilizer, row), row.m);
        }
    }

    void backward() {
        for (Index r = 0; r < count_; ++r) {
            Row& row = rows_[r];
            bring(row.c, state(call_.d_last_cell, row)), bring(row.n, state(call_.d_last_normalizer, row));
            bring(row.m, state(call_.d_last_stabilizer, row));
        }
        // Rows are sorted, the longest first: those that have a step after this one stand in front.
        Index after = 0, active = 0;
        for (Index j = rows_[0].steps - 1; j >= 0; --j, after = active) {
            while (active < count_ && rows_[active].steps > j) ++active;
            for (Index r = 0; r < active; ++r) {
                const Index t = rows_[r].at[j];
                read(rows_[r].given, call_.d_shown, call_.d_shown.at(t / call_.steps, t % call_.steps, head_), size_);
                std::memset(rows_[r].given + size_, 0, (padded_ - size_) * sizeof(T));
            }
            for (Index r = after; r < active; ++r) add_last(rows_[r], rows_[r].given);
            for (Index at = 0; at < padded_; at += kWidth) {
                Four<T> d[kBeside] = {};
                mix_after(j, at, after, d);
                for (Index r = 0; r < active; ++r) retreat(rows_[r], d[r], j, at);
            }
            for (Index r = 0; r < active; ++r) give_gates(rows_[r], j);
        }
        for (Index r = after; r < count_; ++r) {
            bring(rows_[r].given, state(call_.d_last_hidden, rows_[r]));
            give(state(call_.d_hidden, rows_[r]), rows_[r].given);
        }
        for (Index at = 0; at < padded_; at += kWidth) {
            Four<T> d[kBeside] = {};
            mix_after(-1, at, after, d);
            for (Index r = 0; r < after; ++r) store_vector(rows_[r].given + at, (d[r].i + d[r].f) + (d[r].z + d[r].o));
        }
        for (Index r = 0; r < count_; ++r) {
            const Row& row = rows_[r];
            if (r < after) give(state(call_.d_hidden, row), row.given);
            give(state(call_.d_cell, row), row.c), give(state(call_.d_normalizer, row), row.n);
            give(state(call_.d_stabilizer, row), row.m);
        }
    }

  private:
    // A sequence: where its real steps lie among all, and its numbers; `h` has room for four gates.
    struct Row {
        Index row, steps;
        const Index* at;
        T *c, *n, *m, *given, *h[2];
    };

    void bring_rows(Index first) {
        Index* to = index_.get();
        for (Index r = 0; r < count_; ++r) {
            const Index row = first + r, batch = call_.offsets ? 0 : row;
            const Index start = call_.offsets ? call_.offsets[row] : 0, end = call_.offsets ? call_.offsets[row + 1] : call_.steps;
            rows_[r].row = row, rows_[r].at = to;
            for (Index t = start; t < end; ++t)
                if (!call_.mask || call_.mask[batch * call_.steps + t]) *to++ = batch * call_.steps + t;
            rows_[r].steps = to - rows_[r].at;
        }
        std::stable_sort(rows_, rows_ + count_, [](const Row& a, const Row& b) { return a.steps > b.steps; });
    }

    const T* matrix() const { return (const T*)call_.mixing + head_ * kGates * size_ * size_; }

    // Panels (size, four vectors), one for each vector of cells: what each number of h gives them; and what each gate of a cell
    // gives back to them.
    void bring_across() {
        for (Index at = 0; at < padded_; at += kWidth)
            for (Index g = 0; g < kGates; ++g)
                for (Index lane = 0; lane < kWidth; ++lane) {
                    T* to = panels_ + at * kGates * size_ + g * kWidth + lane;
                    const T* from = matrix() + (g * size_ + at + lane) * size_;
                    for (Index n = 0; n < size_; ++n) to[n * kGates * kWidth] = at + lane < size_ ? from[n] : T(0);
                }
    }
    void bring_back() {
        std::memset(panels_, 0, kGates * padded_ * size_ * sizeof(T));
        for (Index at = 0; at < padded_; at += kWidth)
            for (Index n = 0; n < size_; ++n)
                for (Index g = 0; g < kGates; ++g)
                    std::memcpy(panels_ + (at * size_ + n * kWidth) * kGates + g * kWidth, matrix() + (g * size_ + n) * size_ + at,
                                std::min(kWidth, size_ - at) * sizeof(T));
    }

    Four<T> four(const T* from) const {
        return {load_vector(from), load_vector(from + padded_), load_vector(from + 2 * padded_), load_vector(from + 3 * padded_)};
    }
    void put(T* to, const Four<T>& x) const {
        store_vector(to, x.i), store_vector(to + padded_, x.f), store_vector(to + 2 * padded_, x.z), store_vector(to + 3 * padded_, x.o);
    }

    // A row of a head's cells, zero behind the last, and back.
    void bring(T* to, const T* from) const {
        std::memcpy(to, from, size_ * sizeof(T));
        std::memset(to + size_, 0, (padded_ - size_) * sizeof(T));
    }
    void give(T* to, const T* from) const { std::memcpy(to, from, size_ * sizeof(T)); }
    T* state(void* tensor, const Row& row) const { return (T*)tensor + (row.row * call_.heads + head_) * size_; }
    const T* state(const void* tensor, const Row& row) const { return state((void*)tensor, row); }
    T* shown(Index t) const { return (T*)call_.shown + (t * call_.heads + head_) * size_; }
    // Step t of all, of this head.
    Index place(Index t) const { return head_ * call_.batch() * call_.steps + t; }
    T* kept(Index t) const { return (T*)call_.kept + place(t) * kPlaces * padded_; }

    // What a row's gates are given at its step j.
    void begin(Row& row, Index j) {
        const Index t = row.at[j];
        const Operand* const gates[kGates] = {&call_.i, &call_.f, &call_.z, &call_.o};
        for (Index g = 0; g < kGates; ++g) {
            T* const to = row.given + g * padded_;
            read(to, *gates[g], gates[g]->at(t / call_.steps, t % call_.steps, head_), size_);
            std::memset(to + size_, 0, (padded_ - size_) * sizeof(T));
            for (Index at = 0; at < padded_; at += kWidth)
                store_vector(to + at, load_vector(to + at) + load_vector(bias_ + g * padded_ + at));
        }
        if (call_.kept) give((T*)call_.met + place(t) * size_, row.h[j & 1]);
    }

    // The product by rows of the matrix as it lies.
    void add_direct(Four<T>& raw, const T* h, Index at) const {
        Vector<T>* const to[kGates] = {&raw.i, &raw.f, &raw.z, &raw.o};
        for (Index g = 0; g < kGates; ++g) {
            T sums[kWidth];
            const T* rows = matrix() + (g * size_ + at) * size_;
            // Two sums fill a vector at least.
            constexpr Index some = kWidth < 4 ? 2 : 4;
            for (Index lane = 0; lane < kWidth; lane += some, rows += some * size_) {
                Vector<T> s[4] = {};
                for (Index n = 0; n < size_; n += kWidth)
                    for (Index l = 0; l < some; ++l) s[l] += load_vector(rows + l * size_ + n) * load_vector(h + n);
                T four[4];
                sum_many<4>(s, four);
                std::memcpy(sums + lane, four, some * sizeof(T));
            }
            *to[g] += load_vector(sums);
        }
    }

    __attribute__((noinline)) void advance(Row& row, const Four<T>& raw, Index j, Index at) const {
        Cell<T> cell{load_vector(row.c + at), load_vector(row.n + at), load_vector(row.m + at)};
        Kept<T> k;
        store_vector(row.h[(j + 1) & 1] + at, step<T>(raw, cell, k));
        store_vector(row.c + at, cell.c), store_vector(row.n + at, cell.n), store_vector(row.m + at, cell.m);
        if (!call_.kept) return;
        T* const to = kept(row.at[j]) + at;
        store_vector(to, k.i), store_vector(to + padded_, k.f), store_vector(to + 2 * padded_, k.z);
        store_vector(to + 3 * padded_, k.o), store_vector(to + 4 * padded_, k.shut);
        store_vector(to + 5 * padded_, k.c), store_vector(to + 6 * padded_, k.n);
    }

    // The gradients of what is shown at step j, as they come back from the gates of the step after it.
    void mix_after(Index j, Index at, Index rows, Four<T>* d) const {
        const T* gates[kBeside];
        for (Index r = 0; r < rows; ++r) gates[r] = rows_[r].h[(j + 1) & 1];
        if (rows) mix_rows<T, false>(panels_ + at * kGates * size_, gates, rows, size_, padded_, d);
    }

    void add_last(const Row& row, T* d_h) const {
        const T* const last = state(call_.d_last_hidden, row);
        for (Index n = 0; n < size_; ++n) d_h[n] += last[n];
    }

    __attribute__((noinline)) void retreat(Row& row, const Four<T>& back, Index j, Index at) const {
        const T* const from = kept(row.at[j]) + at;
        const Kept<T> k{load_vector(from),
                        load_vector(from + padded_),
                        load_vector(from + 2 * padded_),
                        load_vector(from + 3 * padded_),
                        load_vector(from + 4 * padded_),
                        load_vector(from + 5 * padded_),
                        load_vector(from + 6 * padded_)};
        Vector<T> c, n;
        if (j) {
            const T* const before = kept(row.at[j - 1]) + at;
            c = load_vector(before + 5 * padded_), n = load_vector(before + 6 * padded_);
        } else {
            c = start(call_.cell, row, at), n = start(call_.normalizer, row, at);
        }
        Cell<T> d{load_vector(row.c + at), load_vector(row.n + at), {}};
        const Vector<T> d_h = load_vector(row.given + at) + ((back.i + back.f) + (back.z + back.o));
        put(row.h[j & 1] + at, step_back<T>(k, c, n, d_h, d));
        store_vector(row.c + at, d.c), store_vector(row.n + at, d.n), store_vector(row.m + at, d.m);
    }

    // Some cells of a state, zero behind the last.
    Vector<T> start(const void* tensor, const Row& row, Index at) const {
        Vector<T> x{};
        std::memcpy(&x, state(tensor, row) + at, std::min(kWidth, size_ - at) * sizeof(T));
        return x;
    }

    void give_gates(const Row& row, Index j) const {
        for (Index g = 0; g < kGates; ++g)
            give((T*)call_.d_given + (place(row.at[j]) * kGates + g) * size_, row.h[j & 1] + g * padded_);
    }

    const Cells& call_;
    const Index head_, size_, padded_, count_;
    const bool direct_;
    Scratch<T> scratch_;
    Scratch<Index> index_;
    Row rows_[kBeside];
    T *panels_, *bias_;
};

template <class T>
void run(const Cells& call, bool back) {
    // Rows in groups of about one size.
    const Index groups = (call.rows + kBeside - 1) / kBeside, tasks = call.heads * groups;
    auto task = [&](Index i) {
        const Flush flush;
        const Index group = i / call.heads, first = group * call.rows / groups, end = (group + 1) * call.rows / groups;
        Head<T> head(call, i % call.heads, first, end - first, back);
        back ? head.backward() : head.forward();
    };
    each_task(tasks, call.threads, task);
}

void serve(const int64_t* block, bool back) {
    const auto& call = *reinterpret_cast<const Cells*>(block);
    call.wide == Index(Element::kDouble) ? run<double>(call, back) : run<float>(call, back);
}

}  // namespace
}  // namespace lavagna

extern "C" __attribute__((visibility("default"))) void lavagna_slstm(const int64_t* block) { lavagna::serve(block, false); }

extern "C" __attribute__((visibility("default"))) void lavagna_slstm_backward(const int64_t* block) {
    lavagna::serve(block, true);
}
