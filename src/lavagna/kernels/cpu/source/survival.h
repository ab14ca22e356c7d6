// What of a state survives a step: a decay from its logarithm, so that one near 1 is not rounded.
#pragma once

#include <cmath>

#include "exponential.h"

namespace lavagna {

// A decay as 1 and a rest where it rounds to 2^0, else the rest alone: near 1 it is not rounded.
template <class T>
struct Survival {
    Mask<T> keep;
    Vector<T> rest;

    Vector<T> of(Vector<T> state, Vector<T> write) const {
        return (Vector<T>)((Mask<T>)state & keep) + (rest * state + write);
    }

    Vector<T> of(Vector<T> state) const { return rest * state + (Vector<T>)((Mask<T>)state & keep); }

    // For decays of at most 1, whose rest is not positive where something is kept: the sign tells it, also of a rest of 0.
    void store(T* to) const {
        store_vector(to, (Vector<T>)((Mask<T>)rest | (keep & (Mask<T>)all<T>(T(-0.0)))));
    }
    static Survival load(const T* from) {
        const Vector<T> rest = load_vector(from);
        return {(Mask<T>)rest < Mask<T>{}, rest};
    }
};

// exp(x).
template <class T>
inline Survival<T> survive(Vector<T> x) {
    const Reduced<T> parts = reduced<T>(x);
    const Mask<T> half = parts.n >> 1, keep = parts.n == Mask<T>{};
    const Vector<T> a = power_of_two<T>(half), b = power_of_two<T>(parts.n - half);
    return {keep, (parts.less * a + (Vector<T>)((Mask<T>)a & ~keep)) * b};
}

// A row of logarithms to rests, which may replace them, and whether all is kept besides, where the real parts lie.
template <class T>
__attribute__((noinline)) void split_decays(Real<T>, const T* x, T* rest, T* keep, Index size) {
    for (Index i = 0; i < size; i += kLanes<T>) {
        const Survival<T> survival = survive<T>(load_vector(x + i));
        store_vector(rest + i, survival.rest);
        store_vector(keep + i, (Vector<T>)survival.keep);
    }
}

// The compiler's vectors have no sine; complex decays are few, and where they are constant they are split once.
template <class T>
__attribute__((noinline)) void split_decays(Complex<T>, const T* x, T* rest, T* keep, Index size) {
    constexpr Index lanes = kLanes<T>;
    for (Index i = 0; i < size; i += 2 * lanes) {
        const Vector<T> real = load_vector(x + i), whole = exp<T>(real);
        const Survival<T> survival = survive<T>(real);
        for (Index lane = 0; lane < lanes; ++lane) {
            const T angle = x[i + lanes + lane], half = std::sin(angle / 2), less = survival.rest[lane];
            rest[i + lane] = survival.keep[lane] ? less * std::cos(angle) - 2 * half * half : less * std::cos(angle);
            rest[i + lanes + lane] = whole[lane] * std::sin(angle);
        }
        store_vector(keep + i, (Vector<T>)survival.keep);
    }
}

// Minus infinity times a step of zero is no number: far below is far enough.
template <class T>
inline Real<T> finite(Real<T> x) {
    const Vector<T> never = all<T>(T(-1e30));
    return {x.re < never ? never : x.re};
}
template <class T>
inline Complex<T> finite(Complex<T> x) {
    return {finite(Real<T>{x.re}).re, x.im};
}

// From here on the base-2 logarithm: cheaper where it is a step times a rate and computed for every number of the memory, and
// off by as many epsilons as the logarithm is large.
//
// (2^f - 1) / f for |f| <= 1/2: for float the Chebyshev fit, 1.3e-8 away relatively; for double Taylor's series, 2e-17.
template <class T>
struct Power;
template <>
struct Power<float> {
    static constexpr int kTerms = 6;
    static constexpr float kTerm[kTerms] = {0.6931471880293428f,  0.24022650922342753f,  0.05550357104252963f,
                                            0.009618056669883066f, 0.001339086735140802f, 0.0001546144746422318f};
    // 1.5 * 2^23 + 127: adding it rounds to an integer and leaves that, as an exponent is stored, in the lowest bits.
    static constexpr float kRound = 12583039.0f;
    // From here on the exponent's bits are all zero, and so is the power.
    static constexpr float kLeast = -127.0f;
    static constexpr int kBits = 23;
};
template <>
struct Power<double> {
    static constexpr int kTerms = 13;
    static constexpr double kTerm[kTerms] = {
        0.693147180559945309, 0.240226506959100712,  0.0555041086648215800, 0.00961812910762847716, 0.00133335581464284434,
        1.54035303933816099e-4, 1.52527338040598403e-5, 1.32154867901443095e-6, 1.01780860092396997e-7,
        7.05491162080112333e-9, 4.44553827187081150e-10, 2.56784359934882051e-11, 1.36914888539041240e-12};
    static constexpr double kRound = 6755399441056767.0;  // 1.5 * 2^52 + 1023
    static constexpr double kLeast = -1023.0;
    static constexpr int kBits = 52;
};

// 2^(step a). kFar: it may be below the smallest normal number.
template <class T, bool kFar>
inline Survival<T> survive(Vector<T> step, Vector<T> a) {
    using P = Power<T>;
    const Vector<T> round = all<T>(P::kRound), least = all<T>(P::kLeast);
    Vector<T> shifted = step * a + round, f = step * a - (shifted - round), p = all<T>(P::kTerm[P::kTerms - 1]);
    if (kFar) {
        Vector<T> x = step * a;
        x = x < least ? least : x;
        shifted = x + round;
        f = x - (shifted - round);
    }
#pragma GCC unroll 16
    for (int i = P::kTerms - 2; i >= 0; --i) p = p * f + all<T>(P::kTerm[i]);
    const Mask<T> power = (Mask<T>)shifted << P::kBits, one = (Mask<T>)all<T>(T(1)), keep = power == one;
    return {keep, (p * f) * (Vector<T>)power + (Vector<T>)(power - (keep & one))};
}

// Whether any of size rows of steps, `stride` apart, may take a decay below the smallest normal number.
template <class T>
inline bool any_far(const T* steps, Index stride, Index size, const T* least) {
    Mask<T> far{};
    for (Index t = 0; t < size; ++t) far |= load_vector(steps + t * stride) * load_vector(least) < all<T>(Power<T>::kLeast + 1);
    return any_of<T>(far);
}

}  // namespace lavagna
