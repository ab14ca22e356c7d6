// Rows of an operand brought to one layout and one dtype, and back.
#pragma once

#include <cstdlib>
#include <new>

#include "call.h"

namespace lavagna {

inline float from_bfloat(uint16_t x) {
    uint32_t bits = uint32_t(x) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint16_t to_bfloat(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40u);
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

typedef uint32_t Words __attribute__((vector_size(LAVAGNA_BYTES)));
typedef uint16_t Halves __attribute__((vector_size(LAVAGNA_BYTES / 2)));

// A vector of bfloat16 to floats and back, rounded as single ones are.
inline Vector<float> from_bfloats(const uint16_t* from) {
    Halves bits;
    std::memcpy(&bits, from, sizeof bits);
    return (Vector<float>)(__builtin_convertvector(bits, Words) << 16);
}
inline void to_bfloats(uint16_t* to, Vector<float> x) {
    const Words bits = (Words)x, rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const Words number = (Words)(x == x);
    const Halves narrow = __builtin_convertvector((rounded & number) | ((bits >> 16 | 0x40u) & ~number), Halves);
    std::memcpy(to, &narrow, sizeof narrow);
}

// n numbers as T, side by side where they came side by side.
template <class T, class From>
inline void convert(T* to, const From* from, Index n) {
    for (Index i = 0; i < n; ++i) to[i] = T(from[i]);
}
template <class T>
inline void convert(T* to, const uint16_t* from, Index n) {
    Index i = 0;
    if constexpr (sizeof(T) == 4)
        for (; i + kLanes<T> <= n; i += kLanes<T>) {
            typename Types<T>::Half half;
            std::memcpy(&half, from + i, sizeof half);
            store_vector(to + i, (Vector<T>)(__builtin_convertvector(half, typename Types<T>::Bits) << 16));
        }
    for (; i < n; ++i) to[i] = T(from_bfloat(from[i]));
}
inline void convert(float* to, const uint16_t* from, Index n) {
    Index i = 0;
    for (; i + kLanes<float> <= n; i += kLanes<float>) store_vector(to + i, from_bfloats(from + i));
    for (; i < n; ++i) to[i] = from_bfloat(from[i]);
}
inline void convert(float* to, const float* from, Index n) { std::memcpy(to, from, n * sizeof(float)); }
inline void convert(double* to, const double* from, Index n) { std::memcpy(to, from, n * sizeof(double)); }

template <class T>
__attribute__((noinline)) void read(T* to, const Operand& x, Index first, Index n) {
    if (x.element == Index(Element::kFloat)) convert(to, (const float*)x.data + first, n);
    else if (x.element == Index(Element::kDouble)) convert(to, (const double*)x.data + first, n);
    else convert(to, (const uint16_t*)x.data + first, n);
}

// A row of n numbers from an operand into blocks of vectors, zero behind the last.
template <class T>
inline void pack_row(Real<T>, T* to, const Operand& x, Index offset, Index n) {
    read(to, x, offset, n);
    std::memset(to + n, 0, (row_size<Real<T>>(n) - n) * sizeof(T));
}
template <class T>
__attribute__((noinline)) void pack_row(Complex<T>, T* to, const Operand& x, Index offset, Index n) {
    constexpr Index lanes = kLanes<T>;
    const Index width = x.complex ? 2 : 1;
    Index block = 0;
    if (x.complex && x.element == Index(sizeof(T) == 8 ? Element::kDouble : Element::kFloat))
        for (const T* from = (const T*)x.data + 2 * offset; block + lanes <= n; block += lanes, from += 2 * lanes, to += 2 * lanes) {
            const Vector<T> a = load_vector(from), b = load_vector(from + lanes);
            Complex<T>{picked<T, at_even>(a, b), picked<T, at_odd>(a, b)}.store(to);
        }
    for (; block < n; block += lanes, to += 2 * lanes) {
        const Index count = n - block < lanes ? n - block : lanes;
        T numbers[2 * lanes] = {};
        read(numbers, x, (offset + block) * width, count * width);
        for (Index i = 0; i < lanes; ++i) {
            to[i] = numbers[i * width];
            to[lanes + i] = x.complex ? numbers[2 * i + 1] : T(0);
        }
    }
}
template <class N>
inline void pack(typename N::Scalar* to, const Operand& x, Index offset, Index n) {
    pack_row(N::zero(), to, x, offset, n);
}

// A row of n numbers out of blocks of vectors, dense, real and imaginary parts side by side.
template <class T>
inline void unpack_row(Real<T>, T* to, const T* row, Index n) {
    std::memcpy(to, row, n * sizeof(T));
}
template <class T>
__attribute__((noinline)) void unpack_row(Complex<T>, T* to, const T* row, Index n) {
    constexpr Index lanes = kLanes<T>;
    Index i = 0;
    for (; i + lanes <= n; i += lanes) {
        const Complex<T> x = Complex<T>::load(row + 2 * i);
        store_vector(to + 2 * i, picked<T, at_first<lanes>>(x.re, x.im));
        store_vector(to + 2 * i + lanes, picked<T, at_second<lanes>>(x.re, x.im));
    }
    for (; i < n; ++i) {
        to[2 * i] = row[place<Complex<T>>(i)];
        to[2 * i + 1] = row[place<Complex<T>>(i) + kLanes<T>];
    }
}
template <class T>
__attribute__((noinline)) void unpack_bfloat(uint16_t* to, const T* row, Index n) {
    Index i = 0;
    if constexpr (sizeof(T) == 4)
        for (; i + kLanes<T> <= n; i += kLanes<T>) {
            using Bits = typename Types<T>::Bits;
            const Bits bits = (Bits)load_vector(row + i), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
            const Bits bfloat = (bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded;
            const auto half = __builtin_convertvector(bfloat, typename Types<T>::Half);
            std::memcpy(to + i, &half, sizeof half);
        }
    for (; i < n; ++i) to[i] = to_bfloat(float(row[i]));
}

inline void unpack_bfloat(uint16_t* to, const float* row, Index n) {
    Index i = 0;
    for (; i + kLanes<float> <= n; i += kLanes<float>) to_bfloats(to + i, load_vector(row + i));
    for (; i < n; ++i) to[i] = to_bfloat(row[i]);
}

template <class N>
inline void unpack(void* to, Index element, Index offset, const typename N::Scalar* row, Index n) {
    if (element == Index(Element::kBfloat)) unpack_bfloat((uint16_t*)to + offset, row, n);
    else unpack_row(N::zero(), (typename N::Scalar*)to + offset * N::kParts, row, n);
}

// The element of a wide number.
template <class T>
constexpr Index wide_element() {
    return Index(sizeof(T) == 8 ? Element::kDouble : Element::kFloat);
}

// Whether rows of n numbers as they lie in a tensor are rows as the loops have them.
template <class N>
inline bool lies_ready(const Call& call, Index element, Index complex, Index n) {
    using T = typename N::Scalar;
    return N::kParts == 1 && !complex && element == wide_element<T>() && n % kLanes<T> == 0 && !call.mask;
}

// What a thread has at hand for small scratches: a step would else spend its time in the allocator.
class Arena {
  public:
#ifdef __SANITIZE_ADDRESS__
    // Each scratch on its own, so that its borders are watched.
    static constexpr size_t kBytes = 0;
#else
    static constexpr size_t kBytes = 1 << 16;
#endif

    void* take(size_t bytes) {
        if (bytes > kBytes - used_) return nullptr;
        used_ += bytes;
        return bytes_ + used_ - bytes;
    }
    // The last that was taken.
    void give(size_t bytes) { used_ -= bytes; }
    static Arena& own() {
        thread_local Arena arena;
        return arena;
    }

  private:
    alignas(64) char bytes_[kBytes + 64];
    size_t used_ = 0;
};

// Memory of one thread's work, on lines of the cache, given back at the end: the last first, as scopes end.
template <class T>
class Scratch {
  public:
    // A line more, so that whole vectors behind the last row may be read.
    explicit Scratch(Index count) : bytes_((count * sizeof(T) + 127) / 64 * 64), at_hand_(true) {
        data_ = (T*)Arena::own().take(bytes_);
        if (data_) return;
        at_hand_ = false;
        if (posix_memalign((void**)&data_, 64, bytes_)) throw std::bad_alloc();
    }
    ~Scratch() { at_hand_ ? Arena::own().give(bytes_) : std::free(data_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    T* get() const { return data_; }

  private:
    const size_t bytes_;
    bool at_hand_;
    T* data_;
};

}  // namespace lavagna
