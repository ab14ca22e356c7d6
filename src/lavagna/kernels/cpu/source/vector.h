// Vectors of one width, real and complex, by the compiler's vector extensions: no intrinsics, so that any target compiles.
//
// Numbers of a row lie in blocks of one vector; complex ones as a block of real parts and a block of imaginary parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#ifndef LAVAGNA_BYTES
#define LAVAGNA_BYTES 16
#endif

namespace lavagna {

using Index = int64_t;

template <class T>
struct Types;
template <>
struct Types<float> {
    typedef float Vector __attribute__((vector_size(LAVAGNA_BYTES)));
    typedef int32_t Mask __attribute__((vector_size(LAVAGNA_BYTES)));
    typedef uint32_t Bits __attribute__((vector_size(LAVAGNA_BYTES)));
    typedef uint16_t Half __attribute__((vector_size(LAVAGNA_BYTES / 2)));
    using Integer = int32_t;
};
template <>
struct Types<double> {
    typedef double Vector __attribute__((vector_size(LAVAGNA_BYTES)));
    typedef int64_t Mask __attribute__((vector_size(LAVAGNA_BYTES)));
    using Integer = int64_t;
};

template <class T>
using Vector = typename Types<T>::Vector;
template <class T>
using Mask = typename Types<T>::Mask;
template <class T>
constexpr int kLanes = LAVAGNA_BYTES / sizeof(T);

template <class T>
inline Vector<T> load_vector(const T* from) {
    Vector<T> x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <class T>
inline void store_vector(T* to, Vector<T> x) {
    std::memcpy(to, &x, sizeof x);
}

// The first n lanes, where there are not as many numbers as lanes; zeros behind.
template <class T>
inline Vector<T> load_some(const T* from, Index n) {
    if (n >= kLanes<T>) return load_vector(from);
    Vector<T> x{};
    std::memcpy(&x, from, n * sizeof(T));
    return x;
}

template <class T>
inline void store_some(T* to, Vector<T> x, Index n) {
    if (n >= kLanes<T>) return store_vector(to, x);
    std::memcpy(to, &x, n * sizeof(T));
}

template <class T>
inline Vector<T> all(T x) {
    return x - Vector<T>{};
}

// A real number a lane.
template <class T>
struct Real {
    using Scalar = T;
    static constexpr int kParts = 1;
    Vector<T> re;

    static Real zero() { return {Vector<T>{}}; }
    static Real one() { return {all(T(1))}; }
    static Real load(const T* from) { return {load_vector(from)}; }
    // Number `i` of a row, in every lane.
    static Real splat(const T* row, Index i) { return {all(row[i])}; }
    void store(T* to) const { store_vector(to, re); }
    Real conj() const { return *this; }
};

// A complex number a lane.
template <class T>
struct Complex {
    using Scalar = T;
    static constexpr int kParts = 2;
    Vector<T> re, im;

    static Complex zero() { return {Vector<T>{}, Vector<T>{}}; }
    static Complex one() { return {all(T(1)), Vector<T>{}}; }
    static Complex load(const T* from) { return {load_vector(from), load_vector(from + kLanes<T>)}; }
    static Complex splat(const T* row, Index i) {
        const T* at = row + i / kLanes<T> * 2 * kLanes<T> + i % kLanes<T>;
        return {all(at[0]), all(at[kLanes<T>])};
    }
    void store(T* to) const {
        store_vector(to, re);
        store_vector(to + kLanes<T>, im);
    }
    Complex conj() const { return {re, -im}; }
};

template <class T>
inline bool any_of(Mask<T> x) {
    typename Types<T>::Integer any = 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) any |= x[lane];
    return any;
}

// |x|^2.
template <class T>
inline Vector<T> square(Real<T> x) {
    return x.re * x.re;
}
template <class T>
inline Vector<T> square(Complex<T> x) {
    return x.re * x.re + x.im * x.im;
}

// x, and y besides where it is kept.
template <class T>
inline Real<T> kept_besides(Real<T> y, Mask<T> keep, Real<T> x) {
    return {keep ? x.re + y.re : x.re};
}
template <class T>
inline Complex<T> kept_besides(Complex<T> y, Mask<T> keep, Complex<T> x) {
    return {keep ? x.re + y.re : x.re, keep ? x.im + y.im : x.im};
}

// x where it is kept, else y.
template <class T>
inline Real<T> choose(Mask<T> keep, Real<T> x, Real<T> y) {
    return {keep ? x.re : y.re};
}
template <class T>
inline Complex<T> choose(Mask<T> keep, Complex<T> x, Complex<T> y) {
    return {keep ? x.re : y.re, keep ? x.im : y.im};
}

template <class T>
inline Vector<T> imaginary(Real<T> x) {
    return x.re;
}
template <class T>
inline Vector<T> imaginary(Complex<T> x) {
    return x.im;
}

template <class T>
inline Real<T> operator+(Real<T> a, Real<T> b) {
    return {a.re + b.re};
}
template <class T>
inline Complex<T> operator+(Complex<T> a, Complex<T> b) {
    return {a.re + b.re, a.im + b.im};
}
template <class T>
inline Real<T> operator-(Real<T> a, Real<T> b) {
    return {a.re - b.re};
}
template <class T>
inline Complex<T> operator-(Complex<T> a, Complex<T> b) {
    return {a.re - b.re, a.im - b.im};
}
template <class T>
inline Real<T> operator*(Real<T> a, Real<T> b) {
    return {a.re * b.re};
}
template <class T>
inline Complex<T> operator*(Complex<T> a, Complex<T> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// a b + c and c - a b, each rounded once where the target can.
template <class T>
inline Real<T> add(Real<T> a, Real<T> b, Real<T> c) {
    return {a.re * b.re + c.re};
}
template <class T>
inline Complex<T> add(Complex<T> a, Complex<T> b, Complex<T> c) {
    return {(c.re - a.im * b.im) + a.re * b.re, (c.im + a.im * b.re) + a.re * b.im};
}
template <class T>
inline Real<T> take(Real<T> a, Real<T> b, Real<T> c) {
    return {c.re - a.re * b.re};
}
template <class T>
inline Complex<T> take(Complex<T> a, Complex<T> b, Complex<T> c) {
    return {(c.re + a.im * b.im) - a.re * b.re, (c.im - a.im * b.re) - a.re * b.im};
}

// Lane I of the result is lane kAt(I) of a and b, side by side.
template <int (*kAt)(int), class V, std::size_t... I>
inline V picked(V a, V b, std::index_sequence<I...>) {
    return __builtin_shufflevector(a, b, kAt(int(I))...);
}
template <class T, int (*kAt)(int)>
inline Vector<T> picked(Vector<T> a, Vector<T> b) {
    return picked<kAt>(a, b, std::make_index_sequence<kLanes<T>>{});
}

constexpr int at_even(int lane) { return 2 * lane; }
constexpr int at_odd(int lane) { return 2 * lane + 1; }
// Lanes of a and b in turn: their first halves, and their second.
template <int kLanes>
constexpr int at_first(int lane) {
    return lane / 2 + lane % 2 * kLanes;
}
template <int kLanes>
constexpr int at_second(int lane) {
    return kLanes / 2 + lane / 2 + lane % 2 * kLanes;
}
// Squares of kSide lanes exchanged beside the diagonal.
template <int kLanes, int kSide>
constexpr int at_upper(int lane) {
    return lane & kSide ? lane - kSide + kLanes : lane;
}
template <int kLanes, int kSide>
constexpr int at_lower(int lane) {
    return lane & kSide ? lane + kLanes : lane + kSide;
}

// As many vectors as one has lanes, rows to columns.
template <class T, int kSide = kLanes<T> / 2>
inline void transpose(Vector<T>* rows) {
    constexpr int lanes = kLanes<T>;
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) {
        if (i & kSide) continue;
        const Vector<T> a = rows[i], b = rows[i + kSide];
        rows[i] = picked<T, at_upper<lanes, kSide>>(a, b);
        rows[i + kSide] = picked<T, at_lower<lanes, kSide>>(a, b);
    }
    if constexpr (kSide > 1) transpose<T, kSide / 2>(rows);
}

// How many scalars a row of n numbers takes, filled up to whole vectors.
template <class N>
constexpr Index row_size(Index n) {
    using T = typename N::Scalar;
    return (n + kLanes<T> - 1) / kLanes<T> * kLanes<T> * N::kParts;
}

// Where part 0 of number i of a row lies; its imaginary part is kLanes further on.
template <class N>
constexpr Index place(Index i) {
    constexpr Index lanes = kLanes<typename N::Scalar>;
    return N::kParts == 1 ? i : i / lanes * 2 * lanes + i % lanes;
}

// Mask `i` of a row of masks, in every lane. Complex numbers have one where their real part is.
template <class N>
inline Mask<typename N::Scalar> splat_mask(const typename N::Scalar* row, Index i) {
    typename Types<typename N::Scalar>::Integer mask;
    std::memcpy(&mask, row + place<N>(i), sizeof mask);
    return Mask<typename N::Scalar>{} + mask;
}

// Lanes of a where they lie and of b in the squares beside them, and the other way around.
template <int kLanes, int kSide>
constexpr int at_own(int lane) {
    return lane & kSide ? lane + kLanes : lane;
}
template <int kLanes, int kSide>
constexpr int at_other(int lane) {
    return lane & kSide ? lane - kSide + kLanes : lane + kSide;
}
template <int kLanes, int kApart>
constexpr int at_each(int lane) {
    return lane * kApart % kLanes;
}

// Some vectors, a power of two up to the lanes, into one: each has its sum in as many neighboring lanes as it gets.
template <class T, int kMany, int kSide = kLanes<T> / 2>
inline Vector<T> folded(const Vector<T>* x) {
    if constexpr (kSide == 0) {
        return x[0];
    } else {
        constexpr int lanes = kLanes<T>, left = kMany > 1 ? kMany / 2 : 1;
        Vector<T> sums[left];
#pragma GCC unroll 8
        for (int i = 0; i < left; ++i) {
            const Vector<T> a = x[i], b = x[kMany > 1 ? i + left : i];
            sums[i] = picked<T, at_own<lanes, kSide>>(a, b) + picked<T, at_other<lanes, kSide>>(a, b);
        }
        return folded<T, left, kSide / 2>(sums);
    }
}

// The sums over the lanes of so many vectors, each in the same order however many there are.
template <int kMany, class T>
inline void sum_many(const Vector<T>* x, T* out) {
    constexpr int lanes = kLanes<T>;
    if constexpr (kMany > lanes) {
        sum_many<kMany / 2>(x, out);
        sum_many<kMany / 2>(x + kMany / 2, out + kMany / 2);
    } else {
        const Vector<T> all_sums = folded<T, kMany>(x), first = picked<T, at_each<lanes, lanes / kMany>>(all_sums, all_sums);
        std::memcpy(out, &first, kMany * sizeof(T));
    }
}

template <class T>
inline T sum(Vector<T> x) {
    return folded<T, 1>(&x)[0];
}

}  // namespace lavagna
