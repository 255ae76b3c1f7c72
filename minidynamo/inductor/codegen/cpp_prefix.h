// What every generated C++ kernel includes: vectors of N lanes, their loads and stores, conversions, and
// float32 mathematics accurate to 2 units in the last place. No other header is needed, which keeps the
// compilation of a kernel near a quarter of a second.
//
// V<T, N> is a GCC vector (N > 1). A bool value of N lanes is V<i32, N> with lanes 0 and -1. float16 and
// bfloat16 are carried as the u16 of their bits, between memory and a conversion.
//
// Floating point is not contracted behind the kernel's back (-ffp-contract=off): a*b+c rounds twice, as in
// eager. The functions below ask for fused operations explicitly.
#pragma once

typedef __INT8_TYPE__ i8;
typedef __INT16_TYPE__ i16;
typedef __INT32_TYPE__ i32;
typedef __INT64_TYPE__ i64;
typedef __UINT8_TYPE__ u8;
typedef __UINT16_TYPE__ u16;
typedef __UINT32_TYPE__ u32;
typedef __UINT64_TYPE__ u64;

namespace md {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define MD_AVX512 1
constexpr int BYTES = 64;
#elif defined(__AVX2__) && defined(__FMA__)
#define MD_AVX2 1
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif

#define MD_INLINE static inline __attribute__((always_inline, artificial))

#define MD_METHOD inline __attribute__((always_inline, artificial))

template <class T, int N> struct VecOf { typedef T type __attribute__((vector_size(N * sizeof(T)))); };
template <class T, int N> using V = typename VecOf<T, N>::type;

// How many lanes an access has: all N, or the first n.
struct All {};
struct Some { i64 n; };

template <int B> struct UIntOf;
template <> struct UIntOf<1> { typedef i8 type; };
template <> struct UIntOf<2> { typedef i16 type; };
template <> struct UIntOf<4> { typedef i32 type; };
template <> struct UIntOf<8> { typedef i64 type; };

#define MD_LANES(F) (sizeof(F) / sizeof(F{}[0]))

// Subtracting +0 changes no number, not even -0, and compiles to a broadcast.
template <int N, class T> MD_INLINE V<T, N> splat(T x) { return x - V<T, N>{}; }

template <int K> struct Const {
  constexpr operator int() const { return K; }
};

template <int... LANE> struct Lanes {};
template <int N, int... LANE> struct Counted : Counted<N - 1, N - 1, LANE...> {};
template <int... LANE> struct Counted<0, LANE...> { typedef Lanes<LANE...> type; };

// Written out: the compiler would build a loop's result lane by lane wherever something is added to it.
template <int N> MD_INLINE V<i32, N> iota() {
  if constexpr (N == 16)
    return V<i32, N>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  else if constexpr (N == 8)
    return V<i32, N>{0, 1, 2, 3, 4, 5, 6, 7};
  else if constexpr (N == 4)
    return V<i32, N>{0, 1, 2, 3};
  else {
    V<i32, N> r;
    for (int i = 0; i < N; i++) r[i] = i;
    return r;
  }
}

// One bit a lane of a bool value.
template <class M> MD_INLINE u32 lane_bits(M m) {
  constexpr int N = MD_LANES(M);
#if MD_AVX512
  if constexpr (N == 16) return __builtin_ia32_cvtd2mask512(m);
#endif
#if MD_AVX512 || MD_AVX2
  if constexpr (N == 8) return __builtin_ia32_movmskps256((V<float, 8>)m);
#endif
#if MD_AVX2
  if constexpr (N == 4) return __builtin_ia32_movmskps((V<float, 4>)m);
#endif
  u32 bits = 0;
  for (int i = 0; i < N; i++) bits |= (u32)(m[i] & 1) << i;
  return bits;
}
// In loops around loops over vectors: GCC shall not make vectors of them once more. With short rows and
// loads under a condition GCC 12 then reads the condition of the row before.
MD_INLINE void one_by_one() { __asm__ volatile(""); }
// ---- memory ------------------------------------------------------------------------------------------------
template <int N, class T> MD_INLINE V<T, N> ld(const T* p, All) {
  V<T, N> r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}
#if MD_AVX2
// The first n elements in pieces of 2 ** k bytes. There is a masked load of 4 bytes and more, but the
// masked store takes as long as a dozen stores on some processors.
template <int BYTE, class T> MD_INLINE u64 ld_pieces(const T* p, i64 n) {  // of less than BYTE bytes
  u64 r = 0;
  int at = 0;
  const u8* q = (const u8*)p;
  const i64 bytes = n * sizeof(T);
  if constexpr (BYTE > 4) {
    if (bytes & 4) {
      u32 x;
      __builtin_memcpy(&x, q, 4);
      r = x, at = 32, q += 4;
    }
  }
  if constexpr (BYTE > 2 && sizeof(T) <= 2) {
    if (bytes & 2) {
      u16 x;
      __builtin_memcpy(&x, q, 2);
      r |= (u64)x << at, at += 16, q += 2;
    }
  }
  if constexpr (sizeof(T) == 1) {
    if (bytes & 1) r |= (u64)*q << at;
  }
  return r;
}
template <int N, class T> MD_INLINE V<T, N> ld_some(const T* p, i64 n) {
  typedef V<T, N> To;
  if constexpr (sizeof(T) == 8 && N == 4) {
    return (To)__builtin_ia32_maskloadpd256((const V<double, 4>*)p, V<long long, 4>{0, 1, 2, 3} < n);
  } else if constexpr (sizeof(To) == 32) {
    constexpr int each = 4 / sizeof(T);  // elements of a masked lane
    To r = (To)__builtin_ia32_maskloadps256((const V<float, 8>*)p, iota<8>() < (i32)(n / each));
    if constexpr (each > 1) {
      const i64 whole = n / each * each;
      const i32 rest = (i32)ld_pieces<4>(p + whole, n - whole);
      r |= (To)((iota<8>() == (i32)(n / each)) & rest);
    }
    return r;
  } else if (n >= N) {
    return ld<N>(p, All{});
  } else if constexpr (sizeof(To) == 16) {
    constexpr int half = 8 / sizeof(T);
    u64 low = 0, high = 0;
    if (n >= half) {
      __builtin_memcpy(&low, p, 8);
      high = ld_pieces<8>(p + half, n - half);
    } else {
      low = ld_pieces<8>(p, n);
    }
    return (To)V<u64, 2>{low, high};
  } else {
    const u64 bits = ld_pieces<sizeof(To)>(p, n);
    To r;
    __builtin_memcpy(&r, &bits, sizeof(r));
    return r;
  }
}
template <class T, class F> MD_INLINE void st_some(T* p, F x, i64 n) {  // less than all
  constexpr int half = MD_LANES(F) / 2;
  if constexpr (sizeof(F) > 16) {
    typedef V<T, half> H;
    H parts[2];
    __builtin_memcpy(parts, &x, sizeof(x));
    if (n & half) __builtin_memcpy(p, &parts[0], sizeof(H));
    st_some(p + (n & half), n & half ? parts[1] : parts[0], n & (half - 1));
  } else {
    u64 rest, next = 0;
    u8* q = (u8*)p;
    const i64 bytes = n * sizeof(T);
    __builtin_memcpy(&rest, &x, sizeof(x) < 8 ? sizeof(x) : 8);
    if constexpr (sizeof(x) == 16) {
      next = ((V<u64, 2>)x)[1];
      if (bytes & 8) __builtin_memcpy(q, &rest, 8), rest = next, q += 8;
    }
    if constexpr (sizeof(x) > 4 && sizeof(T) <= 4) {
      if (bytes & 4) __builtin_memcpy(q, &rest, 4), rest >>= 32, q += 4;
    }
    if constexpr (sizeof(x) > 2 && sizeof(T) <= 2) {
      if (bytes & 2) __builtin_memcpy(q, &rest, 2), rest >>= 16, q += 2;
    }
    if constexpr (sizeof(T) == 1) {
      if (bytes & 1) *q = (u8)rest;
    }
  }
}
#endif
template <int N, class T> MD_INLINE V<T, N> ld(const T* p, Some w) {
#if MD_AVX2
  if constexpr (N * sizeof(T) <= 32) return ld_some<N>(p, w.n);
#endif
  V<T, N> r{};
#if MD_AVX512
  if constexpr (N == 16 && sizeof(T) == 4) {
    typedef V<float, 16> F;
    return (V<T, N>)__builtin_ia32_loadups512_mask((const float*)p, F{}, (u16)((1u << w.n) - 1));
  } else if constexpr (N == 8 && sizeof(T) == 8) {
    typedef V<double, 8> D;
    return (V<T, N>)__builtin_ia32_loadupd512_mask((const double*)p, D{}, (u8)((1u << w.n) - 1));
  } else if constexpr (N == 16 && sizeof(T) == 2) {
    return (V<T, N>)__builtin_ia32_loaddquhi256_mask((const short*)p, V<short, 16>{}, (u16)((1u << w.n) - 1));
  } else if constexpr (N == 32 && sizeof(T) == 2) {
    return (V<T, N>)__builtin_ia32_loaddquhi512_mask((const short*)p, V<short, 32>{}, (1u << w.n) - 1);
  } else if constexpr (N == 16 && sizeof(T) == 1) {
    return (V<T, N>)__builtin_ia32_loaddquqi128_mask((const char*)p, V<char, 16>{}, (u16)((1u << w.n) - 1));
  } else if constexpr (N == 64 && sizeof(T) == 1) {
    return (V<T, N>)__builtin_ia32_loaddquqi512_mask((const char*)p, V<char, 64>{}, (1ull << w.n) - 1);
  }
#endif
  for (int i = 0; i < w.n; i++) r[i] = p[i];
  return r;
}
template <class T, class F> MD_INLINE void st(T* p, F x, All) { __builtin_memcpy(p, &x, sizeof(x)); }
template <class T, class F> MD_INLINE void st(T* p, F x, Some w) {
  constexpr int N = MD_LANES(F);
#if MD_AVX2
  if constexpr (sizeof(F) <= 32) return w.n < N ? st_some(p, x, w.n) : st(p, x, All{});
#endif
#if MD_AVX512
  if constexpr (N == 16 && sizeof(T) == 4) {
    return __builtin_ia32_storeups512_mask((float*)p, (V<float, 16>)x, (u16)((1u << w.n) - 1));
  } else if constexpr (N == 8 && sizeof(T) == 8) {
    return __builtin_ia32_storeupd512_mask((double*)p, (V<double, 8>)x, (u8)((1u << w.n) - 1));
  } else if constexpr (N == 16 && sizeof(T) == 2) {
    return __builtin_ia32_storedquhi256_mask((short*)p, (V<short, 16>)x, (u16)((1u << w.n) - 1));
  } else if constexpr (N == 32 && sizeof(T) == 2) {
    return __builtin_ia32_storedquhi512_mask((short*)p, (V<short, 32>)x, (1u << w.n) - 1);
  } else if constexpr (N == 16 && sizeof(T) == 1) {
    return __builtin_ia32_storedquqi128_mask((char*)p, (V<char, 16>)x, (u16)((1u << w.n) - 1));
  } else if constexpr (N == 64 && sizeof(T) == 1) {
    return __builtin_ia32_storedquqi512_mask((char*)p, (V<char, 64>)x, (1ull << w.n) - 1);
  }
#endif
  for (int i = 0; i < w.n; i++) p[i] = x[i];
}
template <int N> MD_INLINE int lanes(All) { return N; }
template <int N> MD_INLINE int lanes(Some w) { return (int)w.n; }

#if MD_AVX2
// Every lane given at once: where they are set one by one GCC goes through memory, and waits for it. The lanes
// after the last have its element.
template <class T, class F, int... LANE> MD_INLINE auto built(All, F at, Lanes<LANE...>) {
  return V<T, sizeof...(LANE)>{(T)at(LANE)...};
}
template <class T, class F, int... LANE> MD_INLINE auto built(Some w, F at, Lanes<LANE...>) {
  const int last = (int)w.n - 1;
  return V<T, sizeof...(LANE)>{(T)at(LANE < last ? LANE : last)...};
}
template <class T, int N, class W, class F> MD_INLINE V<T, N> built(W w, F at) {
  return built<T>(w, at, typename Counted<N>::type{});
}
#endif
// `at(lane)` is the address of a lane's element: strided and computed positions.
template <int N, class T, class W, class F> MD_INLINE V<T, N> gather(W w, F at) {
#if MD_AVX2
  if constexpr (N <= 8) return built<T, N>(w, [&](int l) __attribute__((always_inline)) { return *(const T*)at(l); });
#endif
  V<T, N> r{};
  for (int i = 0; i < lanes<N>(w); i++) r[i] = *(const T*)at(i);
  return r;
}
template <int N, class T, class W, class F> MD_INLINE V<T, N> gather_if(V<i32, N> mask, W w, F at) {
  V<T, N> r{};
  for (int i = 0; i < lanes<N>(w); i++)
    if (mask[i]) r[i] = *(const T*)at(i);
  return r;
}
// Neighbouring elements where the mask has them; no memory is touched elsewhere.
template <int N, class T, class W> MD_INLINE V<T, N> ld_if(V<i32, N> mask, const T* p, W w) {
#if MD_AVX512
  if constexpr (N == 16) {
    const u16 m = lane_bits(mask) & (u16)((1u << lanes<N>(w)) - 1);
    if constexpr (sizeof(T) == 4)
      return (V<T, N>)__builtin_ia32_loadups512_mask((const float*)p, V<float, 16>{}, m);
    else if constexpr (sizeof(T) == 2)
      return (V<T, N>)__builtin_ia32_loaddquhi256_mask((const short*)p, V<short, 16>{}, m);
    else if constexpr (sizeof(T) == 1)
      return (V<T, N>)__builtin_ia32_loaddquqi128_mask((const char*)p, V<char, 16>{}, m);
  } else if constexpr (N == 8 && sizeof(T) == 8) {
    const u8 m = lane_bits(mask) & (u8)((1u << lanes<N>(w)) - 1);
    return (V<T, N>)__builtin_ia32_loadupd512_mask((const double*)p, V<double, 8>{}, m);
  }
#elif MD_AVX2
  if constexpr (N == 8 && sizeof(T) == 4) {
    const V<i32, N> m = mask & (iota<N>() < lanes<N>(w));
    return (V<T, N>)__builtin_ia32_maskloadps256((const V<float, 8>*)p, m);
  } else if constexpr (N == 4 && sizeof(T) == 8) {
    const V<long long, 4> m = __builtin_ia32_pmovsxdq256(mask & (iota<N>() < lanes<N>(w)));
    return (V<T, N>)__builtin_ia32_maskloadpd256((const V<double, 4>*)p, m);
  } else if constexpr (N == 8 || N == 4) {
    const u32 all = (1u << N) - 1, m = lane_bits(mask) & ((1u << lanes<N>(w)) - 1);
    if (m == all) return ld<N>(p, All{});
    if (m == 0) return V<T, N>{};
  }
#endif
  V<T, N> r{};
  for (int i = 0; i < lanes<N>(w); i++)
    if (mask[i]) r[i] = p[i];
  return r;
}
// Elements STEP apart. Where that is little, STEP loads and shuffles are faster than the machine's gather.
template <i64 STEP, int PART, class F, int... LANE> MD_INLINE F merged_step(F a, F b, Lanes<LANE...>) {
  // To the lanes that `a` has already, those of the PARTth vector of memory, `b`.
  constexpr int N = MD_LANES(F);
  return __builtin_shufflevector(a, b, (LANE * STEP / N == PART             ? N + LANE * STEP % N
                                        : PART == 1 && LANE * STEP / N == 0 ? LANE * STEP
                                                                            : LANE)...);
}
template <int N, i64 STEP, int PART, class T, class F> MD_INLINE F merge_steps(F r, const T* p, i64 n) {
  if constexpr (PART == STEP) {
    return r;
  } else {
    F next = n >= N * (PART + 1) ? ld<N>(p + N * PART, All{})
             : n > N * PART      ? ld<N>(p + N * PART, Some{n - N * PART})
                                 : F{};
    r = merged_step<STEP, PART>(r, next, typename Counted<N>::type{});
    return merge_steps<N, STEP, PART + 1>(r, p, n);
  }
}
template <int N, i64 STEP, class T, class W> MD_INLINE V<T, N> ld_step(const T* p, W w) {
#if MD_AVX512
  constexpr bool narrow = sizeof(T) < 4 && N == 16 && (STEP == 2 || STEP == 4);
  if constexpr (narrow || (N * sizeof(T) == 64 && STEP >= 2 && STEP <= (sizeof(T) >= 4 ? 12 : 4))) {
    const i64 n = STEP * (lanes<N>(w) - 1) + 1;
    return merge_steps<N, STEP, 1>(n >= N ? ld<N>(p, All{}) : ld<N>(p, Some{n}), p, n);
  }
#elif MD_AVX2
  if constexpr (__is_same(W, All) && N * sizeof(T) >= 16 && STEP >= 2 && STEP <= (sizeof(T) == 8 ? 2 : 4)) {
    return merge_steps<N, STEP, 1>(ld<N>(p, All{}), p, STEP * (N - 1) + 1);
  } else if constexpr (N <= 8) {
    asm("" : "+r"(p));
    return built<T, N>(w, [&](int l) __attribute__((always_inline)) { return p[l * STEP]; });
  }
#endif
  // Fifty columns of one matrix are a thousand neighbours: GCC would look for vectors among them for ever.
  asm("" : "+r"(p));
  V<T, N> r{};
  for (int i = 0; i < lanes<N>(w); i++) r[i] = p[i * STEP];
  return r;
}
template <int N, i64 STEP, class T, class W> MD_INLINE V<T, N> ld_step_if(V<i32, N> mask, const T* p, W w) {
#if MD_AVX512
  if constexpr (N == 16 && sizeof(T) == 4 && STEP < (1 << 26) && STEP > -(1 << 26)) {
    const u16 m = lane_bits(mask) & (u16)((1u << lanes<N>(w)) - 1);
    if (m == 0xffff) return ld_step<N, STEP>(p, All{});
    return (V<T, N>)__builtin_ia32_gathersiv16sf(V<float, 16>{}, p, iota<16>() * (i32)STEP, m, 4);
  }
#elif MD_AVX2
  if constexpr (N == 8 || N == 4) {
    const u32 all = (1u << N) - 1, m = lane_bits(mask) & ((1u << lanes<N>(w)) - 1);
    if (m == all) return ld_step<N, STEP>(p, All{});
    if (m == 0) return V<T, N>{};
  }
#endif
  V<T, N> r{};
  for (int i = 0; i < lanes<N>(w); i++)
    if (mask[i]) r[i] = p[i * STEP];
  return r;
}
template <class F, class W, class At> MD_INLINE void scatter(F x, W w, At at) {
  for (int i = 0; i < lanes<MD_LANES(F)>(w); i++) *at(i) = x[i];
}

// a[0], b[0], a[1], b[1], ...
template <int FIRST, class F, int... LANE> MD_INLINE F mixed(F a, F b, Lanes<LANE...>) {
  return __builtin_shufflevector(a, b, (FIRST + LANE / 2 + (LANE % 2 ? MD_LANES(F) : 0))...);
}
template <class T, class F, class W> MD_INLINE void st_fields(T* p, W w, F a, F b) {
  constexpr int N = MD_LANES(F);
  typedef typename Counted<N>::type Each;
  const F low = mixed<0>(a, b, Each{}), high = mixed<N / 2>(a, b, Each{});
  if constexpr (__is_same(W, All)) {
    st(p, low, w), st(p + N, high, w);
  } else {
    const i64 n = 2 * w.n;
    if (n >= N) st(p, low, All{});
    else st(p, low, Some{n});
    if (n > N) st(p + N, high, Some{n - N});
  }
}
// a[0], b[0], c[0], d[0], a[1], ...
template <class T, class F, class W> MD_INLINE void st_fields(T* p, W w, F a, F b, F c, F d) {
  constexpr int N = MD_LANES(F);
  typedef typename Counted<N>::type Each;
  const F low = mixed<0>(a, c, Each{}), between = mixed<0>(b, d, Each{});
  const F high = mixed<N / 2>(a, c, Each{}), last = mixed<N / 2>(b, d, Each{});
  const i64 n = 2 * lanes<N>(w);
  if (n >= N) st_fields(p, All{}, low, between);
  else st_fields(p, Some{n}, low, between);
  if (n == 2 * N) st_fields(p + 2 * N, All{}, high, last);
  else if (n > N) st_fields(p + 2 * N, Some{n - N}, high, last);
}

// N rows of N elements, `stride` apart, turned: out[k] is column k. Only `rows` rows and `columns` columns exist.
template <class F> MD_INLINE F interleave_low(F a, F b) {
  constexpr int N = MD_LANES(F);
  if constexpr (N == 16)
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  else if constexpr (N == 8)
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  else if constexpr (N == 4)
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
  else
    return __builtin_shufflevector(a, b, 0, 2);
}
// Every lane twice, in a vector of twice as many.
template <class F, int... LANE> MD_INLINE auto doubled(F x, Lanes<LANE...>) {
  return __builtin_shufflevector(x, x, LANE / 2 ...);
}
template <class F> MD_INLINE auto doubled(F x) {
  return doubled(x, typename Counted<2 * MD_LANES(F)>::type{});
}
template <int N, class F> MD_INLINE auto repeated(F x) {
  if constexpr (MD_LANES(F) == N) return x;
  else return repeated<N>(doubled(x));
}
// p[0], p[0], p[1], p[1], ...: every element TIMES times, a power of two.
template <int N, int TIMES, class T, class W> MD_INLINE V<T, N> ld_repeat(const T* p, W w) {
  if constexpr (TIMES >= N) {
    V<T, N> r{};
    for (int i = 0; i < lanes<N>(w); i++) r[i] = p[i / TIMES];
    return r;
  } else {
    const i64 n = (lanes<N>(w) + TIMES - 1) / TIMES;
    if (n == N / TIMES) return repeated<N>(ld<N / TIMES>(p, All{}));
    else return repeated<N>(ld<N / TIMES>(p, Some{n}));
  }
}
template <class F> MD_INLINE F interleave_high(F a, F b) {
  constexpr int N = MD_LANES(F);
  if constexpr (N == 16)
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  else if constexpr (N == 8)
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  else if constexpr (N == 4)
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
  else
    return __builtin_shufflevector(a, b, 1, 3);
}
template <int N, class F> MD_INLINE void turn(F* a) {
#if MD_AVX2
  // Halves change places first: what follows stays within 16 bytes, where shuffles are cheap.
  if constexpr (N == 8 && sizeof(F) == 32) {
    F b[8];
    for (int i = 0; i < 4; i++) {
      b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
      b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    for (int i = 0; i < 8; i += 4) {
      F l = __builtin_shufflevector(b[i], b[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
      F h = __builtin_shufflevector(b[i], b[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
      F m = __builtin_shufflevector(b[i + 2], b[i + 3], 0, 8, 1, 9, 4, 12, 5, 13);
      F n = __builtin_shufflevector(b[i + 2], b[i + 3], 2, 10, 3, 11, 6, 14, 7, 15);
      a[i] = __builtin_shufflevector(l, m, 0, 1, 8, 9, 4, 5, 12, 13);
      a[i + 1] = __builtin_shufflevector(l, m, 2, 3, 10, 11, 6, 7, 14, 15);
      a[i + 2] = __builtin_shufflevector(h, n, 0, 1, 8, 9, 4, 5, 12, 13);
      a[i + 3] = __builtin_shufflevector(h, n, 2, 3, 10, 11, 6, 7, 14, 15);
    }
    return;
  } else if constexpr (N == 4 && sizeof(F) == 32) {
    for (int i = 0; i < 2; i++) {
      F low = __builtin_shufflevector(a[i], a[i + 2], 0, 1, 4, 5);
      a[i + 2] = __builtin_shufflevector(a[i], a[i + 2], 2, 3, 6, 7);
      a[i] = low;
    }
    for (int i = 0; i < 4; i += 2) {
      F low = __builtin_shufflevector(a[i], a[i + 1], 0, 4, 2, 6);
      a[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 1, 5, 3, 7);
      a[i] = low;
    }
    return;
  }
#endif
  constexpr int H = N / 2;
  for (int width = 1; width < N; width *= 2) {
    F b[N];
    for (int i = 0; i < H; i++) {
      b[2 * i] = interleave_low(a[i], a[i + H]);
      b[2 * i + 1] = interleave_high(a[i], a[i + H]);
    }
    for (int i = 0; i < N; i++) a[i] = b[i];
  }
}
template <int N, class T> MD_INLINE void ld_turned(V<T, N>* out, const T* p, i64 stride, i64 rows, i64 columns) {
  V<T, N> a[N];
  if (rows == N && columns == N) {
    for (int i = 0; i < N; i++) a[i] = ld<N>(p + i * stride, All{});
  } else {
    for (int i = 0; i < N; i++) a[i] = i < rows ? ld<N>(p + i * stride, Some{columns}) : V<T, N>{};
  }
  turn<N>(a);
  for (int i = 0; i < N; i++) out[i] = a[i];
}
// Short rows side by side, each a lane: x[r] has the elements r of N rows of R elements, `stride` apart.
template <int N, int R, class T, class W> MD_INLINE void ld_rows(V<T, N>* x, const T* p, i64 stride, W w) {
  for (int c = 0; c < R; c += N) {
    V<T, N> a[N];
    const i64 columns = R - c < N ? R - c : N;
    for (int i = 0; i < N; i++) {
      const T* row = p + i * stride + c;
      a[i] = i >= lanes<N>(w) ? V<T, N>{} : columns == N ? ld<N>(row, All{}) : ld<N>(row, Some{columns});
    }
    turn<N>(a);
    for (int i = 0; i < columns; i++) x[c + i] = a[i];
  }
}
template <int N, int R, class T, class W> MD_INLINE void st_rows(T* p, const V<T, N>* x, i64 stride, W w) {
  for (int c = 0; c < R; c += N) {
    V<T, N> a[N];
    const i64 columns = R - c < N ? R - c : N;
    for (int i = 0; i < N; i++) a[i] = c + i < R ? x[c + i] : V<T, N>{};
    turn<N>(a);
    for (int i = 0; i < lanes<N>(w); i++) {
      T* row = p + i * stride + c;
      if (columns == N) st(row, a[i], All{});
      else st(row, a[i], Some{columns});
    }
  }
}
// A block of such rows: no more than N elements of each.
template <int N, class T, class W> MD_INLINE void ld_block(V<T, N>* x, const T* p, i64 stride, W w, i64 columns) {
  ld_turned<N>(x, p, stride, lanes<N>(w), columns);
}
template <int N, class T, class W> MD_INLINE void st_block(T* p, const V<T, N>* x, i64 stride, W w, i64 columns) {
  V<T, N> a[N];
  for (int i = 0; i < N; i++) a[i] = columns == N || i < columns ? x[i] : V<T, N>{};
  turn<N>(a);
  for (int i = 0; i < lanes<N>(w); i++) {
    if (columns == N) st(p + i * stride, a[i], All{});
    else st(p + i * stride, a[i], Some{columns});
  }
}

// Ask for rows of memory that are read or written soon; addresses outside of any memory do no harm.
template <class T> MD_INLINE void prefetch(const T* p, i64 stride, i64 rows, i64 columns) {
  for (i64 i = 0; i < rows; i++)
    for (i64 j = 0; j < columns; j += 64 / sizeof(T)) __builtin_prefetch(p + i * stride + j);
}

// ---- conversions -------------------------------------------------------------------------------------------
// Of a vector that comes from memory GCC widens bytes lane by lane, and narrows to bytes so, unless it is told
// the instruction.
template <class T, class F> MD_INLINE T first_bytes(F x) {
  T r;
  __builtin_memcpy(&r, &x, sizeof(r));
  return r;
}
template <class F> MD_INLINE V<char, 16> padded(F x) {  // eight bytes, and zeros
  return (V<char, 16>)V<i64, 2>{first_bytes<i64>(x), 0};
}
#if MD_AVX2
MD_INLINE V<char, 16> padded_word(i32 x) { return (V<char, 16>)V<i32, 4>{x, 0, 0, 0}; }
MD_INLINE V<i32, 4> low_words(V<i64, 4> x) {  // the low halves
  V<i32, 4> parts[2];
  __builtin_memcpy(parts, &x, sizeof(x));
  return __builtin_shufflevector(parts[0], parts[1], 0, 2, 4, 6);
}
MD_INLINE V<i16, 8> packed_words(V<i32, 8> x) {  // of 0 to 65535
  V<i32, 4> parts[2];
  __builtin_memcpy(parts, &x, sizeof(x));
  return (V<i16, 8>)__builtin_ia32_packusdw128(parts[0], parts[1]);
}
MD_INLINE V<char, 16> packed_bytes(V<i16, 8> x) {  // of 0 to 255; the upper eight do not count
  return (V<char, 16>)__builtin_ia32_packuswb128(x, x);
}
#endif
template <class T, class F> MD_INLINE V<T, MD_LANES(F)> convert(F x) {
  typedef __typeof__(F{}[0] + 0) Wide;
  typedef V<T, MD_LANES(F)> To;
  constexpr int N = MD_LANES(F);
  constexpr unsigned from = sizeof(F) / N;
  constexpr bool whole = (Wide)0.5 == 0 && (T)0.5 == 0, is_signed = !__is_same(F, V<u8, N>);
#if MD_AVX512
  if constexpr (N == 16 && whole && sizeof(T) == 4 && from == 1) {
    if constexpr (is_signed) return (To)__builtin_ia32_pmovsxbd512_mask((V<char, 16>)x, V<i32, 16>{}, (u16)-1);
    else return (To)__builtin_ia32_pmovzxbd512_mask((V<char, 16>)x, V<i32, 16>{}, (u16)-1);
  } else if constexpr (N == 16 && whole && __is_same(T, i32) && __is_same(F, V<i16, 16>)) {
    return __builtin_ia32_pmovsxwd512_mask(x, V<i32, 16>{}, (u16)-1);
  } else if constexpr (N == 16 && whole && sizeof(T) == 1 && from == 4) {
    return (To)__builtin_ia32_pmovdb512_mask((V<i32, 16>)x, V<char, 16>{}, (u16)-1);
  } else if constexpr (N == 8 && whole && sizeof(T) == 8 && from == 1) {
    typedef V<long long, 8> Q;
    if constexpr (is_signed) return (To)__builtin_ia32_pmovsxbq512_mask(padded(x), Q{}, (u8)-1);
    else return (To)__builtin_ia32_pmovzxbq512_mask(padded(x), Q{}, (u8)-1);
  } else if constexpr (N == 8 && whole && sizeof(T) == 8 && __is_same(F, V<i16, 8>)) {
    return (To)__builtin_ia32_pmovsxwq512_mask(x, V<long long, 8>{}, (u8)-1);
  } else if constexpr (N == 8 && whole && sizeof(T) == 1 && from == 8) {
    return first_bytes<To>(__builtin_ia32_pmovqb512_mask((V<long long, 8>)x, V<char, 16>{}, (u8)-1));
  } else if constexpr (N == 8 && __is_same(T, double) && __is_same(F, V<float, 8>)) {
    return __builtin_ia32_cvtps2pd512_mask(x, To{}, (u8)-1, 4);
  } else if constexpr (N == 8 && __is_same(T, double) && __is_same(F, V<i32, 8>)) {
    return __builtin_ia32_cvtdq2pd512_mask(x, To{}, (u8)-1);
  } else if constexpr (N == 8 && whole && sizeof(T) == 8 && __is_same(F, V<i32, 8>)) {
    return (To)__builtin_ia32_pmovsxdq512_mask(x, V<long long, 8>{}, (u8)-1);
  }
#endif
#if MD_AVX512 || MD_AVX2
  if constexpr (N == 8 && whole && sizeof(T) == 4 && from == 1) {
    if constexpr (is_signed) return (To)__builtin_ia32_pmovsxbd256(padded(x));
    else return (To)__builtin_ia32_pmovzxbd256(padded(x));
  }
#endif
#if MD_AVX2
  if constexpr (N == 8 && whole && sizeof(T) == 4 && __is_same(F, V<i16, 8>)) {
    return (To)__builtin_ia32_pmovsxwd256(x);
  } else if constexpr (N == 8 && whole && from == 4 && sizeof(T) == 2) {
    return (To)packed_words((V<i32, 8>)x & 0xffff);
  } else if constexpr (N == 8 && whole && from == 4 && sizeof(T) == 1) {
    return first_bytes<To>(packed_bytes(packed_words((V<i32, 8>)x & 0xff)));
  } else if constexpr (N == 4 && whole && from == 8 && sizeof(T) == 4) {
    return (To)low_words((V<i64, 4>)x);
  } else if constexpr (N == 4 && whole && from == 8 && sizeof(T) < 4) {
    return convert<T>(low_words((V<i64, 4>)x));
  } else if constexpr (N == 4 && whole && from == 4 && sizeof(T) == 1) {
    const V<char, 16> first{0, 4, 8, 12};
    return first_bytes<To>(__builtin_ia32_pshufb128((V<char, 16>)x, first));
  } else if constexpr (N == 4 && whole && sizeof(T) == 8 && __is_same(F, V<i32, 4>)) {
    return (To)__builtin_ia32_pmovsxdq256(x);
  } else if constexpr (N == 4 && __is_same(T, double) && __is_same(F, V<float, 4>)) {
    return __builtin_ia32_cvtps2pd256(x);  // GCC converts halves
  } else if constexpr (N == 4 && __is_same(T, double) && __is_same(F, V<i32, 4>)) {
    return __builtin_ia32_cvtdq2pd256(x);
  } else if constexpr (N == 4 && whole && sizeof(T) == 8 && __is_same(F, V<i16, 4>)) {
    return (To)__builtin_ia32_pmovsxwq256((V<i16, 8>)padded(x));
  } else if constexpr (N == 4 && whole && sizeof(T) == 8 && from == 1) {
    if constexpr (is_signed) return (To)__builtin_ia32_pmovsxbq256(padded_word(first_bytes<i32>(x)));
    else return (To)__builtin_ia32_pmovzxbq256(padded_word(first_bytes<i32>(x)));
  } else if constexpr (N == 4 && whole && sizeof(T) == 4 && from == 1) {
    if constexpr (is_signed) return (To)__builtin_ia32_pmovsxbd128(padded_word(first_bytes<i32>(x)));
    else return (To)__builtin_ia32_pmovzxbd128(padded_word(first_bytes<i32>(x)));
  }
#endif
  return __builtin_convertvector(x, To);
}
// Selection between vectors of any lane width by a V<i32, N>.
template <class F> MD_INLINE F select(V<i32, MD_LANES(F)> m, F a, F b) {
  constexpr int N = MD_LANES(F);
#if MD_AVX512
  if constexpr (N == 8 && sizeof(F) == 64) {
    typedef V<double, 8> D;
    return (F)__builtin_ia32_blendmpd_512_mask((D)b, (D)a, __builtin_ia32_cvtd2mask256(m));
  }
#elif MD_AVX2
  if constexpr (N == 4 && sizeof(F) == 32) {
    typedef V<double, 4> D;
    return (F)__builtin_ia32_blendvpd256((D)b, (D)a, (D)__builtin_ia32_pmovsxdq256(m));
  }
#endif
  if constexpr (sizeof(a[0]) == 4)
    return m ? a : b;
  else
    return __builtin_convertvector(m, V<typename UIntOf<sizeof(a[0])>::type, N>) ? a : b;
}
template <class M> MD_INLINE V<i32, MD_LANES(M)> mask(M m) {  // of a comparison's result
  if constexpr (sizeof(m[0]) == 4)
    return m;
#if MD_AVX2
  else if constexpr (sizeof(M) == 32 && MD_LANES(M) == 4)
    return low_words((V<i64, 4>)m);
#endif
  else
    return __builtin_convertvector(m, V<i32, MD_LANES(M)>);
}
template <class F> MD_INLINE V<i32, MD_LANES(F)> from_bytes(F x) {  // bytes 0 and 1 to a bool value
  return convert<i32>(x) != 0;
}
template <class F> MD_INLINE V<u8, MD_LANES(F)> to_bytes(F m) {
#if MD_AVX2
  if constexpr (sizeof(F) == 32) {
    V<i32, 4> parts[2];
    __builtin_memcpy(parts, &m, sizeof(m));
    V<i16, 8> words = __builtin_ia32_packssdw128(parts[0], parts[1]);
    return first_bytes<V<u8, 8>>((V<u8, 16>)__builtin_ia32_packsswb128(words, words) & 1);
  }
#endif
  return convert<u8>(m & 1);
}
template <int N> MD_INLINE V<i32, N> first_lanes(All) { return V<i32, N>{} == 0; }
template <int N> MD_INLINE V<i32, N> first_lanes(Some w) { return iota<N>() < (i32)w.n; }

template <class H> MD_INLINE V<u32, MD_LANES(H)> widened(H x) {  // u16 to u32
#if MD_AVX512
  if constexpr (sizeof(x) == 32) return (V<u32, 16>)__builtin_ia32_pmovzxwd512_mask((V<i16, 16>)x, V<i32, 16>{}, (u16)-1);
#endif
#if MD_AVX2
  if constexpr (sizeof(x) == 16) return (V<u32, 8>)__builtin_ia32_pmovzxwd256((V<i16, 8>)x);
  if constexpr (sizeof(x) == 8) return (V<u32, 4>)__builtin_ia32_pmovzxwd128((V<i16, 8>)padded(x));
#endif
  return __builtin_convertvector(x, V<u32, MD_LANES(H)>);
}
template <class F> MD_INLINE V<u16, MD_LANES(F)> narrowed(F x) {  // u32 below 65536 to u16
#if MD_AVX512
  if constexpr (sizeof(x) == 64) return (V<u16, 16>)__builtin_ia32_pmovdw512_mask((V<i32, 16>)x, V<i16, 16>{}, (u16)-1);
#endif
#if MD_AVX2
  if constexpr (sizeof(x) == 32) return (V<u16, 8>)packed_words((V<i32, 8>)x);
  if constexpr (sizeof(x) == 16)
    return first_bytes<V<u16, 4>>(__builtin_ia32_packusdw128((V<i32, 4>)x, (V<i32, 4>)x));
#endif
  return __builtin_convertvector(x, V<u16, MD_LANES(F)>);
}
template <class H> MD_INLINE V<float, MD_LANES(H)> from_bfloat(H x) {
  return (V<float, MD_LANES(H)>)(widened(x) << 16);
}
template <class F> MD_INLINE V<u16, MD_LANES(F)> to_bfloat(F x) {
  constexpr int N = MD_LANES(F);
#if MD_AVX512 && defined(__AVX512BF16__)
  // The machine rounds as below, but takes denormal numbers for zeros and keeps the sign of a NaN.
  if constexpr (N == 16) {
    if (__builtin_expect(!__builtin_ia32_fpclassps512_mask(x, 0x01 | 0x20 | 0x80, (u16)-1), 1)) {
      V<u16, 16> r;
      asm("vcvtneps2bf16 %1, %0" : "=v"(r) : "v"(x));
      return r;
    }
  }
#endif
  V<u32, N> u = (V<u32, N>)x;
  V<u32, N> rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return narrowed(x == x ? rounded : V<u32, N>{} + 0x7fc0);
}
template <class F> MD_INLINE F through_bfloat(F x) {  // from_bfloat(to_bfloat(x))
#if MD_AVX512 && defined(__AVX512BF16__)
  return from_bfloat(to_bfloat(x));
#else
  constexpr int N = MD_LANES(F);
  V<u32, N> u = (V<u32, N>)x;
  V<u32, N> rounded = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000;
  return (F)(x == x ? rounded : V<u32, N>{} + 0x7fc00000);
#endif
}
MD_INLINE float from_bfloat(u16 x) {
  u32 u = (u32)x << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
MD_INLINE u16 to_bfloat(float x) {
  u32 u;
  __builtin_memcpy(&u, &x, 4);
  return x == x ? (u16)((u + 0x7fff + ((u >> 16) & 1)) >> 16) : (u16)0x7fc0;
}
MD_INLINE float from_half(u16 x) {
  _Float16 h;
  __builtin_memcpy(&h, &x, 2);
  return (float)h;
}
MD_INLINE u16 to_half(float x) {
  _Float16 h = (_Float16)x;
  u16 r;
  __builtin_memcpy(&r, &h, 2);
  return r;
}
template <class H> MD_INLINE V<float, MD_LANES(H)> from_half(H x) {
  constexpr int N = MD_LANES(H);
#if MD_AVX512
  if constexpr (N == 16)
    return __builtin_ia32_vcvtph2ps512_mask((V<i16, 16>)x, V<float, 16>{}, (u16)-1, 4);
#endif
#if __F16C__
  if constexpr (N == 8) return __builtin_ia32_vcvtph2ps256((V<i16, 8>)x);
#endif
#if __F16C__ && MD_AVX2
  if constexpr (N == 4) return __builtin_ia32_vcvtph2ps((V<i16, 8>)padded(x));
#endif
  V<float, N> r;
  for (int i = 0; i < N; i++) r[i] = from_half((u16)x[i]);
  return r;
}
template <class F> MD_INLINE V<u16, MD_LANES(F)> to_half(F x) {
  constexpr int N = MD_LANES(F);
#if MD_AVX512
  if constexpr (N == 16) return (V<u16, 16>)__builtin_ia32_vcvtps2ph512_mask(x, 0, V<i16, 16>{}, (u16)-1);
#endif
#if __F16C__
  if constexpr (N == 8) return (V<u16, 8>)__builtin_ia32_vcvtps2ph256(x, 0);
#endif
#if __F16C__ && MD_AVX2
  if constexpr (N == 4) return first_bytes<V<u16, 4>>(__builtin_ia32_vcvtps2ph(x, 0));
#endif
  V<u16, N> r;
  for (int i = 0; i < N; i++) r[i] = to_half((float)x[i]);
  return r;
}

// ---- arithmetic that has no operator -----------------------------------------------------------------------
#define MD_IS(F, T, B) (__is_same(decltype(F{}[0] + F{}[0]), T) && sizeof(F) == (B))

template <class F> MD_INLINE F fma(F a, F b, F c) {
#if MD_AVX512
  if constexpr (MD_IS(F, float, 64)) return __builtin_ia32_vfmaddps512_mask(a, b, c, (u16)-1, 4);
  if constexpr (MD_IS(F, double, 64)) return __builtin_ia32_vfmaddpd512_mask(a, b, c, (u8)-1, 4);
#endif
#if MD_AVX512 || MD_AVX2
  if constexpr (MD_IS(F, float, 32)) return __builtin_ia32_vfmaddps256(a, b, c);
  if constexpr (MD_IS(F, double, 32)) return __builtin_ia32_vfmaddpd256(a, b, c);
#endif
#if MD_AVX2
  if constexpr (MD_IS(F, float, 16)) return __builtin_ia32_vfmaddps(a, b, c);
  if constexpr (MD_IS(F, double, 16)) return __builtin_ia32_vfmaddpd(a, b, c);
#endif
  F r;
  for (unsigned i = 0; i < MD_LANES(F); i++) r[i] = sizeof(a[0]) == 4 ? __builtin_fmaf(a[i], b[i], c[i]) : __builtin_fma(a[i], b[i], c[i]);
  return r;
}
template <class F> MD_INLINE F sqrt(F x) {
#if MD_AVX512
  if constexpr (MD_IS(F, float, 64)) return __builtin_ia32_sqrtps512_mask(x, x, (u16)-1, 4);
  if constexpr (MD_IS(F, double, 64)) return __builtin_ia32_sqrtpd512_mask(x, x, (u8)-1, 4);
#endif
#if MD_AVX512 || MD_AVX2
  if constexpr (MD_IS(F, float, 32)) return __builtin_ia32_sqrtps256(x);
  if constexpr (MD_IS(F, double, 32)) return __builtin_ia32_sqrtpd256(x);
#endif
#if MD_AVX2
  if constexpr (MD_IS(F, float, 16)) return __builtin_ia32_sqrtps(x);
  if constexpr (MD_IS(F, double, 16)) return __builtin_ia32_sqrtpd(x);
#endif
  F r;
  for (unsigned i = 0; i < MD_LANES(F); i++) r[i] = sizeof(x[0]) == 4 ? __builtin_sqrtf(x[i]) : __builtin_sqrt(x[i]);
  return r;
}
// MODE: 0 nearest even, 1 floor, 2 ceil, 3 to zero.
template <int MODE, class F> MD_INLINE F rounded(F x) {
#if MD_AVX512
  if constexpr (MD_IS(F, float, 64)) return __builtin_ia32_rndscaleps_mask(x, MODE | 8, x, (u16)-1, 4);
  if constexpr (MD_IS(F, double, 64)) return __builtin_ia32_rndscalepd_mask(x, MODE | 8, x, (u8)-1, 4);
#endif
#if MD_AVX512 || MD_AVX2
  if constexpr (MD_IS(F, float, 32)) return __builtin_ia32_roundps256(x, MODE | 8);
  if constexpr (MD_IS(F, double, 32)) return __builtin_ia32_roundpd256(x, MODE | 8);
#endif
#if MD_AVX2
  if constexpr (MD_IS(F, float, 16)) return __builtin_ia32_roundps(x, MODE | 8);
  if constexpr (MD_IS(F, double, 16)) return __builtin_ia32_roundpd(x, MODE | 8);
#endif
  F r;
  for (unsigned i = 0; i < MD_LANES(F); i++) {
    double d = x[i];
    d = MODE == 0 ? __builtin_rint(d) : MODE == 1 ? __builtin_floor(d) : MODE == 2 ? __builtin_ceil(d) : __builtin_trunc(d);
    r[i] = d;
  }
  return r;
}
template <class F> MD_INLINE F bits_and(F x, typename UIntOf<sizeof(F{}[0])>::type m) {
  typedef V<typename UIntOf<sizeof(F{}[0])>::type, MD_LANES(F)> I;
  return (F)((I)x & m);
}
template <class F> MD_INLINE F abs(F x) {
  if constexpr (__is_same(decltype(F{}[0] + F{}[0]), float) || __is_same(decltype(F{}[0] + F{}[0]), double)) {
    typedef typename UIntOf<sizeof(F{}[0])>::type E;
    return bits_and(x, (E)~((E)1 << (8 * sizeof(E) - 1)));
  } else {
    return x < 0 ? -x : x;
  }
}
template <class F> MD_INLINE F copysign(F x, F y) {
  typedef typename UIntOf<sizeof(F{}[0])>::type E;
  typedef V<E, MD_LANES(F)> I;
  E sign = (E)((E)1 << (8 * sizeof(E) - 1));
  return (F)(((I)x & ~sign) | ((I)y & sign));
}
// The larger and the smaller; y if either is NaN, as the instructions have it.
template <class F> MD_INLINE F larger(F x, F y) {
#if MD_AVX512
  if constexpr (MD_IS(F, float, 64)) return __builtin_ia32_maxps512_mask(x, y, x, (u16)-1, 4);
  if constexpr (MD_IS(F, double, 64)) return __builtin_ia32_maxpd512_mask(x, y, x, (u8)-1, 4);
#endif
#if MD_AVX512 || MD_AVX2
  if constexpr (MD_IS(F, float, 32)) return __builtin_ia32_maxps256(x, y);
  if constexpr (MD_IS(F, double, 32)) return __builtin_ia32_maxpd256(x, y);
#endif
#if MD_AVX2
  if constexpr (MD_IS(F, float, 16)) return __builtin_ia32_maxps(x, y);
  if constexpr (MD_IS(F, double, 16)) return __builtin_ia32_maxpd(x, y);
#endif
  return x > y ? x : y;
}
template <class F> MD_INLINE F smaller(F x, F y) {
#if MD_AVX512
  if constexpr (MD_IS(F, float, 64)) return __builtin_ia32_minps512_mask(x, y, x, (u16)-1, 4);
  if constexpr (MD_IS(F, double, 64)) return __builtin_ia32_minpd512_mask(x, y, x, (u8)-1, 4);
#endif
#if MD_AVX512 || MD_AVX2
  if constexpr (MD_IS(F, float, 32)) return __builtin_ia32_minps256(x, y);
  if constexpr (MD_IS(F, double, 32)) return __builtin_ia32_minpd256(x, y);
#endif
#if MD_AVX2
  if constexpr (MD_IS(F, float, 16)) return __builtin_ia32_minps(x, y);
  if constexpr (MD_IS(F, double, 16)) return __builtin_ia32_minpd(x, y);
#endif
  return x < y ? x : y;
}
// NaN wins.
template <class F> MD_INLINE F maximum(F x, F y) {
  F r = larger(x, y);
  return x == x ? r : x;
}
template <class F> MD_INLINE F minimum(F x, F y) {
  F r = smaller(x, y);
  return x == x ? r : x;
}

template <class F> MD_INLINE F round_even(F x) { return rounded<0>(x); }
template <class F> MD_INLINE F floor(F x) { return rounded<1>(x); }
template <class F> MD_INLINE F ceil(F x) { return rounded<2>(x); }
template <class F> MD_INLINE F trunc(F x) { return rounded<3>(x); }
template <class F> MD_INLINE V<i32, MD_LANES(F)> signbit(F x) {
  return mask((V<typename UIntOf<sizeof(F{}[0])>::type, MD_LANES(F)>)x < 0);
}
// Integers: quotients to minus infinity; shifts by any count.
template <class F> MD_INLINE F floordiv(F a, F b) {
  F q = a / b;
  return q + (F)((q * b != a) & ((a < 0) != (b < 0)));
}
template <class F> MD_INLINE F int_remainder(F a, F b) { return a - floordiv(a, b) * b; }
template <class F> MD_INLINE F lshift(F a, F b) {
  auto fits = (b >= 0) & (b < (i32)(8 * sizeof(a[0])));
  return (F)fits & (a << (b & (i32)(8 * sizeof(a[0]) - 1)));
}
template <class F> MD_INLINE F rshift(F a, F b) {
  auto fits = (b >= 0) & (b < (i32)(8 * sizeof(a[0])));
  F last = F{} + (i32)(8 * sizeof(a[0]) - 1);
  if constexpr ((__typeof__(a[0]))-1 > (__typeof__(a[0]))0) return (F)fits & (a >> (b & last));
  return a >> (fits ? b : last);
}
#define MD_INT_SCALAR(name)                                                             \
  template <class T> MD_INLINE T name##_s(T a, T b) { return name(splat<2>(a), splat<2>(b))[0]; }
MD_INT_SCALAR(floordiv) MD_INT_SCALAR(int_remainder) MD_INT_SCALAR(lshift) MD_INT_SCALAR(rshift)
template <class T, class S> MD_INLINE T bitcast(S x) {
  T r;
  __builtin_memcpy(&r, &x, sizeof(T));
  return r;
}
MD_INLINE i64 floor_index(i64 a, i64 b) { return a / b - (a % b < 0); }
MD_INLINE i64 mod_index(i64 a, i64 b) { return a - floor_index(a, b) * b; }
MD_INLINE i64 wrapped(i64 a, i64 b) { return a < b ? a : a - b; }

// Memory for a row of as many elements as the sizes say; a few of them stand on the stack.
template <class T, int few> struct Row {
  alignas(64) T own[few];
  T* first;
  explicit Row(i64 elements) : first(own) {
    if (elements > few) first = new T[elements];
  }
  ~Row() {
    if (first != own) delete[] first;
  }
  Row(const Row&) = delete;
};

// A number that fits, has the sign of `x`, and is `x` where the lanes of a vector may reach 0.
MD_INLINE i32 near(i64 x) {
  constexpr i64 far = 1 << 30;
  return (i32)(x < -far ? -far : x > far ? far : x);
}

template <class T, int N> MD_INLINE V<T, N> linear(i64 first, i64 step) {  // first, first + step, ...
  if constexpr ((T)0.5 == 0) {
    return splat<N>((T)first) + __builtin_convertvector(iota<N>(), V<T, N>) * (T)step;
  } else {
    V<T, N> r;
    for (int i = 0; i < N; i++) r[i] = (T)(first + step * i);
    return r;
  }
}
// Elements at positions that are often neighbours, in both: one load where they all are.
template <int N, class T, class W, class F> MD_INLINE V<T, N> gather_runs(W w, F at) {
  if constexpr (__is_same(W, All)) {
    const T* p = at(0);
    if (at(N - 1) == p + (N - 1)) return ld<N>(p, w);
  }
  return gather<N, T>(w, at);
}
template <int N, class T, class W, class I> MD_INLINE V<T, N> gather_at(W w, const T* p, I at) {
  if constexpr (__is_same(W, All)) {
    if (!lane_bits(mask(at - at[0] != convert<decltype(at[0] + 0)>(iota<N>())))) return ld<N>(p + at[0], w);
  }
#if MD_AVX2
  if constexpr (N <= 8) {
    // A lane is taken out of a vector by a number that the compiler knows: lanes after the last have the first element.
    if constexpr (__is_same(W, Some)) at = select(first_lanes<N>(w), at, splat<N>(at[0]));
    return built<T, N>(All{}, [&](int l) __attribute__((always_inline)) { return p[at[l]]; });
  }
#endif
  V<T, N> r{};
  for (int i = 0; i < lanes<N>(w); i++) r[i] = p[at[i]];
  return r;
}
template <class T, int N, class At> MD_INLINE V<T, N> lanewise(At at) {
#if MD_AVX2
  if constexpr (N <= 8) return built<T, N>(All{}, at);
#endif
  V<T, N> r;
  for (int i = 0; i < N; i++) r[i] = (T)at(i);
  return r;
}

// ---- reductions --------------------------------------------------------------------------------------------
// Each has an identity, combines two values of lanes, and folds lanes to a number.
template <class F> MD_INLINE F only(All, F x, F) { return x; }
template <class F> MD_INLINE F only(Some w, F x, F identity) {
  return select(first_lanes<MD_LANES(F)>(w), x, identity);
}
template <class F> MD_INLINE auto low_half(F x) {
  constexpr int N = MD_LANES(F);
  if constexpr (N == 16) return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
  if constexpr (N == 8) return __builtin_shufflevector(x, x, 0, 1, 2, 3);
  if constexpr (N == 4) return __builtin_shufflevector(x, x, 0, 1);
}
template <class F> MD_INLINE auto high_half(F x) {
  constexpr int N = MD_LANES(F);
  if constexpr (N == 16) return __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  if constexpr (N == 8) return __builtin_shufflevector(x, x, 4, 5, 6, 7);
  if constexpr (N == 4) return __builtin_shufflevector(x, x, 2, 3);
}
struct Add { template <class F> static F both(F a, F b) { return a + b; } };
struct Mul { template <class F> static F both(F a, F b) { return a * b; } };
struct Or { template <class F> static F both(F a, F b) { return a | b; } };
struct And { template <class F> static F both(F a, F b) { return a & b; } };
// Of equal numbers the second, which is the one that has been seen last.
struct Max {
  template <class F> static F both(F a, F b) { return maximum(a, b); }
  template <class F> static auto takes(F a, F b) { return (b >= a) | (b != b); }
};
struct Min {
  template <class F> static F both(F a, F b) { return minimum(a, b); }
  template <class F> static auto takes(F a, F b) { return (b <= a) | (b != b); }
};
template <class Op, class F> MD_INLINE auto fold(F x) {
  constexpr int N = MD_LANES(F);
  if constexpr (N == 2) {
    return Op::both(F{x[0], x[1]}, F{x[1], x[0]})[0];
  } else {
    return fold<Op>(Op::both(low_half(x), high_half(x)));
  }
}
// Each lane combined with those before it: first with the neighbour, then with two, four, ... of them.
template <class Op, int STEP, class F, int... LANE> MD_INLINE F scan_lanes(F x, F identity, Lanes<LANE...> all) {
  constexpr int N = MD_LANES(F);
  if constexpr (STEP >= N) {
    return x;
  } else {
    F before = __builtin_shufflevector(x, identity, (LANE < STEP ? N : LANE - STEP)...);
    return scan_lanes<Op, 2 * STEP>(Op::both(before, x), identity, all);
  }
}
// N steps of a scan along a row. Extremes that stay what they are, as they mostly do, take one comparison.
template <class Op, class W, class F, class T> MD_INLINE F scan_row(W w, F x, T& run, T identity) {
  constexpr int N = MD_LANES(F);
  F sofar = splat<N>(run), none = splat<N>(identity);
  x = only(w, x, none);
  if constexpr (__is_same(Op, Max) || __is_same(Op, Min)) {
    if (!lane_bits(mask(Op::takes(sofar, x)))) return sofar;
  }
  x = Op::both(sofar, scan_lanes<Op, 1>(x, none, typename Counted<N>::type{}));
  run = x[N - 1];
  return x;
}
// The extreme value with its position; lanes that have seen nothing are at -1.
template <class T, class I, int N, bool LARGEST> struct Extreme {
  V<T, N> value;
  V<I, N> index;
  MD_METHOD Extreme() : value{}, index{} { index -= 1; }
  MD_METHOD void take(V<T, N> x, V<I, N> at, V<i32, N> valid) {
    V<i32, N> better = mask(LARGEST ? x > value : x < value) | mask((x != x) & (value == value)) | mask(index < 0);
    better &= valid;
    value = select(better, x, value);
    index = select(better, at, index);
  }
  MD_METHOD void merge(const Extreme& o) {
    V<i32, N> nan = mask(value != value), other_nan = mask(o.value != o.value);
    V<i32, N> better = (mask(LARGEST ? o.value > value : o.value < value) & ~nan) | (other_nan & ~nan);
    V<i32, N> equal = mask(o.value == value) | (nan & other_nan);
    V<i32, N> take_it = (better | (equal & mask(o.index < index)) | mask(index < 0)) & mask(o.index >= 0);
    value = select(take_it, o.value, value);
    index = select(take_it, o.index, index);
  }
  MD_METHOD i64 fold() const {
    if constexpr (N == 2) {
      Extreme other;
      other.value = V<T, N>{value[1], value[0]};
      other.index = V<I, N>{index[1], index[0]};
      other.merge(*this);
      return other.index[0] < 0 ? 0 : other.index[0];
    } else {
      Extreme<T, I, N / 2, LARGEST> low, high;
      low.value = low_half(value), low.index = low_half(index);
      high.value = high_half(value), high.index = high_half(index);
      low.merge(high);
      return low.fold();
    }
  }
};

// ---- checks of data, random numbers --------------------------------------------------------------------------
template <class T> MD_INLINE T check_s(T x, bool good, i64* failure, int number) {
  if (__builtin_expect(!good, 0)) {
    failure[1] = (i64)x;
    failure[0] = number;
    return T{};
  }
  return x;
}
template <class F, class W> MD_INLINE F check(F x, V<i32, MD_LANES(F)> good, W w, i64* failure, int number) {
  constexpr int N = MD_LANES(F);
  const u32 bad = ~lane_bits(good) & (u32)((1ull << lanes<N>(w)) - 1);
  if (__builtin_expect(bad == 0 && __is_same(W, All), 1)) return x;
  for (int i = 0; i < lanes<N>(w); i++) check_s(x[i], good[i] != 0, failure, number);
  return select(good, x, F{});
}
// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
template <int N> MD_INLINE V<i32, N> philox(V<i64, N> seed, V<i64, N> counter, int word) {
  typedef V<u64, N> W;
  W low = W{} + 0xffffffffu;
  W k0 = (W)seed & low, k1 = (W)seed >> 32;
  W c0 = (W)counter & low, c1 = (W)counter >> 32, c2{}, c3{};
  for (int i = 0; i < 10; i++) {
    W a = c0 * 0xD2511F53ull, b = c2 * 0xCD9E8D57ull;
    c0 = (b >> 32) ^ c1 ^ k0;
    c2 = (a >> 32) ^ c3 ^ k1;
    c1 = b & low;
    c3 = a & low;
    k0 = (k0 + 0x9E3779B9u) & low;
    k1 = (k1 + 0xBB67AE85u) & low;
  }
  W r = word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
  return __builtin_convertvector((V<i64, N>)r, V<i32, N>);
}
MD_INLINE i32 philox_s(i64 seed, i64 counter, int word) {
  return philox<2>(V<i64, 2>{seed, seed}, V<i64, 2>{counter, counter}, word)[0];
}
}  // namespace md
