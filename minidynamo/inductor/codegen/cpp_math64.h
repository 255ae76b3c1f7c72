// Functions of double precision, for V<double, N>: accurate to about 2 units in the last place. Between
// `cpp_prefix.h` and `cpp_math.h`, which gives them their names and uses some of them for float32.
// Polynomials are minimax fits of the reduced functions; the last coefficient comes first in POLY.
#pragma once

namespace md {

template <class F> using LaneOf = decltype(F{}[0] + F{}[0]);
template <class F> constexpr bool is_f32 = __is_same(LaneOf<F>, float);
template <class F> using IntOf = V<i32, MD_LANES(F)>;
template <class F> using Int64Of = V<i64, MD_LANES(F)>;

template <class F> MD_INLINE bool any(V<i32, MD_LANES(F)> m) {
#if MD_AVX512
  if constexpr (sizeof(m) == 64) return __builtin_ia32_ptestmd512(m, m, (u16)-1);
#endif
#if MD_AVX512 || MD_AVX2
  if constexpr (sizeof(m) == 32) return __builtin_ia32_movmskps256((V<float, 8>)m);
#endif
#if MD_AVX2
  if constexpr (sizeof(m) == 16) return __builtin_ia32_movmskps((V<float, 4>)m);
#endif
  i32 r = 0;
  for (unsigned i = 0; i < MD_LANES(F); i++) r |= m[i];
  return r;
}
template <class F> MD_INLINE F clamped(F x, float low, float high) {  // NaN stays
  return larger(F{} + low, smaller(F{} + high, x));
}
template <class F> MD_INLINE F about_inverse(F x) {  // 1 / x to three digits
#if MD_AVX512
  if constexpr (MD_IS(F, float, 64)) return __builtin_ia32_rcp14ps512_mask(x, x, (u16)-1);
  if constexpr (MD_IS(F, double, 64)) return __builtin_ia32_rcp14pd512_mask(x, x, (u8)-1);
#endif
  return 1 / x;
}
template <class F> MD_INLINE F poly64(F, double c) { return F{} + c; }
template <class F, class... C> MD_INLINE F poly64(F x, double c, C... rest) { return fma(poly64(x, rest...), x, F{} + c); }

// Small integers, as they stand in the low bits of n + 1.5 * 2 ** 52, and back.
template <class F> MD_INLINE Int64Of<F> integer64(F n) {
  const F magic = F{} + 0x1.8p52;
  return (Int64Of<F>)(n + magic) - (Int64Of<F>)magic;
}
template <class F> MD_INLINE F floating64(Int64Of<F> k) {
  const F magic = F{} + 0x1.8p52;
  return (F)(k + (Int64Of<F>)magic) - magic;
}
template <class F> MD_INLINE F scaled64(F x, F n) {  // x * 2 ** n, n integral, x near 1
#if MD_AVX512
  if constexpr (MD_IS(F, double, 64)) return __builtin_ia32_scalefpd512_mask(x, n, x, (u8)-1, 4);
#endif
  Int64Of<F> k = integer64(n), half = k >> 1;
  return x * (F)((half + 1023) << 52) * (F)((k - half + 1023) << 52);
}
template <class F> MD_INLINE F reduced_exp64(F x, F& n) {  // x = n ln 2 + r
  n = rounded<0>(x * 1.4426950408889634);
  F r = fma(n, F{} - 0x1.62e42fefa39efp-1, x);
  return fma(n, F{} - 0x1.abc9e3b39803fp-56, r);
}
template <class F> MD_INLINE F expm1_poly64(F r) {
  F p = poly64(r, 0.5, 0.16666666666666666, 0.04166666666666668, 0.008333333333333333, 0.0013888888888879073,
               0.00019841269841263298, 2.4801587336442236e-05, 2.755731924721873e-06, 2.75572632790885e-07,
               2.505207109429355e-08, 2.0918137738642736e-09, 1.608662795678037e-10);
  return fma(r * r, p, r);
}
template <class F> MD_INLINE F exp64(F x, double shift = 0) {  // e ** x * 2 ** shift
  F n, r = reduced_exp64(clamped(x, -746.f, 711.f), n);
  return scaled64(expm1_poly64(r) + 1.0, n + shift);
}
template <class F> MD_INLINE F expm1_64(F x) {
  F n, r = reduced_exp64(clamped(x, -40.f, 709.9f), n);
  F half = scaled64(F{} + 0.5, n);  // 2 ** n itself could overflow
  F y = 2.0 * fma(expm1_poly64(r), half, half - 0.5);
  return x == 0 ? x : y;
}
template <class F> MD_INLINE F exp2_64(F x) {
  x = clamped(x, -1080.f, 1030.f);
  F n = rounded<0>(x), r = x - n;
  F p = poly64(r, 0.6931471805599453, 0.24022650695910072, 0.05550410866482158, 0.009618129107628484,
               0.0013333558146428445, 0.00015403530393362752, 1.5252733804051129e-05, 1.3215486816003082e-06,
               1.0178086021186909e-07, 7.0548943849686364e-09, 4.445530308467693e-10, 2.573357051627959e-11, 1.3716962412589502e-12);
  return scaled64(fma(r, p, F{} + 1.0), n);
}
// log(x) = e ln 2 + log(1 + f), sqrt(1/2) <= 1 + f < sqrt(2); x positive and finite
template <class F> MD_INLINE F split64(F x, F& e) {
  typedef Int64Of<F> I;
  I tiny = x < 0x1p-1022;
  x = tiny ? x * 0x1p54 : x;
  I bits = (I)x, k = (bits - 0x3fe6a09e667f3bcdll) >> 52;
  e = floating64<F>(k + (tiny & -54));
  return (F)(bits - (k << 52)) - 1.0;
}
template <class F> MD_INLINE F log_tail64(F f) {  // log(1 + f) - f
  F s = f / (f + 2.0), z = s * s, h = f * f * 0.5;
  F r = z * poly64(z, 0.666666666666667, 0.39999999999899444, 0.2857142862600327, 0.22222211130259878,
                   0.18182889455674947, 0.15331710618210773, 0.14616585424888623);
  return s * (h + r) - h;
}
template <class F> MD_INLINE F log_special64(F x, F y) {  // the values outside (0, inf)
  double inf = __builtin_inf();
  y = x == 0 ? F{} - inf : y;
  y = x == inf ? x : y;
  return x < 0 ? F{} + __builtin_nan("") : (x == x ? y : x);
}
template <class F> MD_INLINE F log64(F x) {
  F e, f = split64(x, e);
  F y = fma(e, F{} + 0x1.ef35793c76730p-45, log_tail64(f)) + f;  // ln 2 in two parts
  return log_special64(x, fma(e, F{} + 0x1.62e42fefa3800p-1, y));
}
template <class F> MD_INLINE F log2_64(F x) {
  F e, f = split64(x, e), t = log_tail64(f);
  F y = fma(t, F{} + 0x1.71547652b82fep+0, f * 0x1.777d0ffda0d24p-56);  // log2(e) in two parts
  return log_special64(x, fma(f, F{} + 0x1.71547652b82fep+0, y) + e);
}
template <class F> MD_INLINE F log10_64(F x) {
  F e, f = split64(x, e), t = log_tail64(f);
  F y = fma(t, F{} + 0x1.bcb7b1526e50ep-2, f * 0x1.95355baaafad3p-57);  // log10(e) and log10(2) in two parts
  y = fma(f, F{} + 0x1.bcb7b1526e50ep-2, fma(e, F{} + 0x1.9fef311f12b36p-42, y));
  return log_special64(x, fma(e, F{} + 0x1.34413509f6000p-2, y));
}
template <class F> MD_INLINE F log1p64(F x) {
  Int64Of<F> small = (x > -0.29) & (x < 0.41);
  F u = small ? F{} + 1.0 : x + 1.0;
  F lost = u > 2.0 ? 1.0 - (u - x) : x - (u - 1.0);
  F e, f = split64(u, e);
  f = small ? x : f;
  lost = small ? F{} : lost * about_inverse(u);
  F y = f + (fma(e, F{} + 0x1.ef35793c76730p-45, log_tail64(f)) + lost);
  y = fma(e, F{} + 0x1.62e42fefa3800p-1, y);
  y = u == __builtin_inf() ? u : y;
  y = x == -1 ? F{} - __builtin_inf() : y;
  y = x < -1 ? F{} + __builtin_nan("") : y;
  return x == 0 ? x : (x == x ? y : x);
}
// x ** y = exp(y log x), x positive and finite, |y| < 1e300: the logarithm is the sum of two numbers, as an error
// of it is multiplied by y. log(1 + f) = 2 s + s ** 3 (2/3 + 2/5 s ** 2 + ...), s = f / (2 + f).
template <class F> MD_INLINE F pow64(F x, F y) {
  F e, f = split64(x, e);
  F d = f + 2.0, s = f / d, s_low = (fma(-s, d, f) - s * (f - (d - 2.0))) / d;
  F z = s * s, z_low = fma(s, s, -z) + 2.0 * s * s_low;
  F q = poly64(z, 0.4, 0.2857142857142857, 0.2222222222222222, 0.18181818181818182, 0.15384615384615385,
               0.13333333333333333, 0.11764705882352941, 0.10526315789473684, 0.09523809523809523,
               0.08695652173913043, 0.08, 0.07407407407407407);
  F k = fma(z, q, F{} + 0.6666666666666666), k_low = fma(z, q, 0.6666666666666666 - k) + 3.700743415417188e-17;
  F w = z * s, w_low = fma(z, s, -w) + (z_low * s + z * s_low);
  F c = w * k, c_low = fma(w, k, -c) + (w * k_low + w_low * k);
  F whole = e * 0x1.62e42fefa3800p-1, part = 2.0 * s + whole, sum = part + c;  // ln 2 in two parts
  F low = (2.0 * s - (part - whole)) + (c - (sum - part)) + (c_low + fma(e, F{} + 0x1.ef35793c76730p-45, 2.0 * s_low));
  F t = y * sum, t_low = fma(y, sum, -t) + y * low;
  t_low = abs(t) < 746.0 ? t_low : F{};
  F n, r = reduced_exp64(clamped(t, -746.f, 711.f), n), p = expm1_poly64(r);
  return scaled64(fma(t_low, p + 1.0, p) + 1.0, n);
}
// x = n pi/2 + r, for |x| below 2 ** 19
template <class F> MD_INLINE bool large_angle64(F x) { return __builtin_expect(any<F>(mask(abs(x) > 524288.0)), 0); }
template <class F> MD_INLINE F reduced_angle64(F x, Int64Of<F>& n) {
  F k = rounded<0>(x * 0.6366197723675814);
  n = integer64(k);
  F r = fma(k, F{} - 0x1.921fb54400000p+0, x);
  r = fma(k, F{} - 0x1.0b4611a600000p-34, r);
  return fma(k, F{} - 0x1.3198a2e037073p-69, r);
}
template <class F> MD_INLINE void sin_and_cos64(F r, F& sine, F& cosine) {  // of |r| <= pi / 4
  F z = r * r;
  F s = poly64(z, -0.16666666666666666, 0.008333333333333331, -0.0001984126984126504, 2.755731921932058e-06,
               -2.50521062259944e-08, 1.6058530596645953e-10, -7.586636882825159e-13);
  F c = poly64(z, 0.041666666666666664, -0.0013888888888888887, 2.4801587301584632e-05, -2.755731922139249e-07,
               2.0876755787492604e-09, -1.1470460319209511e-11, 4.745838412531023e-14);
  F h = z * 0.5, w = 1.0 - h;  // 1 - h rounds: what it loses goes to the small terms
  sine = fma(z * r, s, r);
  cosine = w + (((1.0 - w) - h) + z * z * c);
}
template <class F> MD_INLINE F sin_quarter64(F r, Int64Of<F> n) {
  F sine, cosine;
  sin_and_cos64(r, sine, cosine);
  F y = (n & 1) != 0 ? cosine : sine;
  return (F)((Int64Of<F>)y ^ ((n & 2) << 62));
}
template <class F> MD_INLINE F tan_quarter64(F r, Int64Of<F> n) {
  F sine, cosine;
  sin_and_cos64(r, sine, cosine);
  Int64Of<F> odd = (n & 1) != 0;
  return (odd ? -cosine : sine) / (odd ? sine : cosine);
}
template <class F> MD_INLINE F tanh64(F x) {
  F t = expm1_64(2.0 * smaller(F{} + 22.0, abs(x)));
  F y = copysign(t / (t + 2.0), x);
  return x == x ? y : x;
}
template <class F> MD_INLINE F sinh64(F x) {
  F a = abs(x), z = x * x, h = exp64(a, -1);
  F p = poly64(z, 0.16666666666666666, 0.008333333333333333, 0.00019841269841269773, 2.755731922404034e-06,
               2.505210836405804e-08, 1.6059048396350562e-10, 7.646625361656657e-13, 2.8445264169895285e-15);
  return a < 1 ? fma(z * x, p, x) : copysign(h - 0.25 / h, x);
}
template <class F> MD_INLINE F cosh64(F x) {
  F h = exp64(abs(x), -1);
  return h + 0.25 / h;
}
template <class F> MD_INLINE F asinh64(F x) {
  F a = abs(x), s = a * a;
  Int64Of<F> big = a > 0x1p60;  // where x * x + 1 is x * x
  F y = log1p64(big ? a : a + s / (1.0 + sqrt(s + 1.0)));
  return copysign(big ? y + 0x1.62e42fefa39efp-1 : y, x);
}
template <class F> MD_INLINE F acosh64(F x) {
  F t = x - 1.0;
  Int64Of<F> big = x > 0x1p60;
  F y = log1p64(big ? x : t + sqrt(t * t + 2.0 * t));
  y = big ? y + 0x1.62e42fefa39efp-1 : y;
  return x < 1 ? F{} + __builtin_nan("") : y;
}
// erfc(a) * exp(a * a) * (1 + 2 a), a >= 1, is smooth in (a - 3) / (a + 3).
template <class F> MD_INLINE F erfc_tail64(F a) {
  F q = 1.0 / ((a + 3.0) * (1.0 + 2.0 * a)), t = (a - 3.0) * (1.0 + 2.0 * a) * q;
  F s = a * a, low = fma(a, a, -s);
  F p = poly64(t, 1.2530080582697294, -0.1356211061245812, -0.04756229435345123, 0.12964515870276355,
               -0.11927366341526918, 0.06830802734386804, -0.023770514919848214, 0.002529391818246065,
               0.00188869037709314, -0.0007798322997828131, -0.0001051599486000129, 0.0001250995924634011,
               4.950212003940884e-06, -2.01019749584731e-05, -7.335054675209895e-07, 3.4777585138361568e-06,
               3.58951071555841e-07, -6.289304116806814e-07, -1.3838013683439671e-07, 1.1674655405361522e-07,
               3.0814408705191223e-08, -1.9641736832991692e-08);
  F e = exp64(-s);
  return p * (a + 3.0) * q * (e - e * low);
}
template <class F> MD_INLINE F erf_small64(F x) {
  F z = x * x;
  F p = poly64(z, 0.12837916709551257, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792,
               0.0052239776248180145, -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05,
               1.6461000484121368e-06, -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09,
               5.957176147748911e-11);
  return fma(x, p, x);
}
template <class F> MD_INLINE F erf64(F x) {
  F a = abs(x), y = 1.0 - erfc_tail64(smaller(F{} + 6.0, a));
  y = a < 1 ? erf_small64(a) : y;
  return x == x ? copysign(y, x) : x;
}
template <class F> MD_INLINE F erfc64(F x) {
  F a = abs(x), y = erfc_tail64(smaller(F{} + 27.3, a));
  y = x < 0 ? 2.0 - y : y;
  y = a < 1 ? 1.0 - erf_small64(x) : y;
  return x == x ? y : x;
}
// (atan(t) / t - 1) / z and (asin(s) / s - 1) / z of the argument's square.
template <class F> MD_INLINE F atan_poly64(F z) {
  return poly64(z, -0.3333333333333333, 0.19999999999999554, -0.14285714285648404, 0.11111111107234799,
                -0.09090908969557403, 0.07692305354678655, -0.06666636435777692, 0.05882074956371294,
                -0.05261265735709454, 0.04752086773576656, -0.04308119655330471, 0.03872640214042632,
                -0.033750132001619734, 0.027567942297344678, -0.020238706986393514, 0.012756172907694298,
                -0.006575683344151699, 0.002622977891906089, -0.0007518472526973822, 0.0001368724853148122,
                -1.1832505417555692e-05);
}
template <class F> MD_INLINE F asin_poly64(F z) {
  return poly64(z, 0.16666666666666669, 0.07499999999998433, 0.04464285714635543, 0.030381944138531247,
                0.02237217294214989, 0.017352392720869973, 0.013971212973552933, 0.011479177415184906,
                0.01032281435018578, 0.005457506718640358, 0.01740087944269402, -0.014851887071247204,
                0.028757851367421566);
}

// A function of doubles on float32 vectors, in two halves.
#define MD_HALVES(F) (MD_LANES(F) > 4 ? MD_LANES(F) / 2 : MD_LANES(F))
template <class F, class Fn> MD_INLINE F in_double(F x, Fn fn) {
  constexpr int H = MD_HALVES(F);
  F result;
  for (unsigned part = 0; part < MD_LANES(F); part += H) {
    V<float, H> h;
    __builtin_memcpy(&h, (float*)&x + part, sizeof(h));
    h = convert<float>(fn(convert<double>(h)));
    __builtin_memcpy((float*)&result + part, &h, sizeof(h));
  }
  return result;
}
}  // namespace md
