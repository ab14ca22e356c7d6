// What gates and cells are squashed by: tanh, the logistic function and its logarithm, of vectors. Relatively off by less than
// four epsilons, wherever the result is a normal number (tests/kernels/cpu/test_gates.py).
#pragma once

#include "exponential.h"

namespace lavagna {

template <class T>
inline Vector<T> magnitude(Vector<T> x) {
    return (Vector<T>)((Mask<T>)x & ~(Mask<T>)all<T>(T(-0.0)));
}

// (e^2|x| - 1) / (e^2|x| + 1), with the sign of x: all of it is sign where e^2|x| is beyond one over epsilon.
template <class T>
inline Vector<T> tanh(Vector<T> x) {
    const Vector<T> most = all(T(sizeof(T) == 8 ? 40 : 20)), two = all(T(2)), twice = magnitude<T>(x) * two;
    const Vector<T> less = exp_less_one<T>(twice > most ? most : twice), size = less / (less + two);
    return (Vector<T>)((Mask<T>)size | ((Mask<T>)x & (Mask<T>)all<T>(T(-0.0))));
}

// 1 / (1 + e^-x), from e^-|x|, which never overflows.
template <class T>
inline Vector<T> logistic(Vector<T> x) {
    const Vector<T> one = all(T(1)), small = exp<T>(-magnitude<T>(x));
    return (x < Vector<T>{} ? small : one) / (one + small);
}

// The same from e^-x, which is cheaper: 0 where that is beyond floats.
template <class T>
inline Vector<T> sigmoid(Vector<T> x) {
    return all(T(1)) / (exp<T>(-x) + all(T(1)));
}

// x / (1 + e^-x), and its slope.
template <class T>
struct Silu {
    Vector<T> value, slope;
    explicit Silu(Vector<T> x) {
        const Vector<T> s = sigmoid<T>(x);
        value = x * s;
        slope = s + x * s * (all(T(1)) - s);
    }
};

// log(1 + u) for u from 0 to 1, as 2 artanh(s) with s = u / (2 + u) <= 1/3: terms s^(2i + 1) / (2i + 1) up to half an epsilon.
template <class T>
inline Vector<T> log_one_more(Vector<T> u) {
    constexpr int last = sizeof(T) == 8 ? 16 : 7;
    const Vector<T> s = u / (u + all(T(2))), square = s * s;
    Vector<T> p = all(T(1.0 / (2 * last + 1)));
#pragma GCC unroll 16
    for (int i = last - 1; i >= 1; --i) p = p * square + all(T(1.0 / (2 * i + 1)));
    const Vector<T> twice = s + s;
    return twice * square * p + twice;
}

// A gate and the other half, which is 1 less the gate, and the gate's logarithm.
template <class T>
struct Gate {
    Vector<T> open, shut, logarithm;
};

// min(x, 0) - log(1 + e^-|x|), and both halves by the same exponential.
template <class T>
inline Gate<T> gate(Vector<T> x) {
    const Vector<T> zero{}, one = all(T(1)), small = exp<T>(-magnitude<T>(x)), share = one / (one + small);
    const Vector<T> larger = share, smaller = small * share, rest = log_one_more<T>(small);
    const Mask<T> below = x < zero;
    return {below ? smaller : larger, below ? larger : smaller, (x > zero ? zero : x) - rest};
}

}  // namespace lavagna
