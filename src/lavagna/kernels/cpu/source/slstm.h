// One step of an sLSTM's head: the product that mixes its cells, a vector of cells at a time, and the gates behind it.
//
//     (i, f, z, o) = given + R h        m' = max(m + log s(f), i)        s: the logistic function
//     c' = s(f) e^(m - m') c + e^(i - m') tanh(z)        n' = s(f) e^(m - m') n + e^(i - m')        h' = s(o) c' / n'
#pragma once

#include "gates.h"

namespace lavagna {

constexpr int kGates = 4;
// Rows that share what is loaded of a matrix: their sums, four vectors each, leave some registers free.
constexpr int kBeside = LAVAGNA_BYTES == 64 ? 6 : 2;

// Four vectors a row, in the order i, f, z, o.
template <class T>
struct Four {
    Vector<T> i, f, z, o;
};

// Terms that are summed one after the other: a sum of many such sums is less off than one chain.
constexpr Index kChain = 32;

// Adds to `sums` (rows, four vectors) what the numbers of each row make of a panel (count, four vectors): one number for all
// four vectors of a place (kOne), or one for each, `apart` numbers apart. The same sums in the same order for any rows.
template <class T, int kRows, bool kOne>
inline void mix(const T* panel, const T* const* numbers, Index count, Index apart, Four<T>* sums) {
    for (Index first = 0; first < count; first += kChain) {
        const Index end = first + kChain < count ? first + kChain : count;
        Four<T> s[kRows] = {};
        for (Index n = first; n < end; ++n, panel += kGates * kLanes<T>) {
            const Vector<T> i = load_vector(panel), f = load_vector(panel + kLanes<T>), z = load_vector(panel + 2 * kLanes<T>),
                            o = load_vector(panel + 3 * kLanes<T>);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const T* const x = numbers[r] + n;
                s[r].i += all(x[0]) * i;
                s[r].f += all(x[kOne ? 0 : apart]) * f;
                s[r].z += all(x[kOne ? 0 : 2 * apart]) * z;
                s[r].o += all(x[kOne ? 0 : 3 * apart]) * o;
            }
        }
        for (int r = 0; r < kRows; ++r)
            sums[r] = {sums[r].i + s[r].i, sums[r].f + s[r].f, sums[r].z + s[r].z, sums[r].o + s[r].o};
    }
}

// For as many rows as there are, up to kBeside.
template <class T, bool kOne>
__attribute__((noinline)) void mix_rows(const T* panel, const T* const* numbers, Index rows, Index count, Index apart,
                                        Four<T>* sums) {
    switch (rows) {
        case 1: return mix<T, 1, kOne>(panel, numbers, count, apart, sums);
        case 2: return mix<T, 2, kOne>(panel, numbers, count, apart, sums);
#if LAVAGNA_BYTES == 64
        case 3: return mix<T, 3, kOne>(panel, numbers, count, apart, sums);
        case 4: return mix<T, 4, kOne>(panel, numbers, count, apart, sums);
        case 5: return mix<T, 5, kOne>(panel, numbers, count, apart, sums);
        case 6: return mix<T, 6, kOne>(panel, numbers, count, apart, sums);
#endif
    }
}

// What a step keeps of a vector of cells for its gradients: its gates as they weigh, the other half of f, and its cells.
template <class T>
struct Kept {
    Vector<T> i, f, z, o, shut, c, n;
};

// A vector of cells: what it remembers.
template <class T>
struct Cell {
    Vector<T> c, n, m;
};

// What is shown, of gates as they come.
template <class T>
inline Vector<T> step(const Four<T>& raw, Cell<T>& cell, Kept<T>& kept) {
    const Gate<T> forget = gate<T>(raw.f);
    const Vector<T> faded = forget.logarithm + cell.m, m = raw.i > faded ? raw.i : faded;
    const Vector<T> i = exp<T>(raw.i - m), f = exp<T>(faded - m), z = tanh<T>(raw.z), o = logistic<T>(raw.o);
    cell = {cell.c * f + i * z, cell.n * f + i, m};
    kept = {i, f, z, o, forget.shut, cell.c, cell.n};
    return o * (cell.c / cell.n);
}

// The gradients of gates as they came, given that of what is shown; those of c and n (in `d`) go on to the step before, and
// `d.m` becomes that of the unit m, if it were one's own.
template <class T>
inline Four<T> step_back(const Kept<T>& k, Vector<T> c, Vector<T> n, Vector<T> d_h, Cell<T>& d) {
    const Vector<T> one = all(T(1)), share = one / k.n, ratio = k.c * share, shown = d_h * k.o;
    const Vector<T> d_c = d.c + shown * share, d_n = d.n - shown * share * ratio;
    const Vector<T> faded = (d_c * c + d_n * n) * k.f;
    d = {d_c * k.f, d_n * k.f, faded};
    return {(d_n + d_c * k.z) * k.i, faded * k.shut, d_c * k.i * (one - k.z * k.z), d_h * ratio * k.o * (one - k.o)};
}

}  // namespace lavagna
