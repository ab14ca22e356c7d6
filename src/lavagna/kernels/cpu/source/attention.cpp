// A step of softmax attention: each row's new key and value go into its cache, and its queries read what the cache holds.
//
// It is bound by how fast the cache can be read. Spans of it are read apart, by whoever is free, each with its own largest
// score, and put together in order: no number depends on the threads, on the other rows, or on the room that a cache has.
#include <cmath>

#include "chunk.h"
#include "exponential.h"
#include "tasks.h"

namespace lavagna {
namespace {

// Entries of a span; sums side by side; entries that are called for ahead.
constexpr Index kSpan = 256, kSums = 8, kAhead = 16;
// Numbers of caches from which on a second thread costs less than it saves.
constexpr Index kWorth = 1 << 17;

struct Attention {
    // Heads are those of keys; each has so many readers. The entry of token t lies at t modulo `capacity`. The last `window`
    // tokens are seen, all where it is 0.
    Index rows, heads, readers, size, capacity, window, threads, element;
    Operand q, k, v;
    // How many tokens each row has seen before this one.
    const Index* seen;
    // (rows, capacity, heads, size) and (rows, heads * readers, size), dense.
    void *keys, *values, *reads;

    Index visible(Index row) const { return window && seen[row] >= window ? window : seen[row] + 1; }
};

// A chunk of which n numbers are there, zero behind.
template <class E>
inline Chunk<E> some(const E* from, Index n) {
    if (n >= kChunk<E>) return Chunk<E>(from);
    E rest[kChunk<E>] = {};
    std::memcpy(rest, from, n * sizeof(E));
    return Chunk<E>(rest);
}

template <class E>
inline void call_for(const E* from, Index n) {
    for (Index i = 0; i < n; i += 64 / Index(sizeof(E))) __builtin_prefetch(from + i);
}

// Where the entries of a span begin, and behind them, for whole groups and for those called ahead, the last of them again.
struct Places {
    Index count;
    Index at[kSpan + kSums + kAhead];
};

// Products of some queries, `wide` numbers each, with all keys of a span.
template <class E, int kReaders, class T = typename Chunk<E>::Scalar>
void score(const T* q, Index wide, const E* keys, const Places& places, Index size, T* scores) {
    constexpr Index keys_together = kSums / kReaders;
    for (Index i = 0; i < places.count; i += keys_together) {
        Vector<T> totals[kSums] = {};
#pragma GCC unroll 8
        for (Index j = 0; j < keys_together; ++j) call_for(keys + places.at[i + j + kAhead], size);
        for (Index x = 0; x < size; x += kChunk<E>) {
#pragma GCC unroll 8
            for (Index j = 0; j < keys_together; ++j) {
                const Chunk<E> own = some(keys + places.at[i + j] + x, size - x);
#pragma GCC unroll 8
                for (Index r = 0; r < kReaders; ++r)
#pragma GCC unroll 2
                    for (Index p = 0; p < Chunk<E>::kParts; ++p)
                        totals[r * keys_together + j] += load_vector(q + r * wide + x + p * kLanes<T>) * own.part[p];
            }
        }
        T sums[kSums];
        sum_many<kSums>(totals, sums);
        for (Index r = 0; r < kReaders; ++r)
            std::memcpy(scores + r * kSpan + i, sums + r * keys_together, keys_together * sizeof(T));
    }
}

// The largest score, and in place of each what it weighs beside that; returns the sum of these.
template <class T>
T weigh(T* scores, Index count, T scale, T& most) {
    constexpr Index lanes = kLanes<T>;
    for (Index i = count; i % lanes; ++i) scores[i] = scores[0];
    Vector<T> largest = all(scores[0]), total{};
    for (Index i = 0; i < count; i += lanes) {
        const Vector<T> x = load_vector(scores + i);
        largest = x > largest ? x : largest;
    }
    most = largest[0];
    for (Index i = 1; i < lanes; ++i) most = largest[i] > most ? largest[i] : most;
    for (Index i = 0; i < count; i += lanes)
        store_vector(scores + i, exp<T>((load_vector(scores + i) - all(most)) * all(scale)));
    for (Index i = count; i % lanes; ++i) scores[i] = 0;
    for (Index i = 0; i < count; i += lanes) total += load_vector(scores + i);
    most *= scale;
    return sum<T>(total);
}

// For some readers the weighted sum of all values of a span, by as many totals in turn as there is room for.
template <class E, int kReaders, class T = typename Chunk<E>::Scalar>
void mix(const T* weights, const E* values, const Places& places, Index size, T* mixed, Index apart) {
    constexpr Index parts = Chunk<E>::kParts, turns = kSums / (parts * kReaders);
    for (Index x = 0; x < size; x += kChunk<E>) {
        Vector<T> totals[turns][kReaders][parts] = {};
        const auto take = [&](Index i, Vector<T>(&total)[kReaders][parts]) {
            call_for(values + places.at[i + kAhead] + x, kChunk<E>);
            const Chunk<E> own = some(values + places.at[i] + x, size - x);
#pragma GCC unroll 8
            for (Index r = 0; r < kReaders; ++r)
#pragma GCC unroll 2
                for (Index p = 0; p < parts; ++p) total[r][p] += all(weights[r * kSpan + i]) * own.part[p];
        };
        Index i = 0;
        for (; i + turns <= places.count; i += turns)
#pragma GCC unroll 4
            for (Index turn = 0; turn < turns; ++turn) take(i + turn, totals[turn]);
        for (; i < places.count; ++i) take(i, totals[0]);
        for (Index r = 0; r < kReaders; ++r)
            for (Index p = 0; p < parts; ++p) {
                for (Index turn = 1; turn < turns; ++turn) totals[0][r][p] += totals[turn][r][p];
                store_vector(mixed + r * apart + x + p * kLanes<T>, totals[0][r][p]);
            }
    }
}

template <class E>
struct Step {
    using T = typename Chunk<E>::Scalar;
    const Attention& call;
    // Of what a reader finds in a span: the largest score, the sum of weights, and the mixed values in whole chunks.
    const Index wide = (call.size + kChunk<E> - 1) / kChunk<E> * kChunk<E>, found = wide + kLanes<T>;

    void put(Index row, Index head) const {
        const Index at = ((row * call.capacity + call.seen[row] % call.capacity) * call.heads + head) * call.size;
        std::memcpy((E*)call.keys + at, (const E*)call.k.data + call.k.at(row, 0, head), call.size * sizeof(E));
        std::memcpy((E*)call.values + at, (const E*)call.v.data + call.v.at(row, 0, head), call.size * sizeof(E));
    }

    template <int kReaders>
    void read_for(const T* q, const Places& places, T* to) const {
        alignas(64) T scores[kReaders * kSpan];
        score<E, kReaders>(q, wide, (const E*)call.keys, places, call.size, scores);
        const T scale = T(1) / std::sqrt(T(call.size));
        for (Index r = 0; r < kReaders; ++r)
            to[r * found + 1] = weigh(scores + r * kSpan, places.count, scale, to[r * found]);
        mix<E, kReaders>(scores, (const E*)call.values, places, call.size, to + kLanes<T>, found);
    }

    void read_span(Index row, Index head, Index span, T* to) const {
        const Index visible = call.visible(row), first = call.seen[row] + 1 - visible + span * kSpan;
        Places places;
        places.count = visible - span * kSpan < kSpan ? visible - span * kSpan : kSpan;
        Index slot = first % call.capacity;
        for (Index i = 0; i < places.count + kSums + kAhead; ++i) {
            places.at[i] = ((row * call.capacity + slot) * call.heads + head) * call.size;
            if (i + 1 < places.count && ++slot == call.capacity) slot = 0;
        }
        Scratch<T> q(call.readers * wide);
        for (Index r = 0; r < call.readers; ++r) {
            read(q.get() + r * wide, call.q, call.q.at(row, 0, head * call.readers + r), call.size);
            std::memset(q.get() + r * wide + call.size, 0, (wide - call.size) * sizeof(T));
        }
        spread<E>(q.get(), call.readers * wide);
        Index r = 0;
        for (; r + 4 <= call.readers; r += 4) read_for<4>(q.get() + r * wide, places, to + r * found);
        for (; r < call.readers; ++r) read_for<1>(q.get() + r * wide, places, to + r * found);
    }

    // What one reader found in its spans, each `apart` numbers from the one before, as one.
    void join(const T* from, Index spans, Index apart, Index reader) const {
        T most = from[0];
        for (Index s = 1; s < spans; ++s) most = from[s * apart] > most ? from[s * apart] : most;
        Scratch<T> sums(wide);
        std::memset(sums.get(), 0, wide * sizeof(T));
        T total = 0;
        for (Index s = 0; s < spans; ++s, from += apart) {
            const T less = from[0] - most;
            // What weighs nothing beside the rest may be infinite.
            if (less < ExpRange<T>::kLeast) continue;
            const Vector<T> factor = exp<T>(all(less));
            total += factor[0] * from[1];
            for (Index x = 0; x < wide; x += kLanes<T>)
                store_vector(sums.get() + x, load_vector(sums.get() + x) + factor * load_vector(from + kLanes<T> + x));
        }
        for (Index x = 0; x < wide; x += kLanes<T>)
            store_vector(sums.get() + x, load_vector(sums.get() + x) / all(total));
        spread<E, true>(sums.get(), wide);
        unpack<Real<T>>(call.reads, call.element, reader * call.size, sums.get(), call.size);
    }

    void serve() const {
        Index visible = 0, longest = 0;
        for (Index row = 0; row < call.rows; ++row) {
            for (Index head = 0; head < call.heads; ++head) put(row, head);
            visible += call.visible(row);
            if (call.visible(row) > longest) longest = call.visible(row);
        }
        const Index spans = (longest + kSpan - 1) / kSpan, apart = call.heads * call.readers * found;
        const Index threads = 2 * visible * call.heads * call.size < kWorth ? 1 : call.threads;
        Scratch<T> room(call.rows * spans * apart);
        each_task(call.rows * spans * call.heads, threads, [&](Index i) {
            const Index head = i % call.heads, span = i / call.heads % spans, row = i / call.heads / spans;
            T* to = room.get() + (row * spans + span) * apart + head * call.readers * found;
            if (span * kSpan < call.visible(row)) read_span(row, head, span, to);
        });
        for (Index row = 0; row < call.rows; ++row)
            for (Index i = 0; i < call.heads * call.readers; ++i)
                join(room.get() + row * spans * apart + i * found, (call.visible(row) + kSpan - 1) / kSpan, apart,
                     row * call.heads * call.readers + i);
    }
};

}  // namespace
}  // namespace lavagna

extern "C" __attribute__((visibility("default"))) void lavagna_attention_step(const int64_t* block) {
    using namespace lavagna;
    const auto& call = *reinterpret_cast<const Attention*>(block);
    if (call.element == Index(Element::kFloat)) Step<float>{call}.serve();
    else if (call.element == Index(Element::kDouble)) Step<double>{call}.serve();
    else Step<uint16_t>{call}.serve();
}
