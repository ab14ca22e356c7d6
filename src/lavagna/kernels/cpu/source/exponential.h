// exp and exp - 1 of vectors, relatively off by less than two epsilons (tests/kernels/cpu/test_exponential.py).
#pragma once

#include "vector.h"

namespace lavagna {

template <class T>
struct ExpRange;
template <>
struct ExpRange<float> {
    // ln 2 in two pieces: the first times any exponent is exact.
    static constexpr float kHigh = 0.693145751953125f, kLow = 1.428606820309417e-6f;
    static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    static constexpr float kLeast = -104.0f, kMost = 89.0f;
    static constexpr int kBits = 23, kBias = 127, kTerms = 8;
};
template <>
struct ExpRange<double> {
    static constexpr double kHigh = 0.693147180369123816490, kLow = 1.90821492927058770002e-10;
    static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double kLeast = -745.5, kMost = 710.0;
    static constexpr int kBits = 52, kBias = 1023, kTerms = 14;
};

constexpr double inverse_factorial(int n) { return n <= 1 ? 1.0 : inverse_factorial(n - 1) / n; }

// 2^n, for n that a normal number's exponent holds.
template <class T>
inline Vector<T> power_of_two(Mask<T> n) {
    return (Vector<T>)((n + ExpRange<T>::kBias) << ExpRange<T>::kBits);
}

// x as n ln 2 + r, with |r| <= ln(2) / 2, and exp(r) - 1 by Taylor's series, whose next term is below half a unit.
template <class T>
struct Reduced {
    Mask<T> n;
    Vector<T> less;
};

template <class T>
inline Reduced<T> reduced(Vector<T> x) {
    using Range = ExpRange<T>;
    const Vector<T> least = all<T>(Range::kLeast), most = all<T>(Range::kMost);
    x = x < least ? least : x;
    x = x > most ? most : x;
    Vector<T> shifted = x * all<T>(T(1.4426950408889634)) + all<T>(Range::kRound);
    Vector<T> n = shifted - all<T>(Range::kRound);
    // The rounded integer lies in the low bits of the shifted number.
    Mask<T> whole = (Mask<T>)shifted - (Mask<T>)all<T>(Range::kRound);
    Vector<T> r = x - n * all<T>(Range::kHigh);
    r = r - n * all<T>(Range::kLow);
    Vector<T> p = all<T>(T(inverse_factorial(Range::kTerms)));
#pragma GCC unroll 16
    for (int i = Range::kTerms - 1; i >= 2; --i) p = p * r + all<T>(T(inverse_factorial(i)));
    return {whole, (p * r) * r + r};
}

template <class T>
inline Vector<T> exp_less_one(Vector<T> x) {
    Reduced<T> parts = reduced<T>(x);
    // In two steps, because 2^n alone may be beyond the range at both ends.
    Mask<T> half = parts.n >> 1;
    Vector<T> a = power_of_two<T>(half), b = power_of_two<T>(parts.n - half);
    return (parts.less * a + (a - power_of_two<T>(half - parts.n))) * b;
}

template <class T>
inline Vector<T> exp(Vector<T> x) {
    Reduced<T> parts = reduced<T>(x);
    Mask<T> half = parts.n >> 1;
    Vector<T> a = power_of_two<T>(half), b = power_of_two<T>(parts.n - half);
    return (parts.less * a + a) * b;
}

}  // namespace lavagna
