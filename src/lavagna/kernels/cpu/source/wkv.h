// RWKV-4's average over one segment of steps, for one vector of channels, whose sums stay in registers while the steps go by.
//
//     y_t = (e^m a + e^(u + k_t) v_t) / (e^m b + e^(u + k_t))        a, b, m: both sums, over e^m, before step t
//     m' = max(m + w, k_t)        a' = e^(m + w - m') a + e^(k_t - m') v_t        b' = e^(m + w - m') b + e^(k_t - m')
#pragma once

#include "survival.h"

namespace lavagna {

// The m of sums to which nothing was ever added: e^-m is never taken.
constexpr double kNothing = -1e30;

template <class T>
struct Sums {
    Vector<T> a, b, unit;
};

// What a channel has once: w and u.
template <class T>
struct Rates {
    Vector<T> decay, bonus;
};

// How one step weighs what it finds: as it reads, the larger weight being 1, and as it writes.
template <class T>
struct Weights {
    Vector<T> past, now, write, unit;
    Survival<T> survival;
};

template <class T>
inline Weights<T> weigh(const Rates<T>& rates, Vector<T> unit, Vector<T> k) {
    const Vector<T> one = all(T(1)), least = all(T(kNothing)), zero{};
    const Vector<T> ahead = rates.bonus + k - unit, smaller = exp<T>(ahead < zero ? ahead : -ahead);
    const Vector<T> faded = unit + rates.decay, largest = k > faded ? k : faded, after = largest < least ? least : largest;
    // In this order: the difference of neighbors is exact, or as large as the decay.
    const Vector<T> logarithm = (unit - after) + rates.decay;
    return {ahead < zero ? one : smaller, ahead > zero ? one : smaller, exp<T>(k - after), after, survive<T>(logarithm)};
}

template <class T>
inline void write(Sums<T>& sums, const Weights<T>& w, Vector<T> v) {
    sums = {w.survival.of(sums.a, w.write * v), w.survival.of(sums.b, w.write), w.unit};
}

// Forward: averages replace v; rows are `stride` numbers apart.
template <class T>
void average_forward(const Rates<T>& rates, Sums<T>& sums, const T* k, T* v, Index size, Index stride) {
    Sums<T> s = sums;
    for (Index t = 0; t < size; ++t, k += stride, v += stride) {
        const Vector<T> value = load_vector(v);
        const Weights<T> w = weigh(rates, s.unit, load_vector(k));
        store_vector(v, (w.past * s.a + w.now * value) / (w.past * s.b + w.now));
        write(s, w, value);
    }
    sums = s;
}

// What a step has that its gradients need.
template <class T>
struct Step {
    Vector<T> a, b, past, now, y, write, rest;
    Mask<T> keep;
};

// The gradients of both sums and of their unit, and, summed over steps, of w and u.
template <class T>
struct SumsGradients {
    Vector<T> a, b, unit, decay, bonus;
};

// The steps of a segment once more.
template <class T>
void average_again(const Rates<T>& rates, Sums<T> s, const T* k, const T* v, Index size, Index stride, Step<T>* steps) {
    for (Index t = 0; t < size; ++t, k += stride, v += stride, ++steps) {
        const Vector<T> value = load_vector(v);
        const Weights<T> w = weigh(rates, s.unit, load_vector(k));
        const Vector<T> share = all(T(1)) / (w.past * s.b + w.now), past = w.past * share, now = w.now * share;
        *steps = {s.a, s.b, past, now, past * s.a + now * value, w.write, w.survival.rest, w.survival.keep};
        write(s, w, value);
    }
}

// Back over a segment: gradients of k and v replace them. Units in between have none, as they drop out.
template <class T>
void average_backward(SumsGradients<T>& sums, T* k, T* v, const T* d_y, Index size, Index stride, const Step<T>* steps) {
    SumsGradients<T> d = sums;
    for (Index t = size - 1; t >= 0; --t) {
        const Step<T>& s = steps[t];
        const Vector<T> value = load_vector(v + t * stride), g = load_vector(d_y + t * stride);
        const Survival<T> survival{s.keep, s.rest};
        const Vector<T> now = s.now * g, past = s.past * g, a = survival.of(d.a), b = survival.of(d.b);
        // Of what this step weighs more than the past; v - y, were it rounded, would be nothing where one weight is.
        const Vector<T> weight = now * s.past * (s.b * value - s.a), faded = a * s.a + b * s.b;
        d.bonus += weight;
        d.decay += faded;
        d.unit = faded - weight;
        store_vector(k + t * stride, weight + s.write * (d.a * value + d.b));
        store_vector(v + t * stride, now + s.write * d.a);
        d.a = a + past;
        d.b = b - past * s.y;
    }
    sums = d;
}

}  // namespace lavagna
