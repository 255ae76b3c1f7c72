// The functions of kernels: float32 mathematics accurate to 2 units in the last place, and the names under
// which those of `cpp_math64.h` are called. What is left is the C library's, lane by lane.
#pragma once

namespace md {

// ---- functions by lanes, from the C library ----------------------------------------------------------------
#define MD_BY_LANE(name, f32, f64)                                                      \
  template <class F> __attribute__((noinline)) static F name##_lanes(F x) {             \
    for (unsigned i = 0; i < MD_LANES(F); i++) x[i] = sizeof(x[0]) == 4 ? f32(x[i]) : f64(x[i]); \
    return x;                                                                           \
  }
#define MD_BY_LANE2(name, f32, f64)                                                     \
  template <class F> __attribute__((noinline)) static F name##_lanes(F x, F y) {        \
    for (unsigned i = 0; i < MD_LANES(F); i++)                                          \
      x[i] = sizeof(x[0]) == 4 ? f32(x[i], y[i]) : f64(x[i], y[i]);                     \
    return x;                                                                           \
  }
#define MD_UNARY(name) MD_BY_LANE(name, __builtin_##name##f, __builtin_##name)
MD_UNARY(lgamma) MD_UNARY(sin) MD_UNARY(cos) MD_UNARY(tan)
MD_BY_LANE2(pow, __builtin_powf, __builtin_pow) MD_BY_LANE2(fmod, __builtin_fmodf, __builtin_fmod)
MD_BY_LANE2(hypot, __builtin_hypotf, __builtin_hypot)

template <class F> MD_INLINE F lgamma(F x) { return lgamma_lanes(x); }
// Exact: |x| - q |y| has no rounding, where q is the quotient or a neighbour of it.
template <class F> MD_INLINE F fmod(F x, F y) {
  F a = abs(x), b = abs(y), q = rounded<3>(a / b);
  const LaneOf<F> limit = sizeof(x[0]) == 4 ? 0x1p22 : 0x1p51, least = sizeof(x[0]) == 4 ? 0x1p-100 : 0x1p-900;
  if (__builtin_expect(any<F>(mask(~((q < limit) & (b > least) & (b < 1 / least)))), 0)) return fmod_lanes(x, y);
  F r = fma(-q, b, a);
  r = r < 0 ? r + b : r;
  r = r >= b ? r - b : r;
  return copysign(r, x);
}
template <class F> MD_INLINE F nextafter(F x, F y) {
  typedef V<typename UIntOf<sizeof(F{}[0])>::type, MD_LANES(F)> I;
  I bits = (I)x, one = I{} + 1;
  bits = (x < y) == (x > 0) ? bits + one : bits - one;
  F next = x == 0 ? copysign((F)one, y) : (F)bits;
  return (x == x) & (y == y) ? (x == y ? y : next) : x + y;
}

template <class F> MD_INLINE F remainder(F x, F y) {
  F m = fmod(x, y);
  return (m != 0) & ((m < 0) != (y < 0)) ? m + y : m;
}

// ---- float32 functions -------------------------------------------------------------------------------------
// Polynomials are minimax fits of the reduced functions; the last coefficient comes first in POLY.
template <class F> MD_INLINE F poly(F, float c) { return F{} + c; }
template <class F, class... C> MD_INLINE F poly(F x, float c, C... rest) { return fma(poly(x, rest...), x, F{} + c); }


// 2 ** n for -127 < n < 128
template <class F> MD_INLINE F exponent(IntOf<F> n) { return (F)((n + 127) << 23); }
template <class F> MD_INLINE F scaled(F x, F n) {  // x * 2 ** n, n integral, x near 1
#if MD_AVX512
  if constexpr (MD_IS(F, float, 64)) return __builtin_ia32_scalefps512_mask(x, n, x, (u16)-1, 4);
#endif
  IntOf<F> k = __builtin_convertvector(n, IntOf<F>), half = k >> 1;
  return x * exponent<F>(half) * exponent<F>(k - half);
}
template <class F> MD_INLINE F reduced_exp(F x, F& n) {  // x = n ln 2 + r
  n = rounded<0>(x * 1.44269504f);
  F r = fma(n, F{} - 0.693145752f, x);
  return fma(n, F{} - 1.42860677e-6f, r);
}
template <class F> MD_INLINE F exp(F x) {
  if constexpr (!is_f32<F>) {
    return exp64(x);
  } else {
    F n, r = reduced_exp(clamped(x, -104.f, 89.f), n);
    F p = poly(r, 0.5f, 0.166665122f, 0.0416661873f, 0.00836959854f, 0.00139517197f);
    return scaled(fma(r * r, p, r) + 1.f, n);
  }
}
template <class F> MD_INLINE F expm1_poly(F r) {
  F p = poly(r, 0.5f, 0.166666672f, 0.0416663438f, 0.00833327044f, 0.00139420456f, 0.000199156231f);
  return fma(r * r, p, r);
}
template <class F> MD_INLINE F expm1(F x) {
  if constexpr (!is_f32<F>) {
    return expm1_64(x);
  } else {
    F n, r = reduced_exp(clamped(x, -20.f, 89.f), n);
    F half = scaled(F{} + 0.5f, n);  // 2 ** n itself could overflow
    F y = 2.f * fma(expm1_poly(r), half, half - 0.5f);
    return x == 0.f ? x : y;
  }
}
template <class F> MD_INLINE F exp2(F x) {
  if constexpr (!is_f32<F>) {
    return exp2_64(x);
  } else {
    x = clamped(x, -151.f, 129.f);
    F n = rounded<0>(x), r = x - n;
    F p = poly(r, 0.693147182f, 0.240226507f, 0.0555032454f, 0.0096179992f, 0.00134016119f, 0.000154777648f);
    return scaled(fma(r, p, F{} + 1.f), n);
  }
}
// log(x) = e ln 2 + log(1 + f), sqrt(1/2) <= 1 + f < sqrt(2); x positive and finite
template <class F> MD_INLINE F split(F x, F& e) {
  typedef IntOf<F> I;
  I tiny = x < 1.17549435e-38f;
  x = tiny ? x * 8388608.f : x;
  I bits = (I)x;
  I k = (bits - 0x3f3504f3) >> 23;
  e = __builtin_convertvector(k + (tiny & -23), F);
  return (F)(bits - (k << 23)) - 1.f;
}
template <class F> MD_INLINE F log_tail(F f) {  // log(1 + f) - f
  F p = poly(f, 0.333333135f, -0.250000089f, 0.200021341f, -0.166680068f, 0.142192245f, -0.124051362f, 0.118903227f,
             -0.116796471f, 0.0674659237f);
  F f2 = f * f;
  return fma(f2 * f, p, f2 * -0.5f);
}
template <class F> MD_INLINE F log_special(F x, F y) {  // the values outside (0, inf)
  float inf = __builtin_inff();
  y = x == 0.f ? F{} - inf : y;
  y = x == inf ? x : y;
  return x < 0.f ? F{} + __builtin_nanf("") : (x == x ? y : x);
}
template <class F> MD_INLINE F log(F x) {
  if constexpr (!is_f32<F>) {
    return log64(x);
  } else {
    F e, f = split(x, e);
    F y = fma(e, F{} + 1.42860677e-6f, log_tail(f));
    return log_special(x, fma(e, F{} + 0.693145752f, f + y));
  }
}
template <class F> MD_INLINE F log1p(F x) {
  if constexpr (!is_f32<F>) {
    return log1p64(x);
  } else {
    IntOf<F> small = (x > -0.29f) & (x < 0.41f);  // these need no splitting
    F u = x + 1.f;
    F lost = u > 2.f ? 1.f - (u - x) : x - (u - 1.f);
    F e, f = split(u, e);
    f = small ? x : f;
    e = small ? F{} : e;
    F y = fma(e, F{} + 1.42860677e-6f, log_tail(f) + (small ? F{} : lost * about_inverse(u)));
    y = fma(e, F{} + 0.693145752f, f + y);
    y = u == __builtin_inff() ? u : y;
    y = x == -1.f ? F{} - __builtin_inff() : y;
    y = x < -1.f ? F{} + __builtin_nanf("") : y;
    return x == 0.f ? x : (x == x ? y : x);
  }
}
template <class F> MD_INLINE F log2(F x) {
  if constexpr (!is_f32<F>) {
    return log2_64(x);
  } else {
    F e, f = split(x, e), t = log_tail(f);
    F y = fma(t, F{} + 1.44269504f, f * 1.92596303e-8f);  // log2(e) in two parts
    return log_special(x, fma(f, F{} + 1.44269504f, y) + e);
  }
}
template <class F> MD_INLINE F log10(F x) {
  if constexpr (!is_f32<F>) {
    return log10_64(x);
  } else {
    F e, f = split(x, e), t = log_tail(f);
    F y = fma(t, F{} + 0.434294492f, f * -1.01030e-8f);  // log10(e) and log10(2) in two parts
    y = fma(f, F{} + 0.434294492f, fma(e, F{} - 1.43209e-8f, y));
    return log_special(x, fma(e, F{} + 0.301030010f, y));
  }
}
// x = n pi/2 + r; false where |x| is too large for it
template <class F> MD_INLINE F reduced_angle(F x, IntOf<F>& n) {
  F k = rounded<0>(x * 0.636619772f);
  n = __builtin_convertvector(k, IntOf<F>);
  F r = fma(k, F{} - 1.57079601f, x);
  r = fma(k, F{} - 3.1391647e-7f, r);
  return fma(k, F{} - 5.3903025e-15f, r);
}
template <class F> MD_INLINE bool large_angle(F x) { return __builtin_expect(any<F>(abs(x) > 48000.f), 0); }
template <class F> MD_INLINE F sin_poly(F r) {
  F z = r * r;
  return fma(z * r, poly(z, -0.166666672f, 0.00833332911f, -0.000198391761f, 2.71681006e-6f), r);
}
template <class F> MD_INLINE F cos_poly(F r) {
  F z = r * r;
  return fma(z * z, poly(z, 0.0416666679f, -0.00138888834f, 2.47993503e-5f, -2.71963046e-7f), fma(z, F{} - 0.5f, F{} + 1.f));
}
template <class F> MD_INLINE F sin_quarter(F r, IntOf<F> n) {
  F y = (n & 1) != 0 ? cos_poly(r) : sin_poly(r);
  return (F)((IntOf<F>)y ^ ((n & 2) << 30));
}
template <class F> MD_INLINE F sin(F x) {
  if constexpr (!is_f32<F>) {
    if (large_angle64(x)) return sin_lanes(x);
    Int64Of<F> n;
    F r = reduced_angle64(x, n);
    return x == 0 ? x : sin_quarter64(r, n);
  } else {
    if (large_angle(x)) return sin_lanes(x);
    IntOf<F> n;
    F r = reduced_angle(x, n);
    return x == 0.f ? x : sin_quarter(r, n);
  }
}
template <class F> MD_INLINE F cos(F x) {
  if constexpr (!is_f32<F>) {
    if (large_angle64(x)) return cos_lanes(x);
    Int64Of<F> n;
    F r = reduced_angle64(x, n);
    return sin_quarter64(r, n + 1);
  } else {
    if (large_angle(x)) return cos_lanes(x);
    IntOf<F> n;
    F r = reduced_angle(x, n);
    return sin_quarter(r, n + 1);
  }
}
template <class F> MD_INLINE F tan(F x) {
  if constexpr (!is_f32<F>) {
    if (large_angle64(x)) return tan_lanes(x);
    Int64Of<F> n;
    F r = reduced_angle64(x, n);
    return x == 0 ? x : tan_quarter64(r, n);
  } else {
    if (large_angle(x)) return tan_lanes(x);
    // The angle and the result carry a second part: -1 / t would double their rounding errors.
    F k = rounded<0>(x * 0.636619772f);
    IntOf<F> n = __builtin_convertvector(k, IntOf<F>);
    F first = fma(k, F{} - 1.57079601f, x), step = k * -3.1391647e-7f, r = first + step, z = r * r;
    F back = r - first, low = (first - (r - back)) + (step - back);  // what the sum lost
    low = fma(k, F{} - 5.3903025e-15f, low + fma(k, F{} - 3.1391647e-7f, -step));
    F p = poly(z, 0.333333522f, 0.13332577f, 0.0540692583f, 0.021235453f, 0.0109537896f, -5.673329e-05f, 0.00444708206f);
    F c = fma(z * r, p, fma(z, low, low)), t = r + c, q = -1.f / t;
    F rest = fma(q, t, F{} + 1.f) + q * ((r - t) + c);
    t = (n & 1) != 0 ? fma(q, rest, q) : t;
    return x == 0.f ? x : t;
  }
}
template <class F> MD_INLINE F tanh(F x) {
  if constexpr (!is_f32<F>) {
    return tanh64(x);
  } else {
    F a = abs(x), z = x * x;
    F small = fma(z * x, poly(z, -0.333332986f, 0.133319587f, -0.0537866838f, 0.0208053887f, -0.00590587361f), x);
    F large = 1.f - 2.f / (exp(2.f * a) + 1.f);
    return copysign(a < 0.6f ? small : large, x);
  }
}
#if MD_AVX512
// By polynomials around the multiples of 33/128, chosen by a permutation of each coefficient's values.
MD_INLINE V<float, 16> erf_by_table(V<float, 16> x) {
  typedef V<float, 16> F;
  constexpr float step = 0.2578125f, low = 5.67434909e-08f;  // what the first coefficient of x lost
  const F c[6] = {
      {0.f, 0.284591436f, 0.534123003f, 0.725959837f, 0.855271816f, 0.931698084f, 0.971302092f, 0.9892959f,
      0.996463776f, 0.998967111f, 0.999733686f, 0.999939442f, 0.999987841f, 0.999997854f, 0.999999642f,
      0.99999994f},
      {1.12837911f, 1.05581713f, 0.86494714f, 0.620379865f, 0.389576793f, 0.214188263f, 0.103101633f,
      0.0434512869f, 0.0160327125f, 0.00517939078f, 0.00146493257f, 0.000362763851f, 7.86498422e-05f,
      1.49292955e-05f, 2.48112451e-06f, 3.61015452e-07f},
      {0.f, -0.272199631f, -0.445974946f, -0.479821265f, -0.401753366f, -0.276107162f, -0.159486964f,
      -0.0784141794f, -0.0330733359f, -0.0120123299f, -0.00378138828f, -0.00102882681f, -0.000236394932f,
      -4.83938529e-05f, -2.73225373e-06f, 2.0603286e-06f},
      {-0.376122236f, -0.305160642f, -0.135011405f, 0.0406106897f, 0.146339238f, 0.165879935f, 0.130103156f,
      0.079861939f, 0.0401242189f, 0.0168635845f, 0.00600287179f, 0.00182396907f, 0.000475564564f,
      0.00010679596f, 2.07132034e-05f, 3.47692185e-06f},
      {0.f, 0.12919651f, 0.18196471f, 0.143637404f, 0.0587038323f, -0.0142515274f, -0.0470786616f, -0.0458931141f,
      -0.0300869606f, -0.0158760194f, -0.00630042469f, -0.00226364727f, -0.000997159514f, -0.000244286057f,
      -0.000334768993f, -0.000172834727f},
      {0.112170726f, 0.0781215429f, 0.00296522374f, -0.0562076084f, -0.0675136596f, -0.0420900136f,
      -0.00981196016f, 0.0090246005f, 0.0129277781f, 0.0093775019f, 0.00489979098f, 0.0020143881f,
      0.000676028256f, 0.000188878708f, 4.44630605e-05f, 8.88887007e-06f}};
  F a = smaller(F{} + 3.9921875f, abs(x));
  F place = fma(a, F{} + 1.f / step, F{} + 12582912.f), t = fma(place - 12582912.f, F{} - step, a);
  V<i32, 16> k = (V<i32, 16>)place & 15;
  F r = __builtin_shuffle(c[5], k);
  for (int i = 4; i > 0; i--) r = fma(r, t, __builtin_shuffle(c[i], k));
  return copysign(fma(r, t, fma(t, F{} + low, __builtin_shuffle(c[0], k))), x);
}
#endif
template <class F> MD_INLINE F erf(F x) {
  if constexpr (!is_f32<F>) {
    return erf64(x);
#if MD_AVX512
  } else if constexpr (MD_IS(F, float, 64)) {
    return erf_by_table(x);
#endif
  } else {
    F a = smaller(F{} + 4.f, abs(x));
    // log(1 - erf(a)) = a * (-2 / sqrt(pi) + q), q in pairs of powers: they need not wait for each other
    F square = a * a, fourth = square * square;
    F low = fma(square, fma(a, F{} + 0.0191530641f, F{} - 0.102777831f), fma(a, F{} - 0.636619389f, F{} + 5.8636e-8f));
    F high = fma(square, fma(a, F{} - 0.000117641139f, F{} + 0.000632836367f), fma(a, F{} - 0.00166702655f, F{} + 0.000160395197f));
    F q = fma(fourth, fma(fourth, F{} + 9.25625045e-06f, high), low);
    F n, r = reduced_exp(fma(a, F{} - 1.12837923f, a * q), n);
    F power = exponent<F>(__builtin_convertvector(n, IntOf<F>));  // n > -32
    return copysign(fma(expm1_poly(r), power, power - 1.f), x);
  }
}
// x ** y, of float32 through double precision; lanes that are not ordinary are left to the C library.
template <class F> MD_INLINE F pow(F x, F y) {
  if constexpr (!is_f32<F>) {
    if (any<F>(mask(~((x > 0) & (x < __builtin_inf()) & (abs(y) < 1e300))))) return pow_lanes(x, y);
    return pow64(x, y);
  } else {
    constexpr int N = MD_LANES(F);
    if (any<F>(~((x > 1.17549435e-38f) & (x < __builtin_inff()) & (abs(y) < __builtin_inff())))) return pow_lanes(x, y);
    F e, f = split(x, e), result;
    constexpr int H = N > 4 ? N / 2 : N;
    for (int part = 0; part < N; part += H) {
      typedef V<double, H> D;
      V<float, H> fh, eh, yh;
      __builtin_memcpy(&fh, (float*)&f + part, sizeof(fh));
      __builtin_memcpy(&eh, (float*)&e + part, sizeof(eh));
      __builtin_memcpy(&yh, (float*)&y + part, sizeof(yh));
      D m = convert<double>(fh), q = m / (m + 2.0), z = q * q;
      D l = D{} + 0.28291754035982678;
      l = fma(l, z, D{} + 0.31990447974917348);
      l = fma(l, z, D{} + 0.41220928214187678);
      l = fma(l, z, D{} + 0.57707794206847454);
      l = fma(l, z, D{} + 0.96179669411437297);
      l = fma(l, z, D{} + 2.8853900817778495);
      D t = fma(l, q, convert<double>(eh)) * convert<double>(yh);
      t = t < -160.0 ? D{} - 160.0 : t;
      t = t > 140.0 ? D{} + 140.0 : t;
      D n = rounded<0>(t), r = t - n;
      D p = D{} + 1.5316719614260864e-05;
      p = fma(p, r, D{} + 0.0001546999723026753);
      p = fma(p, r, D{} + 0.0013333421546799869);
      p = fma(p, r, D{} + 0.0096180247725852);
      p = fma(p, r, D{} + 0.05550410977444989);
      p = fma(p, r, D{} + 0.24022651219833227);
      p = fma(p, r, D{} + 0.6931471805346207);
      p = fma(p, r, D{} + 0.9999999999588975);
      V<i64, H> k = __builtin_convertvector(n, V<i64, H>);
      V<float, H> out = __builtin_convertvector(p * (D)((k + 1023) << 52), decltype(out));
      __builtin_memcpy((float*)&result + part, &out, sizeof(out));
    }
    return result;
  }
}
// Functions that are seldom wanted, in float32 by way of double precision.
#define MD_IN_DOUBLE(name)                                                              \
  template <class F> MD_INLINE F name(F x) {                                            \
    if constexpr (is_f32<F>) return in_double(x, [](auto d) __attribute__((always_inline)) { return name##64(d); }); \
    else return name##64(x);                                                            \
  }
MD_IN_DOUBLE(sinh) MD_IN_DOUBLE(cosh) MD_IN_DOUBLE(asinh) MD_IN_DOUBLE(acosh) MD_IN_DOUBLE(erfc)
template <class F> MD_INLINE F atanh(F x) {
  F a = abs(x), d = 1.0f - a, q = 2.0f * a / d;
  F rest = fma(-q, d, 2.0f * a) - q * ((1.0f - d) - a);  // what q lost, times d
  F y = log1p(q) + (a < 1 ? rest * about_inverse(1.0f + a) : F{});
  return copysign(0.5f * y, x);
}

// pi times k in two parts
template <class F> MD_INLINE F pi_high(float k) {
  return F{} + k * (LaneOf<F>)(is_f32<F> ? 3.14159274f : 0x1.921fb54442d18p+1);
}
template <class F> MD_INLINE F pi_low(float k) {
  return F{} + k * (LaneOf<F>)(is_f32<F> ? -8.742278e-08f : 0x1.1a62633145c07p-53);
}
template <class F> MD_INLINE F asin_tail(F s, F z) {  // asin(s) - s, z = s * s, |s| <= 1/2
  if constexpr (is_f32<F>)
    return s * z * poly(z, 0.16666667f, 0.0750009f, 0.0445994f, 0.031100662f, 0.017149238f, 0.033690847f);
  else
    return s * z * asin_poly64(z);
}
template <class F> MD_INLINE F asin(F x) {
  F a = abs(x), z = a > 0.5f ? (1.0f - a) * 0.5f : a * a, s = a > 0.5f ? sqrt(z) : a, t = asin_tail(s, z);
  F y = a > 0.5f ? (pi_high<F>(0.5f) - 2.0f * s) - (2.0f * t - pi_low<F>(0.5f)) : s + t;
  return copysign(y, x);
}
template <class F> MD_INLINE F acos(F x) {
  F a = abs(x), z = a > 0.5f ? (1.0f - a) * 0.5f : a * a, s = a > 0.5f ? sqrt(z) : x, t = asin_tail(s, z);
  F near = pi_high<F>(0.5f) - (s + (t - pi_low<F>(0.5f))), far = 2.0f * (s + t);
  far = x < 0 ? pi_high<F>(1) - (far - pi_low<F>(1)) : far;
  return a > 0.5f ? far : near;
}
template <class F> MD_INLINE F atan_unit(F t) {  // 0 <= t <= 1
  F z = t * t;
  if constexpr (is_f32<F>)
    return fma(t * z, poly(z, -0.3333333f, 0.1999974f, -0.14278568f, 0.110337645f, -0.0865688f, 0.06250169f, -0.03587154f,
                           0.013507771f, -0.0023869972f), t);
  else
    return fma(t * z, atan_poly64(z), t);
}
template <class F> MD_INLINE F atan(F x) {
  F a = abs(x), y = atan_unit(a > 1.0f ? 1.0f / a : a);
  return copysign(a > 1.0f ? pi_high<F>(0.5f) - (y - pi_low<F>(0.5f)) : y, x);
}
template <class F> MD_INLINE F atan2(F y, F x) {
  F a = abs(x), b = abs(y), most = larger(a, b), t = smaller(a, b) / most;
  t = a == b ? F{} + 1.0f : t;  // both may be infinite
  F r = atan_unit(most == 0 ? F{} : t);
  r = b > a ? pi_high<F>(0.5f) - (r - pi_low<F>(0.5f)) : r;
  typedef typename UIntOf<sizeof(F{}[0])>::type E;
  r = (V<E, MD_LANES(F)>)x < 0 ? pi_high<F>(1) - (r - pi_low<F>(1)) : r;
  return (x == x) & (y == y) ? copysign(r, y) : x + y;
}
template <class F> MD_INLINE F hypot(F x, F y) {
  F a = abs(x), b = abs(y);
  if constexpr (!is_f32<F>) {
    F high = larger(a, b), low = smaller(a, b);
    F least = low == 0 ? high : low;
    if (any<F>(mask(~(((least > 1e-140) | (high == 0)) & (high < 1e150))))) return hypot_lanes(x, y);
    F r = sqrt(fma(high, high, low * low));
    return (x == x) & (y == y) ? r : x + y;
  } else {
    constexpr int H = MD_HALVES(F);
    F r;
    for (unsigned part = 0; part < MD_LANES(F); part += H) {
      V<float, H> p, q;
      __builtin_memcpy(&p, (float*)&a + part, sizeof(p));
      __builtin_memcpy(&q, (float*)&b + part, sizeof(q));
      V<double, H> u = convert<double>(p), v = convert<double>(q);
      p = __builtin_convertvector(sqrt(u * u + v * v), V<float, H>);
      __builtin_memcpy((float*)&r + part, &p, sizeof(p));
    }
    const float inf = __builtin_inff();
    return (a == inf) | (b == inf) ? F{} + inf : r;
  }
}
template <class F> MD_INLINE F rsqrt(F x) { return 1 / sqrt(x); }
template <class F> MD_INLINE F logaddexp(F x, F y) {
  F high = maximum(x, y), low = minimum(x, y);
  F sum = high + log1p(exp(low - high));
  return low == high ? (abs(high) == __builtin_inf() ? high : sum) : sum;
}

// A number in every lane; less a vector of zeros, for plus one -0.0 is 0.0.
MD_INLINE V<float, BYTES / 4> all_lanes(float x) { return x - V<float, BYTES / 4>{}; }

// A function of vectors on one number.
#define MD_SCALAR(name)                                                                 \
  MD_INLINE float name(float x) { return name(all_lanes(x))[0]; }                       \
  MD_INLINE double name(double x) { return name(V<double, 2>{x, x})[0]; }
#define MD_SCALAR2(name)                                                                \
  MD_INLINE float name(float x, float y) { return name(all_lanes(x), all_lanes(y))[0]; } \
  MD_INLINE double name(double x, double y) { return name(V<double, 2>{x, x}, V<double, 2>{y, y})[0]; }
MD_SCALAR(exp) MD_SCALAR(exp2) MD_SCALAR(expm1) MD_SCALAR(log) MD_SCALAR(log2) MD_SCALAR(log10) MD_SCALAR(log1p)
MD_SCALAR(sin) MD_SCALAR(cos) MD_SCALAR(tan) MD_SCALAR(asin) MD_SCALAR(acos) MD_SCALAR(atan) MD_SCALAR(sinh)
MD_SCALAR(cosh) MD_SCALAR(tanh) MD_SCALAR(asinh) MD_SCALAR(acosh) MD_SCALAR(atanh) MD_SCALAR(erf) MD_SCALAR(erfc)
MD_SCALAR(lgamma) MD_SCALAR(abs)
MD_SCALAR2(remainder) MD_SCALAR2(logaddexp)
MD_SCALAR2(pow) MD_SCALAR2(atan2) MD_SCALAR2(hypot) MD_SCALAR2(nextafter) MD_SCALAR2(fmod) MD_SCALAR2(copysign)
}  // namespace md
